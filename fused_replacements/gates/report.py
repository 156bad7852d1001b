"""Results as a table (plain text or Markdown) and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from fused_replacements.gates.run import Result
from fused_replacements.gates.targets import TARGETS

HEAD: Final = (
    "kernel", "case", "target", "compiled", "registers", "shared memory", "occupancy", "bytes at once", "verdict",
)  # fmt: skip


def rows(results: Iterable[Result]) -> list[tuple[str, ...]]:
    """One row for each kernel, case and target: what widths and dtypes have between them, as ranges."""
    order = [target.name for target in TARGETS]

    def key(result: Result) -> tuple[str, str, int]:
        return result.kernel, result.facts.expected.label, order.index(result.target)

    return [_row(list(group)) for _, group in groupby(sorted(results, key=key), key)]


def _row(group: Sequence[Result]) -> tuple[str, ...]:
    first, built = group[0], [result for result in group if result.facts.error is None]
    wide = [size for result in built for size in (*result.facts.machine.loads, *result.facts.machine.stores)]
    failed = dict.fromkeys(verdict.gate for result in group for verdict in result.failed)
    return (
        first.kernel,
        first.facts.expected.label,
        first.target,
        f"{len(built)} of {len(group)}",
        _range([result.facts.usage.registers for result in built]),
        _range([result.facts.usage.shared_bytes for result in built], " B"),
        _range([round(100 * result.occupancy.fraction) for result in built], " %"),
        _range(wide, " B"),
        "FAILS " + ", ".join(failed) if failed else "ok",
    )


def _range(values: Sequence[int], unit: str = "") -> str:
    if not values:
        return "–"
    low, high = min(values), max(values)
    return f"{low:,}{unit}" if low == high else f"{low:,}–{high:,}{unit}"


def text(results: Sequence[Result]) -> str:
    """The table with aligned columns, every failure in a sentence, and how many there are."""
    table = [HEAD, *rows(results)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([*lines, "", *_failures(results), summary(results)])


def markdown(results: Sequence[Result]) -> str:
    """The table for a page of documentation."""
    lines = ["| " + " | ".join(row) + " |" for row in rows(results)]
    failed = [f"* {line}" for line in _failures(results)]
    return "\n".join([f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", *lines, "", *failed, summary(results)])


def _failures(results: Iterable[Result]) -> list[str]:
    return [
        f"{result.kernel}, {result.facts.expected.label}, {result.width} × {result.dtype}, {result.target}: "
        f"{verdict.gate}: {verdict.text}"
        for result in results
        for verdict in result.failed
    ]


def summary(results: Sequence[Result]) -> str:
    """``84 kernels compiled, 2 fail a gate.``"""
    failed = sum(bool(result.failed) for result in results)
    return f"{len(results):,} kernels compiled, {failed or 'none'} {'fail' if failed > 1 else 'fails'} a gate."


def as_json(results: Iterable[Result]) -> str:
    """Every result by itself, with all that was read and every verdict."""
    return json.dumps([_entry(result) for result in results], indent=1)


def _entry(result: Result) -> dict[str, Any]:
    facts = result.facts
    return {
        "kernel": result.kernel,
        "case": facts.expected.label,
        "width": result.width,
        "dtype": result.dtype,
        "target": result.target,
        "warps": facts.expected.warps,
        "load_bytes": sum(access.bytes for access in facts.accesses if access.direction == "load"),
        "store_bytes": sum(access.bytes for access in facts.accesses if access.direction == "store"),
        "expected_load_bytes": facts.expected.loads,
        "expected_store_bytes": facts.expected.stores,
        "thread_loads_bytes": facts.machine.loads,
        "thread_stores_bytes": facts.machine.stores,
        **asdict(facts.usage),
        "occupancy": asdict(result.occupancy) if facts.error is None else None,
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
    }
