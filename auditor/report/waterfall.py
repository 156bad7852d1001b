"""Where the time of a step goes: compute-bound, memory-bound (in findings or not), idle, and what fusing leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from auditor.document import Document, Finding
from auditor.graph.ops import is_memory_bound
from auditor.report import svg
from auditor.report.format import duration, ratio, share

_LABEL, _BAR, _VALUE, _ROW = 215.0, 640.0, 170.0, 34.0


class TimedOp(Protocol):
    """What is asked of an op: its name, and the time of its kernels."""

    @property
    def name(self) -> str: ...

    @property
    def dur_us(self) -> float: ...


class TimedOps(Protocol):
    """An op graph, or what stands for one where only times are at hand."""

    @property
    def ops(self) -> Sequence[TimedOp]: ...


@dataclass(frozen=True, slots=True)
class Part:
    """One bar. ``us`` is ``None`` where it can't be told; ``start_us`` is where the bar floats."""

    label: str
    css: str
    us: float | None
    start_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Bars from the whole step down to what would be left of it, and sentences that a reader must know."""

    parts: tuple[Part, ...]
    whole_us: float
    remarks: tuple[str, ...] = ()


def split(document: Document, graph: TimedOps | None) -> Waterfall | None:
    """The parts of the step's time; ``None`` where nothing was timed."""
    totals = document.totals
    device, step = _time(totals.device_us), _time(totals.step_us)
    whole = step or device
    if not whole:
        return None
    memory = min(_time(totals.memory_bound_us), device)
    fusible = _fusible_us(document, graph, memory)
    idle = (_time(totals.idle_us) or max(step - device, 0.0)) if step else None
    name = "whole trace" if document.run.source == "trace" else "step"
    collective = min(_time(totals.collective_us), device - memory)
    middle = [("compute-bound kernels", "compute", device - memory - collective), *_memory(memory, fusible)]
    middle += [("collectives, waiting included", "collective", collective)] if collective else []
    middle += [("idle, waiting for launches", "idle", idle)]
    parts = [Part(name if step else "kernel time", "whole", whole), *_float(middle)]
    if step and totals.saving.step_us:
        parts.append(Part(f"{name} once fused, likely", "after", max(step - _time(totals.saving.step_us), 0.0)))
    return Waterfall(
        tuple(parts),
        max(p.start_us + (p.us or 0.0) for p in parts),
        _remarks(step, device, fusible, serial=document.run.device.kind == "cpu"),
    )


def _memory(memory: float, fusible: float | None) -> list[tuple[str, str, float | None]]:
    if fusible is None:
        return [("memory-bound kernels", "rest", memory), ("… of these in findings", "fusible", None)]
    return [
        ("memory-bound, in no finding", "rest", memory - fusible),
        ("memory-bound, in findings", "fusible", fusible),
    ]


def _float(parts: list[tuple[str, str, float | None]]) -> list[Part]:
    placed, start = [], 0.0
    for label, css, us in parts:
        placed.append(Part(label, css, us, start))
        start += us or 0.0
    return placed


def _remarks(step: float, device: float, fusible: float | None, *, serial: bool) -> tuple[str, ...]:
    remarks = []
    if not step:
        remarks.append("The time of a step is not known: idle time can't be shown.")
    elif device > 1.005 * step:
        remarks.append(
            "Kernel times were taken under the profiler; together they are longer than the step without it."
            if serial
            else "Kernels overlap: their times add up to more than the step."
        )
    if fusible is None:
        remarks.append(
            "How much of the memory-bound time lies in findings is not known: "
            "some findings hold GEMMs too, and the times of their ops are not at hand."
        )
    return tuple(remarks)


def _time(us: float) -> float:
    return max(ratio(us, 1.0) or 0.0, 0.0)


def _fusible_us(document: Document, graph: TimedOps | None, memory: float) -> float | None:
    """Memory-bound kernel time in findings, µs: a GEMM with its epilogue counts only the epilogue."""
    total = 0.0
    for finding in document.findings:
        part = _memory_share(finding, graph)
        if part is None:
            return None
        total += _time(finding.device_us) * part
    return min(total, memory)


def _memory_share(finding: Finding, graph: TimedOps | None) -> float | None:
    """The memory-bound part of a finding's time, 0 to 1; ``None`` where it mixes kinds and no op has a time."""
    if all(map(is_memory_bound, finding.ops)):
        return 1.0
    if not any(map(is_memory_bound, finding.ops)):
        return 0.0
    ops = _ops(finding, graph)
    return ratio(sum(op.dur_us for op in ops if is_memory_bound(op.name)), sum(op.dur_us for op in ops))


def _ops(finding: Finding, graph: TimedOps | None) -> list[TimedOp]:
    if graph is None:
        return []
    return [graph.ops[i] for site in finding.places for i in site.ops if 0 <= i < len(graph.ops)]


def draw(waterfall: Waterfall) -> str:
    """The waterfall as an SVG element, one row a part."""
    scale = _BAR / (waterfall.whole_us or 1.0)
    rows = [_row(i, part, waterfall, scale) for i, part in enumerate(waterfall.parts)]
    words = "; ".join(f"{p.label}: {_reads(p, waterfall)}" for p in waterfall.parts)
    width, height = _LABEL + _BAR + _VALUE, _ROW * len(rows) + 6
    return svg.drawing("waterfall", width, height, "Where the time goes", words, "".join(rows), "waterfall")


def _row(index: int, part: Part, waterfall: Waterfall, scale: float) -> str:
    y = _ROW * index + 4
    x, width = _LABEL + part.start_us * scale, (part.us or 0.0) * scale
    label = svg.text(_LABEL - 12, y + 17, part.label, text_anchor="end", class_="label")
    bar = svg.element("rect", x=x, y=y, width=max(width, 1.0), height=_ROW - 10, rx=3, class_=f"bar {part.css}")
    value = svg.text(_LABEL + _BAR + 12, y + 17, _reads(part, waterfall), class_="value")
    guide = svg.element("path", d=f"M{_LABEL} {y + _ROW - 5:.1f}H{_LABEL + _BAR}", class_="guide")
    return svg.element("g", guide + label + (bar if part.us is not None else "") + value)


def _reads(part: Part, waterfall: Waterfall) -> str:
    if part.us is None:
        return "not known"
    whole = waterfall.parts[0].us or 0.0
    return duration(part.us) if part.css == "whole" else f"{duration(part.us)} · {share(part.us, whole)}"
