"""The Python calls around recorded ops: which values a call can have handed to its caller, modules, source lines."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from auditor.collect.kineto import Event
from auditor.collect.nesting import Nest
from auditor.graph.model import Source

_PLACE = re.compile(r"(.+)\((\d+)\): (.+)")
_MODULE = "nn.Module: "
_NOT_USERS = re.compile(
    r"^(?:torch|threading|contextlib|functools|runpy|<|importlib)|[/\\]torch[/\\]|[/\\]lib[/\\]python"
)
"""Files that are nobody's model code: PyTorch's own, the interpreter's, frozen modules."""


class Frames:
    """Call tree of one thread, from ``python_function`` events. Frame -1 is outside every recorded call."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._nest = Nest(events)
        self._modules: dict[int, tuple[str, str]] = {-1: ("", "")}
        self._sources: dict[int, Source | None] = {-1: None}

    def at(self, times: Sequence[float]) -> list[int]:
        """Innermost frame at each of ``times`` (ascending)."""
        return self._nest.enclosing(times)

    def end(self, frame: int) -> float:
        """When the call returned, in microseconds."""
        return self._nest.events[frame].end

    def outermost_returned(self, frame: int, time: float) -> int:
        """The outermost call around ``frame`` that has returned by ``time``, -1 where ``frame`` is still open."""
        events, parent, found = self._nest.events, self._nest.parent, -1
        while frame >= 0 and events[frame].end <= time:
            found, frame = frame, parent[frame]
        return found

    def home(self, frame: int, time: float) -> int:
        """The innermost call around ``frame`` that is still open at ``time``."""
        returned = self.outermost_returned(frame, time)
        return frame if returned < 0 else self._nest.parent[returned]

    def module(self, frame: int) -> tuple[str, str]:
        """Path of nested module calls (``Decoder_0.Norm_3``) and the innermost's class."""
        for inner in self._unseen(frame, self._modules):
            path, class_ = self._modules[self._nest.parent[inner]]
            name = self._nest.events[inner].name
            if name.startswith(_MODULE):
                name = name[len(_MODULE) :]
                path, class_ = f"{path}.{name}" if path else name, re.sub(r"_\d+$", "", name)
            self._modules[inner] = (path, class_)
        return self._modules[frame]

    def model_start(self, frame: int) -> float | None:
        """When the outermost module call around ``frame`` began."""
        found = None
        while frame >= 0:
            if self._nest.events[frame].name.startswith(_MODULE):
                found = self._nest.events[frame].start
            frame = self._nest.parent[frame]
        return found

    def module_start(self, frame: int) -> float | None:
        """When the innermost module call around ``frame`` began."""
        while frame >= 0 and not self._nest.events[frame].name.startswith(_MODULE):
            frame = self._nest.parent[frame]
        return self._nest.events[frame].start if frame >= 0 else None

    def source(self, frame: int) -> Source | None:
        """The innermost function that is not PyTorch's; the line is where it is defined, as the profiler writes it."""
        for inner in self._unseen(frame, self._sources):
            place = _PLACE.fullmatch(self._nest.events[inner].name)
            if place and not _NOT_USERS.search(place[1]):
                self._sources[inner] = Source(place[1], int(place[2]), place[3])
            else:
                self._sources[inner] = self._sources[self._nest.parent[inner]]
        return self._sources[frame]

    def _unseen(self, frame: int, seen: Container[int]) -> list[int]:
        """Calls around ``frame`` (with itself) that are not in ``seen``, outermost first."""
        chain: list[int] = []
        while frame not in seen:
            chain.append(frame)
            frame = self._nest.parent[frame]
        return chain[::-1]
