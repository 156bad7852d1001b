"""Random op graphs that are dense in what rules look for, as SSA text: a failing example is readable as it is.

Values are f32 or bf16, full [16, 16], a column of row results [16, 1], or a weight [16]. The square size lets
transposes, GEMMs and rows fit anywhere, so that patterns meet in ways that no model has.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from auditor.graph.model import OpGraph
from auditor.graph.ssa import parse

N = 16
UNARY = ("relu", "neg", "exp", "tanh", "sigmoid", "silu", "gelu", "abs", "rsqrt", "sqrt", "reciprocal")
BINARY = ("add", "sub", "mul", "div", "maximum")
PATTERNS = {
    "rms norm": """
        {r} = aten.mean(aten.pow({x}, 2), [-1], True)
        {s} = aten.mul({x}, aten.rsqrt(aten.add({r}, 1e-06)))
        {y} = aten.mul({s}, w)""",
    "add + rms norm": """
        {s} = aten.add({x}, {z})
        {r} = aten.mean(aten.pow({s}, 2), [-1], True)
        {y} = aten.mul(aten.mul({s}, aten.rsqrt(aten.add({r}, 1e-06))), w)""",
    "layer norm": """
        {s} = aten.sub({x}, aten.mean({x}, [-1], True))
        {r} = aten.mean(aten.pow({s}, 2), [-1], True)
        {y} = aten.add(aten.mul(aten.mul({s}, aten.rsqrt(aten.add({r}, 1e-05))), w), b)""",
    "add + native layer norm": """
        {s} = aten.add({x}, {z})
        {y}, {r}, _i{y} = aten.native_layer_norm({s}, [16], w, b, 1e-05)""",
    "rope": """
        _l{y}, _h{y} = aten.split({x}, 8, -1)
        {s} = aten.cat([aten.neg(_h{y}), _l{y}], -1)
        {y} = aten.add(aten.mul({x}, {z}), aten.mul({s}, {u}))""",
    "gate": """
        {s} = aten.silu({x})
        {y} = aten.mul({s}, {z})""",
    "masked softmax": """
        {s} = aten.add(aten.mul({x}, 0.125), {z})
        {y} = aten._softmax({s}, -1, False)""",
    "attention": """
        _q{y} = aten.view({x}, [1, 16, 16])
        _k{y} = aten.view({z}, [1, 16, 16])
        {s} = aten.mul(aten.bmm(_q{y}, _k{y}), 0.25)
        _o{y} = aten.bmm(aten._softmax({s}, -1, False), _k{y})
        {y} = aten.view(_o{y}, [16, 16])""",
    "epilogue": """
        {s} = aten.addmm(b, {x}, m)
        {y} = aten.gelu({s})""",
    "siblings": """
        {s} = aten.mm({x}, m)
        {y} = aten.mm({x}, m2)""",
}
"""Statements over the full values x, z and u; they make the full values s and y and the row results r."""


class _Writer:
    """Grows a program; ``full``, ``rows`` hold what may be read, ``storage`` the content behind each name."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines = ["w: f32[16]", "b: f32[16]", "m: f32[16, 16]", "m2: f32[16, 16]"]
        self.full: list[str] = []
        self.rows: list[str] = []
        self.made: list[str] = []
        self.storage: dict[str, str] = {}
        self.count = 0
        for _ in range(3):
            name = self.name()
            self.lines.append(f"{name}: f32[16, 16]")
            self.full.append(name)

    def name(self, of: str | None = None) -> str:
        name = f"v{self.count}"
        self.count += 1
        self.storage[name] = self.storage[of] if of else name
        return name

    def one(self) -> str:
        """A full value; recent ones more often, so that chains grow."""
        recent = self.full[-3:]
        return self.draw(st.sampled_from(recent) | st.sampled_from(self.full))

    def put(self, text: str, name: str, *, row: bool = False) -> None:
        self.lines.append(f"{name} = {text}")
        self.made.append(name)
        (self.rows if row else self.full).append(name)

    def step(self) -> None:
        kinds = ("unary", "unary", "binary", "binary", "constant", "reduce", "rows", "cast", "view", "slice", "gemm")
        more = ("in place", "softmax", "sync", "collective", "dropout", "pattern", "pattern", "pattern", "copy")
        getattr(self, "_" + self.draw(st.sampled_from(kinds + more)).replace(" ", "_"))()

    def _unary(self) -> None:
        self.put(f"aten.{self.draw(st.sampled_from(UNARY))}({self.one()})", self.name())

    def _binary(self) -> None:
        op, other = self.draw(st.sampled_from(BINARY)), self.draw(st.sampled_from([self.one(), "w", "b"]))
        self.put(f"aten.{op}({self.one()}, {other})", self.name())

    def _constant(self) -> None:
        text = self.draw(
            st.sampled_from(["add({}, 1e-06)", "mul({}, 0.5)", "div({}, 8.0)", "pow({}, 2)", "add({}, 1)"])
        )
        self.put("aten." + text.format(self.one()), self.name())

    def _reduce(self) -> None:
        op, dim = self.draw(st.sampled_from(["mean", "sum", "amax"])), self.draw(st.sampled_from([-1, -1, 0]))
        if dim == 0:  # [1, 16] broadcasts over the rows: a full value again
            inner = f"aten.{op}({self.one()}, [0], True)"
            self.put(f"aten.sub({self.one()}, {inner})", self.name())
        else:
            self.put(f"aten.{op}({self.one()}, [-1], True)", self.name(), row=True)

    def _rows(self) -> None:
        if self.rows:
            op = self.draw(st.sampled_from(BINARY))
            self.put(f"aten.{op}({self.one()}, {self.draw(st.sampled_from(self.rows))})", self.name())

    def _cast(self) -> None:
        self.put(f"aten._to_copy({self.one()}, {self.draw(st.sampled_from(['bf16', 'f32']))})", self.name())

    def _view(self) -> None:
        x = self.one()
        text = self.draw(st.sampled_from(["t({})", "view(aten.unsqueeze({}, 0), [16, 16])", "alias({})"]))
        self.put("aten." + text.format(x), self.name(x))

    def _slice(self) -> None:
        x, low, high = self.one(), self.name(), self.name()
        self.lines.append(f"{low}, {high} = aten.split({x}, 8, -1)")
        self.put(f"aten.cat([aten.neg({high}), {low}], -1)", self.name())

    def _gemm(self) -> None:
        text = self.draw(st.sampled_from(["mm({}, m)", "mm({}, m2)", "addmm(b, {}, m)"]))
        self.put("aten." + text.format(self.f32()), self.name())

    def f32(self) -> str:
        """A full value in f32: GEMMs take one dtype."""
        name = self.name()
        self.lines.append(f"{name} = aten._to_copy({self.one()}, f32)")
        return name

    def _in_place(self) -> None:
        x = self.one()
        text = self.draw(st.sampled_from(["add_({}, 1)", "mul_({}, w)", "relu_({})", "add_({}, {})"]))
        self.lines.append("aten." + text.format(x, self.one()))
        stale = [n for n in self.full if n != x and self.storage[n] == self.storage[x]]
        self.full = [n for n in self.full if n not in stale]
        self.made = [n for n in self.made if n not in stale]

    def _softmax(self) -> None:
        self.put(f"aten._softmax({self.one()}, {self.draw(st.sampled_from([-1, 0]))}, False)", self.name())

    def _sync(self) -> None:
        self.lines.append(f"aten._local_scalar_dense(aten.amax({self.one()}))")

    def _collective(self) -> None:
        name = self.name()
        self.lines.append(f"{name}: f32[16, 16] = _c10d_functional.all_reduce({self.one()}, 'sum')")
        self.full.append(name)

    def _dropout(self) -> None:
        name = self.name()
        self.lines.append(f"{name}, _m{name} = aten.native_dropout({self.one()}, 0.1, True)")
        self.full.append(name)

    def _copy(self) -> None:
        self.put(f"aten.clone({self.one()})", self.name())

    def _pattern(self) -> None:
        text = PATTERNS[self.draw(st.sampled_from(sorted(PATTERNS)))]
        names = {k: self.name() for k in "rsy"}
        floats = {k: self.f32() if "mm(" in text else self.one() for k in "xzu"}
        self.lines += [line.strip() for line in text.format(**names, **floats).splitlines() if line.strip()]
        self.full += [names["y"], *([names["s"]] if "bmm" not in text else [])]
        self.made += [names["y"]]
        if "{r}" in text and "native" not in text:
            self.rows.append(names["r"])


@st.composite
def programs(draw: st.DrawFn, max_steps: int = 14) -> str:
    """SSA text of 1 to ``max_steps`` steps, with a backward phase and random results now and then."""
    writer = _Writer(draw)
    steps = draw(st.integers(1, max_steps))
    turn = draw(st.integers(0, 3 * steps))
    for i in range(steps):
        if i == turn:
            writer.lines.append('phase("backward")')
        writer.step()
    if writer.made and draw(st.booleans()):
        kept = draw(st.lists(st.sampled_from(writer.made), min_size=1, max_size=3, unique=True))
        writer.lines.append(f"return {', '.join(kept)}")
    return "\n".join(writer.lines)


def with_durations(graph: OpGraph, seed: int) -> OpGraph:
    """Give every kernel a random duration (some 0) and lay them one after another, with gaps."""
    chance, now = random.Random(seed), 0.0
    for op in graph.ops:
        timed = []
        for kernel in op.kernels:
            dur = chance.choice([0.0, chance.uniform(0.1, 5.0), chance.uniform(5.0, 500.0)])
            timed.append(replace(kernel, start_us=now, dur_us=dur))
            now += dur + chance.choice([0.0, chance.uniform(0.0, 20.0)])
        op.kernels = tuple(timed)
    graph.step_us = chance.choice([0.0, now, 2 * now])
    return graph


def graph_of(text: str, seed: int | None = None) -> OpGraph:
    """The graph of a program; with a seed also random kernel times."""
    graph = parse(text)
    return graph if seed is None else with_durations(graph, seed)
