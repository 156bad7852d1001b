"""Kernels as columns, made by hand or at random, for tests of what is drawn and listed of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.data.kernel_table import KernelTable
from dashboard.data.kinds import KINDS, code
from dashboard.data.words import Words, from_texts

_TEXTS = ("name", "op_name", "module", "module_class", "source", "phase", "rule", "fingerprint")


def table(rows: list[dict[str, Any]], run: str = "1aaaaaaaaaaa") -> KernelTable:
    """Kernels from rows that give ``start`` and ``dur`` (µs) and whatever else matters, by start."""
    rows = sorted(rows, key=lambda row: row["start"])
    texts = {column: _words([str(row.get(column, "")) for row in rows]) for column in _TEXTS}
    kinds = np.array([code(row.get("kind", "pointwise")) for row in rows], np.int32)
    return KernelTable(
        run=run, start_us=_floats(rows, "start"), dur_us=_floats(rows, "dur"), kind=Words(kinds, KINDS),
        stream=np.array([row.get("stream", 7) for row in rows], np.int64),
        device=np.array([row.get("device", 0) for row in rows], np.int64),
        op=np.array([row.get("op", i) for i, row in enumerate(rows)], np.int64), **texts,
    )  # fmt: skip


def random_table(kernels: int, seed: int = 0, *, overlapping: bool = False) -> KernelTable:
    """Kernels of three streams, one after the other on each, or wherever they happen to be."""
    draw = np.random.default_rng(seed)
    rows = []
    clock = [0.0, 0.0, 0.0]
    for _ in range(kernels):
        stream, dur = int(draw.integers(3)), float(draw.exponential(5.0))
        start = float(draw.uniform(0, 3 * kernels)) if overlapping else clock[stream] + float(draw.exponential(1.0))
        clock[stream] = start + dur
        rows.append(
            {
                "start": start, "dur": dur, "stream": stream, "kind": KINDS[int(draw.integers(len(KINDS)))],
                "name": f"kernel_{draw.integers(9)}", "module": f"layers.{draw.integers(4)}",
                "rule": "FUS201 unfused-rms-norm" if draw.uniform() < 0.3 else "",
            }
        )  # fmt: skip
    return table(rows)


def _words(texts: list[str]) -> Words:
    return from_texts(np.arange(len(texts), dtype=np.int32), texts)


def _floats(rows: list[dict[str, Any]], key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([row[key] for row in rows], np.float64)
