"""The Python calls around recorded ops: which values a call can have handed to its caller, modules, source lines."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import msgspec

from auditor.collect.closures import BACKWARD, is_backward_node, takes_up
from auditor.collect.kineto import Event, OpArgs, decode_op
from auditor.collect.nesting import Nest
from auditor.collect.recorded_inputs import TensorSpec, decode_inputs, raw_inputs, tensors_in
from auditor.graph.model import ACCUMULATE, Source

_PLACE = re.compile(r"(.+)\((\d+)\): (.+)")
_MODULE = "nn.Module: "
_NOT_USERS = re.compile(
    r"^(?:torch[/\\]|<|importlib)|(?:^|[/\\])(?:threading|contextlib|functools|runpy|torch_guard)\.py$"
    r"|[/\\]torch[/\\]|[/\\]lib[/\\]python"
)
"""Files that are nobody's model code: PyTorch's own, the interpreter's, frozen modules, AITER's wrapper of ops."""
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
"""Where packages are; the Python tracer of 1.11 and later writes the paths of their files without it."""
_STACKS = 1 << 13
"""Call stacks that are kept: a program has thousands, each of kilobytes."""
_BACKSLASHES = str.maketrans({"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
"""Kineto wrote Windows paths as they are (https://github.com/pytorch/kineto/issues/617), and to JSON the ``\\n`` of
``C:\\new.py`` is a line break, which no path holds."""


class Place(msgspec.Struct, eq=False, gc=False):
    """What the calls around a frame, and itself, say of it.

    ``module`` is the path of nested module calls (``Decoder_0.Norm_3``), ``module_class`` the innermost's class;
    ``model_start`` and ``module_start`` are when the outermost and the innermost of them began. ``source`` is the
    innermost function that is not PyTorch's; its line is where it is defined, as the profiler writes it.
    """

    module: str = ""
    module_class: str = ""
    model_start: float | None = None
    module_start: float | None = None
    source: Source | None = None


NOWHERE = Place()


@dataclass(slots=True, frozen=True)
class NodeCall:
    """A call of an autograd node: the frame that it is, and the gradients that it was given.

    ``gathers``: it adds its gradient to a parameter's. ``name``: ``MulBackward0``.
    """

    call: int = -1
    gradients: tuple[TensorSpec, ...] = ()
    gathers: bool = False
    name: str = ""


NO_NODE = NodeCall()


class Frames:
    """Call tree of one thread, from ``python_function`` events. Frame -1 is outside every recorded call."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._nest = Nest(events)
        self._places = {-1: NOWHERE}
        self._nodes: dict[int, NodeCall] = {}
        self.ends = self._nest.ends
        """When each call returned, in microseconds."""

    def at(self, times: Sequence[float]) -> list[int]:
        """Innermost frame at each of ``times``."""
        return self._nest.enclosing(times)

    def node(self, frame: int) -> NodeCall:
        """The autograd node that the call is, or that is in its range."""
        known = self._nodes.get(frame)
        if known is None:
            known = self._nodes[frame] = self._node(frame)
        return known

    def _node(self, frame: int) -> NodeCall:
        event = self._nest.events[frame] if frame >= 0 else None
        if event is None or not is_backward_node(event.name):
            return NO_NODE
        if event.name.startswith(BACKWARD):
            inner = frame + 1
            within = inner < len(self._nest.events) and self._nest.parent[inner] == frame
            return self.node(inner) if within else NodeCall(frame)
        around = self._nest.parent[frame]
        call = around if around >= 0 and self._nest.events[around].name.startswith(BACKWARD) else frame
        specs = tensors_in(decode_inputs(*raw_inputs(decode_op(event))).values)
        return NodeCall(call, tuple(spec for _, spec in specs), event.name.endswith("AccumulateGrad"), event.name)

    def begin(self, frame: int) -> float:
        """When the call began, in microseconds."""
        return self._nest.starts[frame] if frame >= 0 else 0.0

    def hands_on(self, shape: tuple[int, ...], after: float, before: float) -> bool:
        """Whether a node that may give its gradient, of ``shape``, to several others began between the two times."""
        starts = self._forks.get(shape, [])
        at = bisect_right(starts, after)
        return at < len(starts) and starts[at] < before

    @cached_property
    def _forks(self) -> dict[tuple[int, ...], list[float]]:
        """When nodes began that may give their gradient to several others, in order, by its shape."""
        found: dict[tuple[int, ...], list[float]] = {}
        for frame, event in enumerate(self._nest.events):
            name = event.name
            if is_backward_node(name) and not _is_no_fork(name):
                for spec in self._node(frame).gradients:
                    found.setdefault(spec.shape, []).append(self._nest.starts[frame])
        return found

    def returned(self, frame: int, time: float) -> tuple[int, int]:
        """The outermost call around ``frame`` that has returned by ``time``, and the innermost that is still open.

        Either is -1 where there is none.
        """
        ends, parent, found = self.ends, self._nest.parent, -1
        while frame >= 0 and ends[frame] <= time:
            found, frame = frame, parent[frame]
        return found, frame

    def place(self, frame: int) -> Place:
        """Module and source of a frame; frames that add nothing share the place of the call around them."""
        places, parent = self._places, self._nest.parent
        known = places.get(frame)
        if known is not None:
            return known
        unseen: list[int] = []
        while frame not in places:
            unseen.append(frame)
            frame = parent[frame]
        place = places[frame]
        for inner in reversed(unseen):
            place = places[inner] = self._inside(place, inner)
        return place

    def _inside(self, around: Place, frame: int) -> Place:
        module, class_, source = _meaning(self._nest.events[frame].name)
        if module:
            start = self._nest.starts[frame]
            return Place(
                f"{around.module}.{module}" if around.module else module, class_,
                start if around.model_start is None else around.model_start, start, around.source,
            )  # fmt: skip
        if source is None or source is around.source:
            return around
        return Place(around.module, around.module_class, around.model_start, around.module_start, source)


@cache
def _is_no_fork(node: str) -> bool:
    """Whether a node of this name gives its gradient to one node at most; a range around a node is none."""
    return node.startswith((BACKWARD, "Addmm", "Baddbmm")) or takes_up(node) or node.endswith(ACCUMULATE)


@lru_cache(maxsize=65536)
def _meaning(name: str) -> tuple[str, str, Source | None]:
    """Module and its class, where a call of this name is one's; else the user's function that it is."""
    if name.startswith(_MODULE):
        module = name[len(_MODULE) :]
        return module, re.sub(r"_\d+$", "", module), None
    return "", "", _source(name)


def _source(name: str) -> Source | None:
    """The user's function that a call of this name is, ``None`` for PyTorch's and what is no function."""
    place = _PLACE.fullmatch(name.translate(_BACKSLASHES))
    if place is None:
        return None
    file = _INSTALLED.sub("", place[1])
    return None if _NOT_USERS.search(file) else Source(file, int(place[2]), place[3])


def source_in_stack(args: OpArgs) -> Source | None:
    """The innermost function of the ``Call stack`` of an op that is not PyTorch's, with the line that it was at.

    PyTorch 1.8 to 1.12 wrote the Python calls around an op into the op, the innermost first, and no events of them.
    """
    return _innermost(bytes(args.call_stack)) if args.call_stack else None


@lru_cache(maxsize=_STACKS)
def _innermost(stack: bytes) -> Source | None:
    with suppress(msgspec.DecodeError):  # a list, or null
        frames = msgspec.json.decode(stack, type=str).split(";")
        return next((source for frame in frames if (source := _source(frame.strip())) is not None), None)
    return None
