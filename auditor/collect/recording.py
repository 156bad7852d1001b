"""The recording: what one run of a script left on disk, before anybody reads it.

A recording is a folder::

    recording.json        the :class:`Recording` below
    graph.kineto.json     one step with shapes and ``fa.*`` annotations
    graph.et.json         the execution trace of the same step
    timing-K.kineto.json  K = 0…N-1, one step each, plain profiler

``recording.json`` is replaced after every recorded step, so a script that dies leaves what it had.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from auditor.errors import AuditError

FILE = "recording.json"
GRAPH_KINETO = "graph.kineto.json"
GRAPH_ET = "graph.et.json"
STOPPED_EARLY = "Recording stopped early:"
"""How the note begins that says why recording ended before the script did."""

StepKind = Literal["inference", "training", "marked"]


def timing_file(index: int) -> str:
    """Name of the ``index``-th timing trace inside the folder."""
    return f"timing-{index}.kineto.json"


class Root(msgspec.Struct, kw_only=True):
    """An outermost module of the recorded step. ``name`` tells two roots of one class apart."""

    name: str
    class_name: str
    calls: int = 0
    """Calls in the whole run, recorded or not."""


class OwnProfiler(msgspec.Struct, kw_only=True):
    """The place where the script started a profiler of its own."""

    file: str
    line: int


class Recording(msgspec.Struct, kw_only=True):
    """Facts of one recorded run. Times are wall times of one step in microseconds."""

    script: list[str] = []
    torch: str = ""
    device_kind: str = "cpu"
    """``cpu``, ``cuda``, ``hip`` or ``xpu``."""
    device_name: str = ""
    roots: list[Root] = []
    kind: StepKind = "inference"
    steps: int = 0
    """Whole steps seen until recording ended, recorded or not."""
    bare_us: list[float] = []
    timing_us: list[float] = []
    graph_us: float = 0.0
    has_graph: bool = False
    graph_is_first_step: bool = False
    """The graph comes from the first step, which also pays for warm-up."""
    grad_enabled: bool = False
    inference_mode: bool = False
    autocast: str = ""
    """The autocast dtype during the graph step, ``""`` when it was off."""
    exit_code: int = 0
    error: str = ""
    """Last line of the script's traceback."""
    out_of_memory: bool = False
    own_profiler: OwnProfiler | None = None
    plan_sites: int = 0
    plan_applied: int = 0
    """Sites that the plan keeps, where one was to be applied, and how many of them were."""
    notes: list[str] = []
    """Sentences that a reader of the audit must know."""

    def save(self, folder: Path) -> None:
        """Write ``recording.json`` at once or not at all."""
        scratch = folder / f".{FILE}.{os.getpid()}"
        scratch.write_bytes(msgspec.json.format(self._encoded(), indent=1))
        os.replace(scratch, folder / FILE)

    def _encoded(self) -> bytes:
        try:
            return msgspec.json.encode(self)
        except UnicodeEncodeError:  # undecodable bytes of a name, or a surrogate in an error's text
            return msgspec.json.encode(_printable(msgspec.to_builtins(self)))


def _printable(value: Any) -> Any:
    """``value`` with ``\\udcXX`` spelled out where a string holds half a surrogate pair, which no file can."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_printable(one) for one in value]
    if isinstance(value, dict):
        return {key: _printable(one) for key, one in value.items()}
    return value


def load(folder: Path) -> Recording:
    """Read ``recording.json`` of ``folder``; :class:`AuditError` where there is none or it is damaged."""
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Recording)
    except OSError as error:
        raise AuditError(f"{path}: cannot read the recording: {error.strerror or error}.") from error
    except msgspec.DecodeError as error:
        raise AuditError(f"{path}: not a recording of this version: {error}.") from error
