"""From files to the op graph: a recording folder, or a trace file with or without its execution trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from auditor.collect import recording as recordings
from auditor.collect.execution_trace import load_execution_trace
from auditor.collect.inferred import inferred_graph
from auditor.collect.kernel_links import origin_of
from auditor.collect.kineto import Event, Trace, load_trace
from auditor.collect.observed import observed_graph
from auditor.collect.step_structure import Steps, find_steps
from auditor.collect.timing import apply_timing
from auditor.collect.tracefile import Reading
from auditor.errors import AuditError
from auditor.graph.garbage import collection_paused
from auditor.graph.model import OpGraph


@collection_paused()
def graph_from_recording(folder: Path) -> OpGraph:
    """Op graph of a recorded run: edges from its graph pass, kernel times from its timing passes.

    ``step_us`` is the median wall time of the steps without a profiler, else of those with the plain one.

    Raises:
        AuditError: the folder holds no recording, or one without a graph pass.
    """
    recording = recordings.load(folder)
    if not recording.has_graph:
        raise AuditError(f"{folder}: the recording holds no graph step; let the script run one more step.")
    graph = observed_graph(
        load_trace(folder / recordings.GRAPH_KINETO),
        load_execution_trace(folder / recordings.GRAPH_ET),
        recorded=recording.script[0] if recording.script else "",
    )
    apply_timing(graph, map(load_trace, _timing_files(folder)))
    times = recording.bare_us or recording.timing_us
    graph.step_us = median(times) if times else 0.0
    graph.device_name = graph.device_name or recording.device_name
    return graph


def _timing_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    while (path := folder / recordings.timing_file(len(found))).exists():
        found.append(path)
    return found


@collection_paused()
def graph_from_trace(
    path: Path, execution_trace: Path | None = None, *, max_bytes: int = 0, salvage: bool = False
) -> OpGraph:
    """Op graph of a trace that something else recorded; edges are inferred where there is no execution trace.

    ``max_bytes`` and ``salvage`` are those of :class:`auditor.collect.tracefile.Reading`, for both files.

    Raises:
        AuditError: a file cannot be used, holds nothing to audit, or the two are not of the same step.
    """
    trace = load_trace(path, Reading(max_bytes, salvage))
    if not trace.cpu_ops and not trace.kernels:
        raise AuditError(f"{path}: holds no ops and no kernels; was it recorded with torch.profiler, around a step?")
    _refuse_lost_kernels(trace)
    notes, partial = trace.notes, trace.partial
    steps = find_steps(trace)
    if execution_trace is not None:
        execution = load_execution_trace(execution_trace, Reading(max_bytes, salvage))
        graph = observed_graph(trace, execution)
        notes, partial = [*notes, *execution.notes], partial or execution.partial
    else:
        graph = inferred_graph(trace, steps)
    graph.coverage.notes[:0], graph.coverage.partial = notes, partial
    _set_steps(graph, trace, steps)
    _note_nothing_launched(graph, trace)
    return graph


def _refuse_lost_kernels(trace: Trace) -> None:
    """Kernels come last in a file: without them what ran on a device would be taken for a CPU's."""
    if not trace.partial or trace.has_launched:
        return
    if trace.devices or trace.device_kind != "cpu":
        raise AuditError(
            f"{trace.path}: no kernel is in the part that is whole, as they come last; record or copy the trace again."
        )
    trace.notes.append("No kernel of a device is in the part that was saved: its ops are taken for a CPU's.")


def _note_nothing_launched(graph: OpGraph, trace: Trace) -> None:
    """Say why a trace that has ops has no kernels: without it "0 kernels" reads like a result."""
    if not trace.kernels and trace.device_kind == "cpu" and trace.cpu_ops and trace.device_name:
        graph.coverage.notes.append(
            f"The trace lists {trace.device_name} and holds no kernel of it: times are those of ops on the host; for "
            "the device's, record with ProfilerActivity.CUDA (XPU on Intel)."
        )
    if trace.kernels or any(op.kernels for op in graph.ops):
        return
    if trace.has_launched:
        graph.coverage.notes.append(
            "The trace holds launches and none of their kernels: it ends before these ran; record a whole step."
        )
        return
    if trace.device_kind != "cpu":
        graph.coverage.notes.append(
            "The ops of the trace ran on a GPU, and nothing that it did was recorded: there is nothing to audit in it; "
            "record it with ProfilerActivity.CUDA, too."
        )
        return
    names = Counter(event.name for event in trace.cpu_ops)
    listed = ", ".join(f"{count}× {name}" for name, count in names.most_common(5))
    graph.coverage.notes.append(
        f"The trace holds no kernel and no op that computes (only {listed}): there is nothing to audit in it; "
        "record a whole step, with ProfilerActivity.CUDA for a GPU's kernels."
    )


def _set_steps(graph: OpGraph, trace: Trace, steps: Steps) -> None:
    """The steps that were found, and their mean wall time.

    A device runs behind the host, so its kernels may take longer than the host's steps: idle time is of one window.
    """
    found = steps.found
    if not found.spans:
        return
    if steps.assumed:
        graph.coverage.notes.append(steps.assumed)
    origin = origin_of(trace)
    shifted = (replace(s, start_us=s.start_us - origin, end_us=s.end_us - origin) for s in found.spans)
    graph.steps = replace(found, spans=tuple(shifted))
    graph.coverage.steps = max(found.complete, 1)
    graph.step_us = max(steps.window_us, _span_us([*trace.kernels, *trace.memory])) / graph.coverage.steps


def _span_us(events: Sequence[Event]) -> float:
    """From the first start to the last end."""
    return max((e.end for e in events), default=0.0) - min((e.start for e in events), default=0.0)
