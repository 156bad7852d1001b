"""Chrome traces as Kineto writes them, decoded into typed events; ``args`` stay raw until someone needs them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from auditor.collect.file_kind import described
from auditor.collect.repeated import drop_repeated
from auditor.collect.trace_devices import Device, decode_devices, kind_by_kernels, kind_by_memory, kind_by_ops
from auditor.collect.tracefile import Reading, decode_trace, read_trace_bytes
from auditor.errors import AuditError

ArgsT = TypeVar("ArgsT", bound=msgspec.Struct)
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What a column of a table holds."""


class Event(msgspec.Struct, gc=False):
    """One event. ``ts`` and ``dur`` in microseconds; ``args`` undecoded."""

    name: str = ""
    ph: str = ""
    cat: str | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def start(self) -> float:
        return self.ts or 0.0

    @property
    def end(self) -> float:
        return (self.ts or 0.0) + (self.dur or 0.0)

    @property
    def thread(self) -> tuple[object, object]:
        return (self.pid, self.tid)


class OpArgs(msgspec.Struct):
    """``args`` of a cpu_op. Shapes, strides and concrete values are undecoded: few ops differ in them."""

    record_function_id: int = msgspec.field(name="Record function id", default=0)
    sequence_number: _Int64 = msgspec.field(name="Sequence number", default=-1)
    fwd_thread: int = msgspec.field(name="Fwd thread id", default=0)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b""))
    call_stack: msgspec.Raw = msgspec.field(name="Call stack", default=msgspec.Raw(b""))
    kernel_backend: str = ""


class LaunchArgs(msgspec.Struct):
    """``args`` of a device event or of the runtime call that launched it."""

    correlation: int = -1
    stream: _Int64 | str = 0
    device: _Int64 = 0


class _TraceFile(msgspec.Struct):
    traceEvents: list[Event] | None = None  # noqa: N815 - the file's own spelling
    deviceProperties: msgspec.Raw = msgspec.Raw(b"[]")  # noqa: N815
    otherData: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815


class _LooseFile(msgspec.Struct):
    """The same with events of any form."""

    traceEvents: list[msgspec.Raw] | None = None  # noqa: N815
    deviceProperties: msgspec.Raw = msgspec.Raw(b"[]")  # noqa: N815
    otherData: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815


@dataclass(slots=True)
class Trace:
    """Events of one file by kind, each in file order. ``python`` are Python calls, ``annotations`` the user's ranges.

    ``kernels`` holds launches only; copies and fills by the copy engine are in ``memory``.
    """

    path: Path
    cpu_ops: list[Event] = field(default_factory=list)
    kernels: list[Event] = field(default_factory=list)
    memory: list[Event] = field(default_factory=list)
    launches: list[Event] = field(default_factory=list)
    python: list[Event] = field(default_factory=list)
    annotations: list[Event] = field(default_factory=list)
    instants: list[Event] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be read, a sentence each."""
    partial: bool = False
    """The file is cut off or damaged, and what was whole was taken."""

    @property
    def device_kind(self) -> str:
        """``cuda``, ``hip``, ``xpu``, or ``cpu`` where nothing ran on a device; told by the launches' names.

        Without launches, as of replayed graphs, by the device (only AMD's has warps of 64 threads) or the kernels'
        names; where nothing is there of what ran on it, by the ops that only a device has.
        """
        if not self.has_launched:
            return self._kind_by_ops()
        calls = {launch.name for launch in self.launches}
        if any(name.startswith("hip") for name in calls) or "AMD" in self.device_name:
            return "hip"
        if self.device.properties.warp_size == 64:
            return "hip"
        if any(name.startswith(("ur", "ze")) for name in calls):
            return "xpu"
        return "cuda" if calls else kind_by_kernels({kernel.name for kernel in self.kernels})

    @property
    def has_launched(self) -> bool:
        """Whether anything is there that ran on a device, or was launched to."""
        return bool(self.kernels or self.memory or any("Launch" in launch.name for launch in self.launches))

    def _kind_by_ops(self) -> str:
        held = {event.name for events in (self.cpu_ops, self.launches, self.annotations) for event in events}
        return kind_by_ops(held) or kind_by_memory([event.args for event in self.instants[:_MOST_INSTANTS]]) or "cpu"

    @property
    def device_name(self) -> str:
        """Name of :attr:`device`, ``""`` if the file does not say."""
        return self.device.name

    @property
    def device(self) -> Device:
        """The device that ran the most kernels, without a name if the file does not say which."""
        known = {device.id: device for device in self.devices}
        alike = {(device.name, device.properties.multiprocessors) for device in self.devices}
        if len(alike) <= 1 or not self.kernels:
            return next(iter(known.values()), Device())
        busiest = Counter(decode_launch(kernel).device for kernel in self.kernels).most_common(1)[0][0]
        return known.get(busiest, Device())


_KINDS = {
    "cpu_op": "cpu_ops", "operator": "cpu_ops",
    "kernel": "kernels", "gpu_memcpy": "memory", "gpu_memset": "memory", "memcpy": "memory", "memset": "memory",
    "cuda_runtime": "launches", "cuda_driver": "launches", "hip_runtime": "launches", "hip_driver": "launches",
    "xpu_runtime": "launches", "xpu_driver": "launches", "runtime": "launches", "privateuse1_runtime": "launches",
    "python_function": "python", "user_annotation": "annotations", "cpu_instant_event": "instants",
}  # fmt: skip
"""Event category (lower case; the 1.8 era wrote ``Operator``) to the list of :class:`Trace` that holds it."""

_RANGES = ("ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#")
EXPORT = "fusion-audit"
"""Who made a trace, in the ``otherData`` of those that are exported."""
_NOT_WHOLE = "is damaged before the first event, so there is nothing to save; record or copy it again"
_NO_EVENTS = "no traceEvents in it, so not a profiler trace; give the file of export_chrome_trace"
LONGEST_NAME = 1 << 16
"""Characters of a name that are kept: ten times those of the longest C++ kernels."""
_LATEST_US = 2.0**53
"""Times beyond tell no microseconds apart (that is the year 2255), and a time that is negative is none."""
_MOST_INSTANTS = 1000
"""Marks of memory that are asked for their device: a step on one has it among the first."""
_SHORTEST_US = 1e-6
"""A duration below a picosecond is none."""
_BARE_LIST = re.compile(rb"[ \t\r\n]*\[")
"""The bare form of the Chrome trace format. Looked for in place: these bytes may be gigabytes."""
_OP_ARGS = msgspec.json.Decoder(OpArgs, strict=False)
_LAUNCH_ARGS = msgspec.json.Decoder(LaunchArgs, strict=False)


def load_trace(path: str | Path, reading: Reading | None = None) -> Trace:
    """Read a Kineto trace, ``.json`` or ``.json.gz``.

    Raises:
        AuditError: the file cannot be read, is not JSON, or is not a trace.
    """
    path, reading = Path(path), reading or Reading()
    data = read_trace_bytes(path, reading)
    try:
        file = _decoded(data, path, reading)
    except msgspec.ValidationError as error:
        file = _loosely_decoded(data, path, reading, error)
    _refuse_our_own(file, path)
    if file.traceEvents is None:
        raise AuditError(f"{path}: {_NOT_WHOLE if reading.partial else described(data) or _NO_EVENTS}.")
    if reading.partial:
        reading.notes.append(
            f"Only a part of the trace is there: {len(file.traceEvents):,} whole events were saved, and counts and "
            "times are of these."
        )
    trace = _sorted_by_kind(path, file)
    trace.notes[:0], trace.partial = reading.notes, reading.partial
    return trace


def _decoded(data: bytes, path: Path, reading: Reading) -> _TraceFile:
    if _BARE_LIST.match(data):
        return _TraceFile(decode_trace(data, list[Event], path, reading))
    return decode_trace(data, _TraceFile, path, reading)


def _loosely_decoded(data: bytes, path: Path, reading: Reading, error: msgspec.ValidationError) -> _TraceFile:
    """Event by event: one that is none is left out and counted, and does not cost all others."""
    try:
        if _BARE_LIST.match(data):
            loose = _LooseFile(decode_trace(data, list[msgspec.Raw], path, reading))
        else:
            loose = decode_trace(data, _LooseFile, path, reading)
    except msgspec.ValidationError as wrong:
        raise AuditError(f"{path}: not a trace of a known form ({wrong}); give a profiler's JSON file.") from None
    if loose.traceEvents is None:
        return _TraceFile(None, loose.deviceProperties, loose.otherData)
    events: list[Event] = []
    decode = msgspec.json.Decoder(Event, strict=False).decode
    for raw in loose.traceEvents:
        with suppress(msgspec.DecodeError, RecursionError):
            events.append(decode(raw))
    if not events:
        raise AuditError(f"{path}: not a trace of a known form ({error}); give a profiler's JSON file.") from None
    left_out = len(loose.traceEvents) - len(events)
    reading.notes.append(f"{left_out:,} of {len(loose.traceEvents):,} events are of no known form and were left out.")
    return _TraceFile(events, loose.deviceProperties, loose.otherData)


def _refuse_our_own(file: _TraceFile, path: Path) -> None:
    """An export has findings and modules as tracks, and no shapes: an audit of it would say less than its own."""
    try:
        made = msgspec.json.decode(file.otherData) if file.otherData else None
    except msgspec.DecodeError:
        return
    if isinstance(made, dict) and made.get("producer") == EXPORT:
        raise AuditError(
            f"{path}: is an export of the audited run {made.get('run') or '(without an id)'}, not a profiler's trace; "
            "import the trace that the run was made from, or look at the run with fusion-audit show"
        )


def _sorted_by_kind(path: Path, file: _TraceFile) -> Trace:
    trace = Trace(path, devices=decode_devices(file.deviceProperties))
    timeless = 0
    lists: dict[str | None, list[Event] | None] = {None: None}
    for event in file.traceEvents or ():
        cat = event.cat
        if cat not in lists:
            kind = _KINDS.get((cat or "").lower())
            lists[cat] = None if kind is None else getattr(trace, kind)
        held = lists[cat]
        if held is None:
            continue
        if event.ts is None or not -_LATEST_US < event.ts < _LATEST_US:
            timeless += 1
            continue
        if event.dur is not None and not _SHORTEST_US <= event.dur < _LATEST_US:
            event.dur = 0.0 if 0 <= event.dur < _LATEST_US else None
        if len(event.name) > LONGEST_NAME:
            event.name = event.name[:LONGEST_NAME] + "…"
        if event.ph == "X" or held is trace.instants:
            held.append(event)
    _sort_out_annotations(trace)
    if repeated := drop_repeated(trace):
        trace.notes.append(f"{repeated:,} events are in the file twice, and count once.")
    if timeless:
        trace.notes.append(f"{timeless:,} events have no time at which they began and were left out.")
    if endless := sum(event.dur is None for events in (trace.cpu_ops, trace.kernels) for event in events):
        trace.notes.append(f"{endless:,} ops and kernels have no duration: they count, and their time is not known.")
    return trace


def _sort_out_annotations(trace: Trace) -> None:
    """Until 1.10 the profiler wrote its own ranges as ops."""
    ranges = [event for event in trace.cpu_ops if event.name.startswith(_RANGES)]
    if ranges:
        trace.cpu_ops = [event for event in trace.cpu_ops if not event.name.startswith(_RANGES)]
        trace.annotations = _by_time([*trace.annotations, *ranges])


def decode_op(event: Event) -> OpArgs:
    """``args`` of a cpu_op; defaults where the file's are of another form."""
    try:
        return _OP_ARGS.decode(event.args)
    except (msgspec.DecodeError, RecursionError):
        return _field_by_field(OpArgs, event.args)


def decode_launch(event: Event) -> LaunchArgs:
    """``args`` of a kernel or runtime event; defaults where the file's are of another form."""
    try:
        return _LAUNCH_ARGS.decode(event.args)
    except (msgspec.DecodeError, RecursionError):
        return _field_by_field(LaunchArgs, event.args)


def _field_by_field(kind: type[ArgsT], raw: msgspec.Raw) -> ArgsT:
    """What is of its type of ``raw``, where something is not: a bad stream must not cost the correlation id."""
    known = {}
    with suppress(msgspec.DecodeError, RecursionError):
        held = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        for field_ in msgspec.structs.fields(kind):
            with suppress(msgspec.DecodeError, RecursionError):
                if field_.encode_name in held:
                    known[field_.name] = msgspec.json.decode(held[field_.encode_name], type=field_.type, strict=False)
    return kind(**known)


def by_thread(events: Iterable[Event]) -> dict[tuple[object, object], list[Event]]:
    """Events of each (pid, tid), by start time; an enclosing event comes before what it encloses."""
    threads: dict[tuple[object, object], list[Event]] = {}
    for thread, run in groupby(events, attrgetter("pid", "tid")):  # a file holds long runs of one thread
        threads.setdefault(thread, []).extend(run)
    return {thread: _by_time(held) for thread, held in threads.items()}


def _by_time(events: list[Event]) -> list[Event]:
    starts, durations = times_of(events)
    later = starts[1:] > starts[:-1]
    if (later | ((starts[1:] == starts[:-1]) & (durations[1:] <= durations[:-1]))).all():
        return events
    return [events[i] for i in np.lexsort((-durations, starts)).tolist()]


def times_of(events: Sequence[Event]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and duration of each event in microseconds, 0 where it has none."""
    starts = np.array([event.ts for event in events], np.float64)  # None becomes NaN
    durations = np.array([event.dur for event in events], np.float64)
    return np.nan_to_num(starts, copy=False), np.nan_to_num(durations, copy=False)
