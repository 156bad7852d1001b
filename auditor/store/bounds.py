"""Whether the numbers of a document are ones that everything can reckon with: documents of others hold any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from auditor.document import (
    CoverageInfo,
    Document,
    FamilyTotal,
    Finding,
    LiveFusion,
    Overhead,
    RankFinding,
    Site,
    StepFigures,
    Totals,
    Unplaced,
)  # fmt: skip
from auditor.errors import AuditError

MOST = 2**63 - 1
"""Of whole numbers and of others, up and down: what a column of a table holds, and a float can still reckon with."""
_LEAST = 1e-12
"""Of what is more than nothing, so that shares of it stay finite: a bandwidth of 1e24 B/s takes that for a byte."""
_AMOUNTS = {
    Totals: (
        "kernels", "memory_bound_kernels", "unfused_kernels", "already_fused_kernels", "collective_kernels",
        "device_us", "step_us", "memory_bound_us", "idle_us", "collective_us", "bytes", "peak_bytes",
    ),
    CoverageInfo: ("kernels", "linked", "before_window", "graph_replayed", "outside_ops", "unattributed", "steps"),
    StepFigures: (
        "kernels", "memory_bound_kernels", "unfused_kernels", "avoidable_kernels", "device_us", "memory_bound_us",
        "step_us", "idle_us", "bytes",
    ),
    Overhead: ("bare_us", "timing_us", "graph_us"),
    Finding: ("sites", "kernels", "kernels_after", "device_us", "bytes_now", "bytes_fused"),
    RankFinding: ("sites", "kernels", "kernels_after", "bytes_now"),
    Site: ("kernels", "kernels_after", "device_us", "bytes_now", "bytes_fused"),
    FamilyTotal: ("kernels", "device_us"),
    LiveFusion: ("kernels", "device_us"),
    Unplaced: ("kernels", "device_us"),
}  # fmt: skip
"""Counts, sizes and times, which are never below 0; what is saved may be."""


def check_numbers(document: msgspec.Struct, name: str) -> None:
    """Refuse a document with a number that no run has.

    Args:
        document: as it was decoded, so that each field is of its type.
        name: of the document, for the sentence.

    Raises:
        AuditError: a number is beyond :data:`MOST`, or is none, or an amount is negative, or next to nothing.
    """
    todo: list[tuple[str, object]] = [("", document)]  # no recursion: a fix holds options of any depth
    while todo:
        path, value = todo.pop()
        if isinstance(value, int | float):
            if not -MOST <= value <= MOST:  # nor is NaN
                field = path if path.isprintable() else ascii(path)  # keys of a fix's options may be anything
                raise AuditError(f"{name} has a number in {field[:200]} that no run has; record the run again")
        elif isinstance(value, msgspec.Struct):
            _check_amounts(path, value, name)
            todo.extend((f"{path}.{key}" if path else key, held) for key, held in _held(value))
        elif isinstance(value, list):
            todo.extend((f"{path}[{i}]", held) for i, held in enumerate(value) if not isinstance(held, str))
        elif isinstance(value, dict):
            todo.extend((f"{path}.{key}", held) for key, held in value.items() if not isinstance(held, str))


def check_ranks(document: Document, name: str, most: int) -> None:
    """Refuse a document whose ranks are none of its world.

    Raises:
        AuditError: the world is larger than ``most`` or of nobody, or a rank is outside of it or there twice.
    """
    run, numbers = document.run, [rank.rank for rank in document.ranks]
    if not 1 <= run.world_size <= most or not 0 <= run.rank < run.world_size:
        raise AuditError(f"{name} is of rank {run.rank} of {run.world_size}, which no job has; record the run again")
    if len(set(numbers)) < len(numbers) or not all(0 <= number < run.world_size for number in numbers):
        raise AuditError(f"{name} has ranks twice, or that are none of its {run.world_size}; record the run again")


def _check_amounts(path: str, value: msgspec.Struct, name: str) -> None:
    for key in _AMOUNTS.get(type(value), ()):
        amount = getattr(value, key)
        if amount < 0 or 0 < amount < _LEAST:
            field, limit = f"{path}.{key}" if path else key, "0" if amount < 0 else f"{_LEAST:g}"
            raise AuditError(f"{name} has {field} below {limit}, which is no amount; record the run again")


def _held(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    for key in value.__struct_fields__:
        held = getattr(value, key)
        if held is not None and not isinstance(held, str):
            yield key, held
