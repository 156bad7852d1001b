"""A run as Chrome trace events, which https://ui.perfetto.dev and chrome://tracing open, its findings as tracks.

Format: "Trace Event Format" (Google, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
Processes: the host (a track for the modules and one for the ops of each thread), each device (a track for each stream),
and the findings (a track for each, and more where its sites overlap: slices of one track have to nest). Events are
written one by one as they are made. Times are microseconds from the step's first op on.
"""

from __future__ import annotations

import gzip
import heapq
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from auditor.collect.kineto import EXPORT
from auditor.document import Document, Finding, Site, SourceInfo
from auditor.graph.model import Kernel, Op, OpGraph, Source
from auditor.report import facts
from auditor.report.format import clip, safe

HOST, FINDINGS, DEVICE = 1, 2, 10
"""Process ids; device n is ``DEVICE + n``."""
_BATCH = 2000
_OUTSIDE = "outside any module"
_DEEPEST, _LONGEST = 64, 1000
"""Levels and letters of a module's path; each level has the whole path up to it for a name."""


class _Slice(NamedTuple):
    """What it says (``args``) is made when it is written: a step may have 100,000 of them."""

    start_us: float
    end_us: float
    name: str
    op: Op | None = None
    args: dict[str, Any] | None = None
    whole_us: float | None = None
    """How long it took, where it is drawn shorter than that."""


Event = dict[str, Any]


def write(document: Document, graph: OpGraph, file: IO[bytes], *, compress: bool = False) -> None:
    """Write the trace into ``file``, as gzip where ``compress`` says so."""
    if compress:
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
            _write(document, graph, packed)
    else:
        _write(document, graph, file)


def _write(document: Document, graph: OpGraph, file: IO[bytes] | gzip.GzipFile) -> None:
    about = {
        "producer": EXPORT, "run": safe(document.run.id), "name": safe(document.run.name),
        "rank": document.run.rank, "times": "a step; kernels are medians over the timed steps",
    }  # fmt: skip
    encode = msgspec.json.Encoder().encode
    file.write(b'{"displayTimeUnit":"ns","otherData":%s,"traceEvents":[\n' % encode(about))
    made = map(encode, events(document, graph))
    file.write(next(made))  # there is always one: the host's name
    while batch := list(islice(made, _BATCH)):
        file.write(b",\n" + b",\n".join(batch))
    file.write(b"\n]}\n")


def events(document: Document, graph: OpGraph) -> Iterator[Event]:
    """Every event of the trace; those of a track by time, and of two that begin together the outer one first."""
    zero = _first(graph)
    on_device = graph.device_kind != "cpu"
    yield from _process(HOST, f"host: {safe(document.run.name) or 'run'}", 0)
    threads: dict[int, list[Op]] = defaultdict(list)
    for op in graph.ops:
        if _call(op, on_device) is not None:
            threads[op.thread].append(op)
    for number, (thread, ops) in enumerate(sorted(threads.items())):
        ops.sort(key=lambda op: _call(op, on_device) or (0.0, 0.0))
        yield from _thread(number, thread, ops, zero, on_device)
    if on_device:
        yield from _devices(graph, zero)
    yield from _findings(document, graph, zero)


def _first(graph: OpGraph) -> float:
    """The time that is 0 in the trace: no event may begin before."""
    starts = chain((k.start_us for k in _kernels(graph)), (op.host.start_us for op in graph.ops if op.host))
    return min((start for start in starts if math.isfinite(start)), default=0.0)


def _kernels(graph: OpGraph) -> Iterator[Kernel]:
    return chain((kernel for op in graph.ops for kernel in op.kernels), graph.unlinked)


def _call(op: Op, on_device: bool) -> tuple[float, float] | None:
    """Start and duration on the host; None where it was not timed."""
    if on_device:
        call = (op.host.start_us, op.host.dur_us) if op.host else None
    else:
        call = (op.kernels[0].start_us, op.dur_us) if op.kernels else None
    return call if call is not None and math.isfinite(call[0]) and math.isfinite(call[1]) else None


# --- the host ------------------------------------------------------------------------------------------


def _thread(number: int, thread: int, ops: list[Op], zero: float, on_device: bool) -> Iterator[Event]:
    modules, calls = 2 * number + 1, 2 * number + 2
    slices = []
    for op in ops:
        start, dur = _call(op, on_device) or (0.0, 0.0)
        slices.append(_Slice(start - zero, start - zero + dur, op.name, op))
    flat = list(_flat(slices))
    yield from _track(HOST, modules, f"modules, thread {thread}", modules)
    yield from _drawn(HOST, modules, "module", _nested(ops, flat))
    yield from _track(HOST, calls, f"ops, thread {thread}", calls)
    yield from _drawn(HOST, calls, "op", flat)
    if on_device:
        yield from _arrows(ops, flat, calls, zero)


def _op_args(op: Op) -> dict[str, Any]:
    args = {
        "op": op.index,
        "name": safe(op.name),
        "phase": op.phase,
        "module": safe(op.module),
        "class": safe(op.module_class),
    }
    if op.source is not None:
        args["source"] = _place(op.source)
    return {key: value for key, value in args.items() if value != ""}


def _nested(ops: Sequence[Op], flat: Sequence[_Slice]) -> Iterator[_Slice]:
    """A slice for each module on the path of consecutive ops, the outer ones before what they hold."""
    opened: list[tuple[str, float]] = []  # path of a module, and when it began
    done: list[_Slice] = []
    end = 0.0
    for op, call in zip(ops, flat, strict=True):
        path = _path(op)
        shared = 0
        while shared < min(len(path), len(opened)) and opened[shared][0] == path[shared]:
            shared += 1
        while len(opened) > shared:
            name, began = opened.pop()
            done.append(_Slice(began, end, name))
        if not opened:
            yield from sorted(done, key=lambda s: (s.start_us, -s.end_us, len(s.name)))
            done = []
        opened += [(name, call.start_us) for name in path[shared:]]
        end = call.end_us
    done += [_Slice(began, end, name) for name, began in opened]
    yield from sorted(done, key=lambda s: (s.start_us, -s.end_us, len(s.name)))


def _path(op: Op) -> list[str]:
    """``layers``, ``layers.0``, ``layers.0.mlp``: every module around an op by its whole path."""
    if not op.module:
        return [f"{safe(op.module_class)} (the model itself)" if op.module_class else _OUTSIDE]
    module = safe(op.module)
    words = (module if len(module) <= _LONGEST else f"{module[:_LONGEST]}…").split(".", _DEEPEST - 1)
    return [".".join(words[:i]) for i in range(1, len(words) + 1)]


def _arrows(ops: Sequence[Op], flat: Sequence[_Slice], tid: int, zero: float) -> Iterator[Event]:
    """From a call to each kernel that it launched."""
    for op, call in zip(ops, flat, strict=True):
        for place, kernel in enumerate(op.kernels):
            start = kernel.start_us - zero
            if not (math.isfinite(start) and math.isfinite(kernel.dur_us)) or start < call.start_us:
                continue
            arrow = {"cat": "launch", "name": "launch", "id": (op.index << 12) + min(place, 4095)}
            yield {**arrow, "ph": "s", "pid": HOST, "tid": tid, "ts": _us(call.start_us)}
            yield {
                **arrow,
                "ph": "f",
                "bp": "e",
                "pid": DEVICE + kernel.device,
                "tid": _stream(kernel),
                "ts": _us(start),
            }


# --- devices -------------------------------------------------------------------------------------------


def _stream(kernel: Kernel) -> int:
    """Thread ids are positive: 0 means something else to some viewers."""
    return kernel.stream + 1 if kernel.stream >= 0 else 1


def _devices(graph: OpGraph, zero: float) -> Iterator[Event]:
    streams: dict[tuple[int, int], list[_Slice]] = defaultdict(list)
    pairs = chain(((op, k) for op in graph.ops for k in op.kernels), ((None, k) for k in graph.unlinked))
    for op, kernel in pairs:
        if not (math.isfinite(kernel.start_us) and math.isfinite(kernel.dur_us)):
            continue
        start = kernel.start_us - zero
        streams[kernel.device, _stream(kernel)].append(_Slice(start, start + kernel.dur_us, kernel.name, op))
    for device in sorted({device for device, _ in streams}):
        name = safe(graph.device_name) or graph.device_kind
        yield from _process(DEVICE + device, f"device {device}: {name}", 1 + device)
    for (device, stream), slices in sorted(streams.items()):
        slices.sort(key=lambda s: s.start_us)
        yield from _track(DEVICE + device, stream, f"stream {stream - 1}", stream)
        yield from _drawn(DEVICE + device, stream, "kernel", _flat(slices))


def _flat(slices: Sequence[_Slice]) -> Iterator[_Slice]:
    """Slices of one track, in order, none of which reaches into the next: medians of several steps may do so.

    What is cut says how long it took as ``dur_us``.
    """
    for i, each in enumerate(slices):
        end = max(each.end_us, each.start_us)
        if i + 1 < len(slices) and end > slices[i + 1].start_us:
            yield each._replace(end_us=slices[i + 1].start_us, whole_us=end - each.start_us)
        else:
            yield each._replace(end_us=end)


# --- findings ------------------------------------------------------------------------------------------


def _findings(document: Document, graph: OpGraph, zero: float) -> Iterator[Event]:
    yield from _process(FINDINGS, "findings, by likely saving", 1000)
    tids, seen = count(1), set[str]()
    for finding in facts.ranked(document):
        name = _named(finding)
        name = f"{name} · {safe(finding.fingerprint)}" if name in seen else name
        seen.add(name)
        for lane, sites in enumerate(_lanes(finding, graph, zero)):
            tid = next(tids)
            yield from _track(FINDINGS, tid, f"{name} ({lane + 1})" if lane else name, tid)
            for site, inner in sites:
                yield from _drawn(FINDINGS, tid, "finding", [site, *inner])


def _named(finding: Finding) -> str:
    """Rule, kind of module, and where: one rule may find several things that are of no module."""
    where = [_line(finding.source), *(safe(module) for module in finding.modules), *map(safe, finding.ops)]
    parts = [
        f"{safe(finding.rule)} {safe(finding.name)}",
        safe(finding.module_class) or _OUTSIDE,
        clip(next((each for each in where if each), ""), _LONGEST),
        "" if finding.phase == "forward" else safe(finding.phase),
    ]
    return " · ".join(part for part in parts if part)


def _line(source: Source | SourceInfo | None) -> str:
    return f"{_short(source.file, os.getcwd())}:{source.line}" if source is not None and source.file else ""


def _place(source: Source | SourceInfo) -> str:
    function = safe(source.function)
    return f"{_line(source)} in {function}" if function else _line(source)


@lru_cache(maxsize=1024)
def _short(file: str, folder: str) -> str:
    """The path as findings print it; kept, because every op of a step names one of a few files."""
    return facts.short_path(file, Path(folder))


def _lanes(finding: Finding, graph: OpGraph, zero: float) -> list[list[tuple[_Slice, list[_Slice]]]]:
    """The sites with their kernels, on as few tracks as keep them apart: two rotary chains run in turns."""
    sites = (_site(finding, site, graph, zero) for site in finding.places)
    lanes: list[list[tuple[_Slice, list[_Slice]]]] = []
    ends: list[tuple[float, int]] = []
    for site in sorted((s for s in sites if s is not None), key=lambda s: (s[0].start_us, s[0].end_us)):
        if ends and ends[0][0] <= site[0].start_us:
            _, lane = heapq.heappop(ends)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(site)
        heapq.heappush(ends, (site[0].end_us, lane))
    return lanes


def _site(finding: Finding, site: Site, graph: OpGraph, zero: float) -> tuple[_Slice, list[_Slice]] | None:
    """What spans the kernels of a site, and these; None where none was timed."""
    held = [k for i in site.ops if 0 <= i < len(graph.ops) for k in graph.ops[i].kernels]
    held += [graph.unlinked[i] for i in site.unlinked if 0 <= i < len(graph.unlinked)]
    kernels = [(k.start_us - zero, k.dur_us, k.name) for k in held]
    timed = sorted(k for k in kernels if math.isfinite(k[0]) and math.isfinite(k[1]))
    if not timed:
        return None
    where = site.module or _line(site.source)
    name = clip(f"{finding.rule} · {where}" if where else finding.rule, _LONGEST)
    inner = list(_flat([_Slice(start, start + dur, name) for start, dur, name in timed]))
    whole = _Slice(inner[0].start_us, max(s.end_us for s in inner), name, args=_site_args(finding, site))
    return whole, inner


def _site_args(finding: Finding, site: Site) -> dict[str, Any]:
    args: dict[str, Any] = {
        "rule": f"{safe(finding.rule)} {safe(finding.name)}",
        "fingerprint": safe(finding.fingerprint),
        "module": safe(site.module),
        "source": _place(site.source) if site.source is not None else "",
        "kernels": site.kernels,
        "kernels_after": site.kernels_after,
        "device_us": _us(site.device_us),
        **(_saved(site) if not facts.unpriced(finding) else {"saving": facts.NO_SHAPES}),
        "replacement": safe(finding.replacement or ""),
        "legal": " ".join(facts.legality(finding)),
    }
    return {key: value for key, value in args.items() if value != ""}


def _saved(site: Site) -> dict[str, Any]:
    return {
        "bytes_now": site.bytes_now,
        "bytes_fused": site.bytes_fused,
        "likely_saving_us": _us(site.saving.likely_us),
        "step_saving_us": _us(site.saving.step_us),
    }


# --- events --------------------------------------------------------------------------------------------


def _process(pid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": order}}


def _track(pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": order}}


def _drawn(pid: int, tid: int, category: str, slices: Iterable[_Slice]) -> Iterator[Event]:
    for each in slices:
        start = _us(each.start_us)
        # The end is rounded as the next one's start is, so that neighbours never reach into one another
        event = {"ph": "X", "cat": category, "name": safe(each.name) or "?", "pid": pid, "tid": tid, "ts": start}
        event["dur"] = round(max(_us(each.end_us) - start, 0.0), 3)
        args = _args(each)
        yield event | {"args": args} if args else event


def _args(each: _Slice) -> dict[str, Any]:
    args = dict(each.args or {}) | (_op_args(each.op) if each.op is not None else {})
    return args if each.whole_us is None else args | {"dur_us": _us(each.whole_us)}


def _us(value: float) -> float:
    """Microseconds to the nanosecond, which is what a trace tells apart; JSON has no infinity."""
    return round(value, 3) if math.isfinite(value) else 0.0
