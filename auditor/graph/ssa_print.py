"""Op graph to SSA text, the form that :mod:`auditor.graph.ssa` reads and that FX prints resemble."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Iterator

from auditor.graph.effects import Result, default_kernels, expected_results
from auditor.graph.infer import mutated_by_name, version_of
from auditor.graph.model import Arg, Op, OpGraph, Source, Value, contiguous_strides
from auditor.graph.signatures import DTYPES, is_default, signature, without_trailing_defaults
from auditor.graph.syntax import FRESH, RESERVED


def print_graph(graph_or_ops: OpGraph | Iterable[Op], *, max_items: int | None = 64, overloads: bool = True) -> str:
    """SSA text of a graph, or of some of its ops in the order given.

    Values that come from other ops are declared as inputs; ``return`` names what other ops, or something outside
    the graph, read. Lists of constants and strings longer than ``max_items`` (four times that for strings) are
    cut with ``...``, which does not parse; ``None`` prints them in full. Trailing default arguments are left out.
    """
    whole = isinstance(graph_or_ops, OpGraph)
    ops = graph_or_ops.ops if isinstance(graph_or_ops, OpGraph) else list(graph_or_ops)
    inputs = _inputs(ops)
    if isinstance(graph_or_ops, OpGraph):
        known = {v.id for v in inputs}
        inputs += [v for v in graph_or_ops.values if v.producer is None and v.id not in known]
    printer = _Printer(max_items, overloads)
    lines = list(printer.declarations(sorted(inputs, key=lambda v: v.id)))
    for op in ops:
        lines += printer.op(op)
    returned = [v.id for v in inputs if v.escapes] if whole else []
    return "\n".join([*lines, printer.returned(ops, returned), ""])


def _inputs(ops: list[Op]) -> list[Value]:
    """Values that ``ops`` read and none of them makes."""
    made = {v.id for op in ops for v in op.outputs}
    found = {v.id: v for op in ops for v in (*op.inputs(), *op.mutates) if v.id not in made}
    return list(found.values())


class _Printer:
    """Prints line by line; holds the names given out and what the directives said last."""

    def __init__(self, max_items: int | None, overloads: bool) -> None:
        self.max_items, self.overloads = max_items, overloads
        self.names: dict[int, str] = {}
        self.taken: set[str] = set(RESERVED)
        self.owners: dict[int, Value] = {}
        self.device, self.phase, self.module = "cpu", ("forward", ""), ("", "")
        self.source: Source | None = None

    def declarations(self, values: Iterable[Value]) -> Iterator[str]:
        for value in values:
            yield from self.on_device(value)
            owner = self.owner(value)
            yield f"{self.name(value)}: {self.type(value, owner)}"

    def op(self, op: Op) -> Iterator[str]:
        yield from self.directives(op)
        expected = _expected(op)
        call = self.call(op)
        notes = [self.annotation(v, r) for v, r in zip(op.outputs, _padded(expected, op), strict=True)]
        targets = [self.name(v) for v in op.outputs]
        if len(targets) == 1:
            yield f"{targets[0]}: {notes[0]} = {call}"
            return
        if not _as_expected(op, expected):
            yield from (f"{t}: {n}" for t, n in zip(targets, notes, strict=True))
        yield f"{', '.join(targets)} = {call}" if targets else call

    def returned(self, ops: list[Op], also: list[int]) -> str:
        inside = {id(op) for op in ops}
        read = [
            v.id
            for op in ops
            for v in op.outputs
            if v.escapes or any(id(reader) not in inside for reader in v.consumers)
        ]
        return " ".join(["return", ", ".join(self.names[i] for i in (*also, *read))]).rstrip()

    def directives(self, op: Op) -> Iterator[str]:
        if (op.phase, op.scope) != self.phase:
            self.phase = op.phase, op.scope
            yield f"phase({', '.join(_quoted(part) for part in self.phase if part)})"
        if (op.module, op.module_class) != self.module:
            self.module = (op.module, op.module_class)
            yield f"module({_quoted(op.module)}, {_quoted(op.module_class)})"
        if op.source != self.source:
            self.source = op.source
            where = op.source or Source("", 0)
            yield f"source({_quoted(where.file)}, {where.line}, {_quoted(where.function)})"
        if op.outputs:
            yield from self.on_device(op.outputs[0])

    def on_device(self, value: Value) -> Iterator[str]:
        if value.device != self.device:
            self.device = value.device
            yield f"device({_quoted(value.device)})"

    def name(self, value: Value) -> str:
        """The value's own name where it is an identifier and still free, else one made of its id."""
        if value.id not in self.names:
            own = value.name if value.name.isidentifier() and not keyword.iskeyword(value.name) else ""
            free = own if own and own not in self.taken else f"{own}_{value.id}" if own else f"v{value.id}"
            while free in self.taken:
                free += "_"
            self.taken.add(free)
            self.names[value.id] = free
        return self.names[value.id]

    def owner(self, value: Value) -> Value | None:
        """A value printed before that lies in the same storage: what it is a view of, if it can be."""
        if value.base is not None and value.base.id in self.names:
            return value.base
        first = self.owners.setdefault(value.storage, value)
        return first if first.id in self.names and first is not value else None

    def annotation(self, value: Value, expected: Result | None) -> str:
        """Type of a result; whose storage it lies in only where that differs from what the op's name tells."""
        owner = self.owner(value)
        told = expected.storage_of if expected else None
        if told is None:
            return self.type(value, owner)
        if told.storage == value.storage:
            return self.type(value, None)
        return self.type(value, owner) if owner else f"{self.type(value, None)} in {FRESH}"

    def type(self, value: Value, owner: Value | None) -> str:
        shape = ", ".join(map(str, value.shape))
        text = f"{value.dtype}[{shape}]" if value.shape else value.dtype
        if value.strides != contiguous_strides(value.shape):
            text += f"({', '.join(map(str, value.strides))})"
        if value.offset:
            text += f" @ {value.offset}"
        return f"{text} in {self.names[owner.id]}" if owner is not None else text

    def call(self, op: Op) -> str:
        overload = f".{op.overload}" if self.overloads and op.overload and op.overload != "default" else ""
        args = [*self.arguments(op), *self.text_keywords(op)]
        return f"{op.name}{overload}({', '.join(args)})"

    def arguments(self, op: Op) -> Iterator[str]:
        args, parameters = without_trailing_defaults(op.name, op.args), signature(op.name) or ()
        for i, arg in enumerate(args):
            parameter = parameters[i] if len(args) <= len(parameters) else None  # else an overload of other arguments
            text = self.argument(arg)
            if parameter is None or not parameter.keyword:
                yield text
            elif not is_default(arg, parameter):
                yield f"{parameter.name}={text}"

    def text_keywords(self, op: Op) -> Iterator[str]:
        aliases = bool(op.outputs) and all(v.base is not None for v in op.outputs)
        if len(op.kernels) != default_kernels(op.name, aliases):
            yield f"kernels={len(op.kernels)}"
        if op.mutates != mutated_by_name(op.name, op.args):
            yield f"mutates=[{', '.join(map(self.name, op.mutates))}]"

    def argument(self, arg: Arg) -> str:
        if isinstance(arg, Value):
            return self.name(arg)
        if isinstance(arg, tuple):
            return f"[{', '.join(self.items(arg))}]"
        if isinstance(arg, str):
            return arg if arg in DTYPES else self.string(arg)
        if isinstance(arg, complex):
            return f"complex({_number(arg.real)}, {_number(arg.imag)})"
        return _number(arg)

    def items(self, items: tuple[Arg, ...]) -> Iterator[str]:
        limit = self.max_items
        if limit is None or len(items) <= limit or any(isinstance(i, (Value, tuple)) for i in items):
            yield from map(self.argument, items)
            return
        yield from map(self.argument, items[: limit // 2])
        yield "..."
        yield from map(self.argument, items[len(items) - limit // 2 :])

    def string(self, text: str) -> str:
        limit = None if self.max_items is None else 4 * self.max_items
        return _quoted(text) if limit is None or len(text) <= limit else f"{_quoted(text[:limit])} + ..."


def _quoted(text: str) -> str:
    """A Python string in double quotes, ASCII only: names from traces are untrusted text."""
    body = ascii(text)
    return f'"{body[1:-1]}"' if body[0] == "'" and '"' not in body else body


def _number(value: float | bool | None) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "-inf" if value < 0 else "inf"
    return repr(value)


def _expected(op: Op) -> list[Result] | None:
    try:
        return expected_results(op.name, op.args, op.mutates)
    except ValueError:
        return None


def _padded(expected: list[Result] | None, op: Op) -> list[Result | None]:
    known: list[Result | None] = list(expected or ())
    return known if len(known) == len(op.outputs) else [None] * len(op.outputs)


def _as_expected(op: Op, expected: list[Result] | None) -> bool:
    if expected is None or len(expected) != len(op.outputs):
        return False
    return all(
        version_of(v) == r.type and v.base is r.base and (r.storage_of is None or r.storage_of.storage == v.storage)
        for v, r in zip(op.outputs, expected, strict=True)
    )
