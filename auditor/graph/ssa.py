"""SSA text to op graph, and back: ``parse(print_graph(graph))`` is ``graph`` again.

::

    x: f32[2, 64, 256]                          # an input
    xt: f32[256, 64](1, 256) @ 32 in x          # strides, offset, and whose storage it shares
    sq = aten.pow(x, 2)                         # the result's type is inferred
    var: f32[2, 64, 1] = aten.mean(sq, [-1], True)
    lo, hi = aten.split(x, 128, -1)             # several results; `parts = …` and `parts[0]` will do too
    aten.add_(x, 1)                             # in place: x is the new version from here on
    phase("backward")                           # about the ops that follow, as are the next four
    phase("optimizer", "SGD.step")              # with the range that they run in
    module("model.layers.0.mlp", "LlamaMLP")
    source("model.py", 12, "forward")
    device("cuda:0")
    pace(50, 2)                                 # the host calls an op each 50 µs, its kernels take 2 µs each
    return var                                  # what something outside reads; without it: what no op reads

A declaration of a name that is assigned before it is read types that result: so one of several results can be
annotated. Two keywords belong to the text, not to the op: ``kernels=2`` and ``mutates=[x]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import zip_longest
from typing import get_args

from auditor.graph.clock import Clock
from auditor.graph.effects import TEXT_KEYWORDS, Result, default_kernels, expected_results
from auditor.graph.infer import TensorType, mutated_by_name, version_of
from auditor.graph.layout import Layout
from auditor.graph.model import Arg, Op, OpGraph, Phase, Source, Value, contiguous_strides
from auditor.graph.signatures import Parameter, signature
from auditor.graph.ssa_print import print_graph
from auditor.graph.syntax import (
    FRESH,
    Assign,
    Call,
    Declare,
    Directive,
    Expr,
    Item,
    Literal,
    Ref,
    Return,
    Sequence,
    Statement,
    TypeText,
    statements,
)  # fmt: skip

__all__ = ["parse", "print_graph"]

Bound = Value | tuple[Value, ...]
MAX_KERNELS = 10_000


def parse(text: str, file: str = "<graph>", first_line: int = 1) -> OpGraph:
    """The op graph that ``text`` describes; one kernel (of no duration) for each op that is no view or allocation.

    :param file: named in errors, as is the line, counted from ``first_line``.
    :raises AuditError: naming file, line, column, and what was expected.
    """
    return _Builder().build(statements(text, file, first_line))


class _Builder:
    """Runs statements in order; ``names`` are the values in scope, ``newer`` what in-place ops made of values."""

    def __init__(self) -> None:
        self.graph = OpGraph()
        self.names: dict[str, Bound] = {}
        self.newer: dict[int, Value] = {}
        self.promised: dict[str, TypeText] = {}
        self.phase: Phase = "forward"
        self.module = self.module_class = self.scope = ""
        self.source: Source | None = None
        self.device = "cpu"
        self.clock = Clock()
        self.returned = False

    def build(self, body: Seq[Statement]) -> OpGraph:
        promises = _promises(body)
        for i, statement in enumerate(body):
            match statement:
                case Declare(name=name, type=type_):
                    if i in promises:
                        self.promised[name] = type_
                    else:
                        self.declare(statement)
                case Assign():
                    self.assign(statement)
                case Directive():
                    self.direct(statement)
                case Return():
                    self.finish(statement, last=i == len(body) - 1)
        if not self.returned:
            for op in self.graph.ops:
                for value in op.outputs:
                    value.escapes = not value.consumers
        return self.graph

    def declare(self, statement: Declare) -> None:
        if statement.name in self.names:
            raise statement.place.error(f"`{statement.name}` is declared but already has a value; use another name")
        type_ = self.typed(statement.type)
        owner = statement.type.within
        base = self.one(owner) if owner and owner.name != FRESH else None
        self.names[statement.name] = self.value(type_, statement.name, base)

    def value(self, type_: TensorType, name: str, base: Value | None) -> Value:
        shape, strides, offset = type_.layout
        return self.graph.value(type_.dtype, shape, strides, offset=offset, device=self.device, name=name, base=base)

    def typed(self, text: TypeText) -> TensorType:
        strides = contiguous_strides(text.shape) if text.strides is None else text.strides
        return TensorType(text.dtype, Layout(text.shape, strides, text.offset))

    def assign(self, statement: Assign) -> None:
        if not isinstance(statement.value, Call):
            self.rename(statement)
            return
        promised = [self.promised.pop(name, None) for name in statement.targets]
        types = promised if statement.type is None else [statement.type]
        outputs = self.call(statement.value, statement.targets, types, statement.unpack)
        if statement.unpack:
            self.names.update(zip(statement.targets, outputs, strict=True))
        elif statement.targets:
            self.names[statement.targets[0]] = outputs[0] if len(outputs) == 1 else outputs

    def rename(self, statement: Assign) -> None:
        if statement.unpack or statement.type is not None:
            raise statement.place.error("only the results of an op can be unpacked or annotated")
        self.names[statement.targets[0]] = self.bound(statement.value)

    def call(
        self, call: Call, targets: Seq[str] = (), types: Seq[TypeText | None] = (), unpack: bool = False
    ) -> tuple[Value, ...]:
        """Add the op of ``call``; its results."""
        args, extra = self.arguments(call)
        mutates = self.mutated(call, args, extra)
        results = self.results(call, args, mutates, targets, types, unpack)
        names = targets if len(targets) == len(results) else [f"{n}_{i}" for n in targets for i in range(len(results))]
        outputs = tuple(self.output(r, n) for r, n in zip_longest(results, names, fillvalue=""))  # type: ignore[arg-type]
        for old in mutates:
            self.supersede(old, outputs)
        aliases = bool(results) and all(r.base is not None for r in results)
        self.graph.add(self.op(call, args, outputs, mutates, self.kernels(call, extra, aliases)))
        return outputs

    def results(
        self, call: Call, args: tuple[Arg, ...], mutates: tuple[Value, ...], targets: Seq[str],
        types: Seq[TypeText | None], unpack: bool,
    ) -> list[Result]:  # fmt: skip
        """What the op makes: as annotated, else as inferred."""
        known = self.expected(call, args, mutates, needed=bool(targets) and not all(types))
        if known is None:
            known = [None] * len(types)
        if targets and (unpack or any(types)) and len(targets) != len(known):
            raise call.place.error(f"{call.name} has {len(known)} results, but {len(targets)} names are given")
        return [
            self.annotated(t, r, mutates) if t else _known(r)
            for r, t in zip_longest(known, types[: len(known)], fillvalue=None)
        ]

    def expected(
        self, call: Call, args: tuple[Arg, ...], mutates: tuple[Value, ...], *, needed: bool
    ) -> list[Result | None] | None:
        try:
            known = expected_results(call.name, args, mutates)
        except ValueError as e:
            if needed or not call.place:
                raise call.place.error(f"{call.name}: {e}") from None
            return None
        if known is None and needed:
            raise call.place.error(
                f"the result of {call.name} cannot be inferred; annotate it: `name: f32[2, 64] = {call.name}(…)`, "
                "or put one line `name: f32[2, 64]` for each of several results before it"
            )
        return None if known is None else list(known)

    def annotated(self, text: TypeText, known: Result | None, mutates: tuple[Value, ...]) -> Result:
        type_ = self.typed(text)
        if text.within is None:
            return Result(type_, known.storage_of, known.base) if known else Result(type_)
        if text.within.name == FRESH:
            return Result(type_)
        owner = self.one(text.within)
        return Result(type_, owner, None if owner in mutates else owner)

    def output(self, result: Result, name: str) -> Value:
        made = self.value(result.type, name, result.base)
        if result.storage_of is not None:
            made.storage = result.storage_of.storage
        return made

    def supersede(self, old: Value, outputs: tuple[Value, ...]) -> None:
        """From here on the name of ``old`` means the output that is its new version."""
        for new in outputs:
            if new.storage == old.storage and version_of(new) == version_of(old):
                self.newer[old.id] = new
                return

    def op(
        self, call: Call, args: tuple[Arg, ...], outputs: tuple[Value, ...], mutates: tuple[Value, ...], kernels: int
    ) -> Op:
        launched, host = self.clock.launch(call.name, kernels)
        return Op(
            0, call.name, args, outputs, call.overload, launched, mutates, self.module, self.module_class,
            self.source, self.phase, host=host, scope=self.scope,
        )  # fmt: skip

    def kernels(self, call: Call, extra: dict[str, Arg], aliases: bool) -> int:
        count = extra.get("kernels", default_kernels(call.name, aliases))
        if type(count) is not int or not 0 <= count <= MAX_KERNELS:
            raise call.place.error(f"`kernels` takes a number from 0 to {MAX_KERNELS}")
        return count

    def mutated(self, call: Call, args: tuple[Arg, ...], extra: dict[str, Arg]) -> tuple[Value, ...]:
        if "mutates" not in extra:
            return mutated_by_name(call.name, args)
        named = extra["mutates"]
        values = tuple(v for v in (named if isinstance(named, tuple) else (named,)) if isinstance(v, Value))
        if isinstance(named, tuple) and len(values) == len(named):
            return values
        raise call.place.error("`mutates` takes a list of values: `mutates=[x]`")

    def arguments(self, call: Call) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
        """Arguments in schema order, and the keywords that belong to the text."""
        args = [self.argument(a) for a in call.args]
        extra: dict[str, Arg] = {}
        keywords: dict[str, Arg] = {}
        for name, expr in call.keywords:
            into = extra if name in TEXT_KEYWORDS else keywords
            if name in into:
                raise expr.place.error(f"{call.name}(…) got `{name}` twice")
            into[name] = self.argument(expr)
        return (tuple(args) if not keywords else _in_schema_order(call, args, keywords)), extra

    def argument(self, expr: Expr) -> Arg:
        match expr:
            case Literal(value=value):
                return value
            case Sequence(items=items):
                return tuple(self.argument(i) for i in items)
        return self.bound(expr)

    def bound(self, expr: Expr) -> Bound:
        """The value, or the several values, that a name, an item or a nested call stands for."""
        match expr:
            case Ref():
                return self.lookup(expr)
            case Item(of=of, index=index, place=place):
                several = self.call(of) if isinstance(of, Call) else self.bound(of)
                if not isinstance(several, tuple) or not -len(several) <= index < len(several):
                    raise place.error(f"there is no result number {index} here")
                return several[index]
            case Call():
                outputs = self.call(expr, (), (), False)
                if not outputs:
                    raise expr.place.error(f"the result of {expr.name} cannot be inferred; name and annotate it")
                return outputs[0] if len(outputs) == 1 else outputs
        raise expr.place.error("expected the name of a value")

    def lookup(self, ref: Ref) -> Bound:
        if ref.name not in self.names:
            raise ref.place.error(f"`{ref.name}` has no value yet; declare it before: `{ref.name}: f32[2, 64]`")
        bound = self.names[ref.name]
        return tuple(map(self.latest, bound)) if isinstance(bound, tuple) else self.latest(bound)

    def latest(self, value: Value) -> Value:
        last = value
        while last.id in self.newer:
            last = self.newer[last.id]
        while value is not last:  # shorten the path for the next reader
            following = self.newer[value.id]
            self.newer[value.id] = last
            value = following
        return last

    def one(self, ref: Ref) -> Value:
        found = self.lookup(ref)
        if isinstance(found, tuple):
            raise ref.place.error(f"`{ref.name}` stands for {len(found)} values; take one: `{ref.name}[0]`")
        return found

    def direct(self, statement: Directive) -> None:
        match statement:
            case Directive(name="phase", args=[str() as phase]) if phase in get_args(Phase):
                self.phase, self.scope = phase, ""  # type: ignore[assignment]
            case Directive(name="phase", args=[str() as phase, str() as scope]) if phase in get_args(Phase):
                self.phase, self.scope = phase, scope  # type: ignore[assignment]
            case Directive(name="module", args=[str() as path, str() as class_]):
                self.module, self.module_class = path, class_
            case Directive(name="source", args=[str() as file, int() as line, *rest]) if _is_function(rest):
                self.source = Source(file, line, *rest) if file else None  # type: ignore[arg-type]
            case Directive(name="device", args=[str() as device]):
                self.device = device
                self.graph.device_kind = device.partition(":")[0]
            case Directive(name="pace", args=[(int() | float()) as call_us, (int() | float()) as kernel_us]):
                self.clock.set_pace(call_us, kernel_us)
            case _:
                raise statement.place.error(f"expected {_FORMS_OF_DIRECTIVES[statement.name]}")

    def finish(self, statement: Return, *, last: bool) -> None:
        if not last:
            raise statement.place.error("`return` has to be the last line")
        self.returned = True
        for expr in statement.values:
            bound = self.bound(expr)
            for value in bound if isinstance(bound, tuple) else (bound,):
                value.escapes = True


_FORMS_OF_DIRECTIVES = {
    "phase": '`phase("forward")`, `phase("backward")` or `phase("optimizer")`, a scope behind it or none',
    "module": '`module("path.of.the.module", "Class")`',
    "source": '`source("file.py", 12, "function")`',
    "device": '`device("cuda:0")`',
    "pace": "`pace(50, 2)`, in microseconds",
}


def _is_function(rest: Seq[object]) -> bool:
    return not rest or (len(rest) == 1 and isinstance(rest[0], str))


def _known(result: Result | None) -> Result:
    assert result is not None, "a result is annotated or inferred"
    return result


def _in_schema_order(call: Call, args: list[Arg], keywords: dict[str, Arg]) -> tuple[Arg, ...]:
    parameters = signature(call.name)
    if parameters is None:
        raise call.place.error(f"the argument names of {call.name} are not known; write its arguments without keywords")
    places = {p.name: i for i, p in enumerate(parameters)}
    for name in keywords:
        if name not in places:
            raise call.place.error(f"{call.name} has no argument `{name}`; it takes {', '.join(places)}")
        if places[name] < len(args):
            raise call.place.error(f"{call.name}(…) got `{name}` twice")
    last = max(places[name] for name in keywords)
    filled = [_argument(call, p, keywords) for p in parameters[len(args) : last + 1]]
    return (*args, *filled)


def _argument(call: Call, parameter: Parameter, keywords: dict[str, Arg]) -> Arg:
    if parameter.name not in keywords and parameter.required:
        raise call.place.error(f"{call.name}(…) lacks its argument `{parameter.name}`")
    return keywords.get(parameter.name, parameter.default)


def _promises(body: Seq[Statement]) -> set[int]:
    """Declarations of names that are assigned before they are read: they type a result."""
    following: dict[str, str] = {}
    found = set()
    for i in reversed(range(len(body))):
        match body[i]:
            case Declare(name=name, type=type_):
                if following.get(name) == "assigned":
                    found.add(i)
                following[name] = "declared"
                if type_.within:
                    following[type_.within.name] = "read"
            case Assign(targets=targets, value=value, type=annotation):
                following.update(dict.fromkeys(targets, "assigned"))
                following.update(dict.fromkeys(_names(value), "read"))
                if annotation and annotation.within:
                    following[annotation.within.name] = "read"
            case Return(values=values):
                following.update(dict.fromkeys((n for v in values for n in _names(v)), "read"))
    return found


def _names(expr: Expr) -> Iterator[str]:
    match expr:
        case Ref(name=name):
            yield name
        case Item(of=of):
            yield from _names(of)
        case Sequence(items=items):
            for item in items:
                yield from _names(item)
        case Call(args=args, keywords=keywords):
            for arg in (*args, *(value for _, value in keywords)):
                yield from _names(arg)
