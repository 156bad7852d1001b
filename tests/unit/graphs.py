"""Random op graphs for property tests, and what it means that two graphs are the same."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from auditor.graph.effects import default_kernels
from auditor.graph.model import Arg, Kernel, Op, OpGraph, Source, Value
from auditor.graph.signatures import without_trailing_defaults

NAMES = st.sampled_from(["", "x", "y", "weight", "f32", "class", "not a name", "aten", "v3", "x_1", "größe"])
NASTY = st.text(max_size=12) | st.sampled_from(['a"b', "a'b", "\\", "\n", "</script>", "f32", "\0", "'\"", "${x}"])
CONSTANTS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | NASTY
)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
FUNCTIONAL = ("aten.add", "aten.mul", "aten.mean", "aten._to_copy", "aten.neg", "aten.div", "mylib.norm", "aten.empty")
LISTS = st.recursive(CONSTANTS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


class Drawn:
    """A graph that grows op by op; an old version is not read after its storage was overwritten."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.graph = draw, OpGraph()
        self.readable: list[Value] = []
        self.phase, self.module, self.source = "forward", ("", ""), None
        for _ in range(draw(st.integers(1, 3))):
            self.readable.append(self.value())

    def value(self, **more: Any) -> Value:
        shape = self.draw(SHAPES)
        strides = self.draw(st.none() | st.tuples(*[st.integers(0, 9)] * len(shape)))
        dtype = self.draw(st.sampled_from(["f32", "bf16", "bool", "i64", "c64"]))
        offset = self.draw(st.integers(0, 3))
        return self.graph.value(
            dtype, shape, strides, offset=offset, name=self.draw(NAMES), device=self.device(), **more
        )

    def device(self) -> str:
        return self.draw(st.sampled_from(["cpu", "cuda:0"]))

    def op(self) -> None:
        kind = self.draw(st.sampled_from(["functional", "functional", "view", "in place", "several", "none"]))
        x = self.draw(st.sampled_from(self.readable))
        device = self.device()
        if kind == "in place":
            new = self.graph.value(x.dtype, x.shape, x.strides, offset=x.offset, device=device, name=self.draw(NAMES))
            new.storage = x.storage
            self.add("aten.add_", (x, self.other()), [new], (x,))
            self.readable.remove(x)
            x.escapes = False  # who reads it later from outside reads the new version
        elif kind == "view":
            view = self.graph.value(x.dtype, x.shape, x.strides, offset=x.offset, device=device, base=x)
            self.add("aten.alias", (x,), [view])
        else:
            count = {"functional": 1, "several": self.draw(st.integers(2, 3)), "none": 0}[kind]
            outs = [self.value() for _ in range(count)]
            for out in outs:
                out.device = device
            name = self.draw(st.sampled_from(FUNCTIONAL)) if count == 1 else "mylib.many"
            self.add(name, (x, self.other(), *self.draw(st.lists(LISTS, max_size=2))), outs)

    def other(self) -> Arg:
        if self.draw(st.booleans()):
            return tuple(self.draw(st.lists(st.sampled_from(self.readable), max_size=3)))
        return self.draw(st.sampled_from(self.readable) | CONSTANTS)

    def add(self, name: str, args: tuple[Arg, ...], outs: list[Value], mutates: tuple[Value, ...] = ()) -> None:
        if self.draw(st.integers(0, 3)) == 0:
            self.phase = self.draw(st.sampled_from(["forward", "backward", "optimizer"]))
            self.module = (self.draw(NASTY), self.draw(NASTY))
            self.source = self.draw(st.none() | st.builds(Source, NASTY.filter(bool), st.integers(0, 99), NASTY))
        usual = default_kernels(name, bool(outs) and all(o.base for o in outs))
        count = self.draw(st.sampled_from([usual, usual, usual, 0, 2]))
        kernels = tuple(Kernel(self.draw(NASTY), 1.5 * i, 0.25, i, 0) for i in range(count))
        overload = self.draw(st.sampled_from(["", "Tensor", "out"]))
        self.graph.add(
            Op(0, name, args, tuple(outs), overload, kernels, mutates, *self.module, self.source, self.phase)
        )
        self.readable += outs
        for out in outs:
            out.escapes = self.draw(st.booleans())


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 8) -> OpGraph:
    """Graphs of functional, view, in-place, several-result and resultless ops."""
    drawn = Drawn(draw)
    for _ in range(draw(st.integers(0, max_ops))):
        drawn.op()
    return drawn.graph


def structure(graph: OpGraph) -> list[Any]:
    """What SSA text holds of a graph: all but names of values, times and threads. Values by order of mention."""
    order: dict[int, int] = {}
    storages: dict[int, int] = {}

    def ref(v: Value) -> tuple[Any, ...]:
        place = order.setdefault(v.id, len(order))
        storage = storages.setdefault(v.storage, len(storages))
        base = None if v.base is None else order.setdefault(v.base.id, len(order))
        return ("value", place, v.dtype, v.shape, v.strides, v.offset, storage, v.device, base, v.escapes)

    def arg(a: Arg) -> Any:
        if isinstance(a, Value):
            return ref(a)
        return tuple(map(arg, a)) if isinstance(a, tuple) else (type(a).__name__, repr(a))

    rows: list[Any] = [sorted(ref(v) for v in graph.values if v.producer is None)]
    for op in graph.ops:
        args = tuple(arg(a) for a in without_trailing_defaults(op.name, op.args))
        outputs, mutates = tuple(map(ref, op.outputs)), tuple(map(ref, op.mutates))
        about = (op.module, op.module_class, op.source, op.phase, len(op.kernels))
        rows.append((op.name, op.overload, args, outputs, mutates, *about))
    return rows
