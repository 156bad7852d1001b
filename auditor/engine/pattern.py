"""Patterns: a rule's SSA text, compiled to a small graph of canonical calls.

The text is what users see in FX prints, and valid Python::

    sq  = aten.pow(x, 2)
    var = aten.mean(sq, [-1])
    inv = aten.rsqrt(aten.add(var, c_eps))     # c_* binds a constant
    y   = aten.mul(aten.mul(x, inv), weight)

Beyond that: ``(aten.silu | aten.gelu)(g)`` is either op; ``anyof.gemm(a, b, ...)`` is any op of a class;
``optional(aten.mul(s, c_scale))`` may be absent (its first operand takes its place); ``...`` as the last
argument ignores the rest; ``_`` is any argument. Casts and copies are looked through, so they are not
written. The last statement is the anchor of the rule's result.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from auditor.errors import AuditError
from auditor.graph.normal import ConstantVariable, normalise_call
from auditor.graph.ops import COMMUTATIVE, GEMM

_ACTIVATIONS = (
    "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "hardswish", "hardsigmoid", "hardtanh", "mish", "softplus",
)  # fmt: skip

OP_CLASSES: dict[str, frozenset[str]] = {
    "gemm": frozenset(n.removeprefix("aten.") for n in GEMM if "backward" not in n),
    "activation": frozenset(("relu", "relu6", *_ACTIVATIONS)),
    "activation_backward": frozenset(f"{name}_backward" for name in ("threshold", *_ACTIVATIONS)),
    "matmul": frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"}),
    "rounding": frozenset({"round", "clamp"}),
    "nll_loss": frozenset({"nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward"}),
    "nll_loss_backward": frozenset({"nll_loss_backward", "nll_loss2d_backward"}),
    "batched_gemm": frozenset({"bmm", "baddbmm", "matmul"}),
    "mask": frozenset({"add", "masked_fill"}),
}
"""Names that ``anyof.NAME(…)`` stands for; canonical kinds."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor that comes from outside the pattern; the same name is the same tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class Wildcard:
    """``_``: any argument."""


@dataclass(frozen=True, slots=True)
class Rest:
    """``...``: whatever arguments follow."""


@dataclass(slots=True, eq=False)
class Call:
    """One node of a pattern. ``kinds`` are canonical; ``args`` hold Calls, Results, Variables and constants."""

    name: str
    kinds: frozenset[str]
    args: tuple[Any, ...]
    line: int = 0
    commutative: bool = False
    symmetric: bool = False
    """Commutative over two variables that occur nowhere else and are constrained alike: the other order says
    nothing new."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result ``index`` of a call with several results."""

    call: Call
    index: int


@dataclass(slots=True, eq=False)
class Pattern:
    """A compiled alternative: ``calls`` in text order, the last one makes the final result."""

    calls: list[Call]
    outputs: frozenset[str]
    text: str
    names: frozenset[str] = frozenset()
    constrained: tuple[str, ...] = ()
    """Variables that the rule's ``where`` speaks of: with other tensors for them it is another match."""

    @property
    def sink(self) -> Call:
        return self.calls[-1]

    def plan(self, anchor: Call) -> list[tuple[Call, Call]]:
        """The downward steps that reach every call from ``anchor``: (from, to) pairs.

        What lies above a call is reached by following its operands, so only the paths from consumers
        are listed.
        """
        covered = _ancestors(anchor)
        steps: list[tuple[Call, Call]] = []
        progress = True
        while progress and len(covered) < len(self.calls):
            progress = False
            for call in self.calls:
                if call in covered:
                    continue
                source = next((c for c in _operand_calls(call) if c in covered), None)
                if source is not None:
                    steps.append((source, call))
                    covered |= _ancestors(call)
                    progress = True
        return steps


def _operand_calls(call: Call) -> list[Call]:
    found: list[Call] = []
    for arg in _flat(call.args):
        if isinstance(arg, Call):
            found.append(arg)
        elif isinstance(arg, Result):
            found.append(arg.call)
    return found


def _flat(args: tuple[Any, ...]) -> list[Any]:
    flat: list[Any] = []
    for arg in args:
        flat.extend(_flat(arg) if isinstance(arg, tuple) else (arg,))
    return flat


def _ancestors(call: Call) -> set[Call]:
    found = {call}
    for operand in _operand_calls(call):
        found |= _ancestors(operand)
    return found


def _mark_symmetric(calls: list[Call], where: dict[str, Any]) -> None:
    uses = Counter(arg.name for call in calls for arg in _flat(call.args) if isinstance(arg, Variable))
    for call in calls:
        free = [arg.name for arg in call.args if isinstance(arg, Variable) and uses[arg.name] == 1]
        call.symmetric = call.commutative and len(free) == 2 and _exchangeable(where, *free)


def _constrained(calls: list[Call], where: dict[str, Any]) -> tuple[str, ...]:
    variables = {arg.name for call in calls for arg in _flat(call.args) if isinstance(arg, Variable)}
    return tuple(sorted(variables & mentioned(where)))


def mentioned(wanted: Any) -> set[str]:
    """Every word in the constraints of a ``where`` section, names of tensors and constants among them."""
    if isinstance(wanted, dict):
        return set(wanted).union(*map(mentioned, wanted.values()))
    if isinstance(wanted, list):
        return set().union(*map(mentioned, wanted))
    return {wanted} if isinstance(wanted, str) else set()


ORDERED = ("halves_of", "size_power")
"""Constraints whose lists say something by their order."""


def _exchangeable(where: dict[str, Any], first: str, second: str) -> bool:
    """Exchanging the two names leaves every constraint as it is."""
    names = {first: second, second: first}
    return all(_renamed(v, names, k in ORDERED) == _renamed(v, {}, k in ORDERED) for k, v in where.items())


def _renamed(wanted: Any, names: dict[str, str], ordered: bool) -> Any:
    if isinstance(wanted, dict):
        return {names.get(k, k): _renamed(v, names, ordered) for k, v in wanted.items()}
    if isinstance(wanted, list):
        items = [_renamed(v, names, ordered) for v in wanted]
        return items if ordered else sorted(items, key=repr)
    return names.get(wanted, wanted) if isinstance(wanted, str) else wanted


def compile_patterns(
    text: str, outputs: tuple[str, ...], place: str, where: dict[str, Any] | None = None
) -> list[Pattern]:
    """Every alternative that ``text`` stands for (each ``optional`` present or absent), longest first.

    ``place`` names the file and place for messages, ``where`` is the rule's section of constraints.
    Raises AuditError with the line of a mistake.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise AuditError(
            f"{place}, line {error.lineno}: {error.msg}; a pattern line reads `name = aten.op(args)`"
        ) from None
    marks = sum(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "optional" for n in ast.walk(tree)
    )
    if marks > 8:
        raise AuditError(f"{place}: {marks} optional(…) in one pattern; at most 8, write another any_of entry instead")
    compiled: dict[str, Pattern] = {}
    for present in itertools.product((True, False), repeat=marks):
        pattern = _Compiler(present, place, outputs, where or {}).compile(tree, text)
        compiled.setdefault(_shape(pattern), pattern)
    return sorted(compiled.values(), key=lambda p: -len(p.calls))


def _shape(pattern: Pattern) -> str:
    numbers = {call: i for i, call in enumerate(pattern.calls)}

    def show(arg: Any) -> str:
        if isinstance(arg, Call):
            return f"%{numbers[arg]}"
        if isinstance(arg, Result):
            return f"%{numbers[arg.call]}.{arg.index}"
        return "(" + ",".join(map(show, arg)) + ")" if isinstance(arg, tuple) else repr(arg)

    return ";".join(f"{sorted(c.kinds)}{show(c.args)}" for c in pattern.calls)


class _Compiler:
    def __init__(self, present: tuple[bool, ...], place: str, outputs: tuple[str, ...], where: dict[str, Any]) -> None:
        self.present = iter(present)
        self.place = place
        self.outputs = outputs
        self.where = where
        self.names: dict[str, Any] = {}
        self.calls: list[Call] = []

    def compile(self, tree: ast.Module, text: str) -> Pattern:
        for statement in tree.body:
            self._statement(statement)
        if not self.calls:
            raise AuditError(f"{self.place}: the pattern is empty; write at least one `name = aten.op(args)`")
        made = [self.names[o] for o in self.outputs if o in self.names]
        outputs = frozenset(v.name for v in made if isinstance(v, Call)) | {self.calls[-1].name}
        calls = self._used()
        _mark_symmetric(calls, self.where)
        return Pattern(calls, outputs, text, frozenset(self.names), _constrained(calls, self.where))

    def _used(self) -> list[Call]:
        """Without the calls that an absent optional left dangling."""
        kept = _ancestors(self.calls[-1])
        for output in self.outputs:
            if isinstance(self.names.get(output), Call):
                kept |= _ancestors(self.names[output])
        return [c for c in self.calls if c in kept]

    def _error(self, node: ast.AST, message: str) -> AuditError:
        return AuditError(f"{self.place}, line {getattr(node, 'lineno', '?')}: {message}")

    def _statement(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise self._error(statement, "expected `name = aten.op(args)`")
        target = statement.targets[0]
        value = self._expression(statement.value, target.id if isinstance(target, ast.Name) else "")
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, Call):
            for i, element in enumerate(target.elts):
                if not isinstance(element, ast.Name):
                    raise self._error(element, "expected a name")
                self.names[element.id] = Result(value, i) if i else value
        else:
            raise self._error(statement, "expected `name = aten.op(args)` or `a, b = aten.op(args)`")

    def _expression(self, node: ast.expr, name: str = "") -> Any:
        if isinstance(node, ast.Call):
            return self._call(node, name)
        if isinstance(node, ast.Constant):
            return Rest() if node.value is ... else node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self._expression(node.operand)
            if isinstance(operand, int | float):
                return -operand
        if isinstance(node, ast.List | ast.Tuple):
            return tuple(self._expression(e) for e in node.elts)
        if isinstance(node, ast.Name):
            return self._name(node)
        raise self._error(node, f"cannot read `{ast.unparse(node)}`: expected a name, a constant, a list or aten.op(…)")

    def _name(self, node: ast.Name) -> Any:
        if node.id == "_":
            return Wildcard()
        if node.id.startswith("c_"):
            return self.names.setdefault(node.id, ConstantVariable(node.id))
        return self.names.setdefault(node.id, Variable(node.id))

    def _call(self, node: ast.Call, name: str) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "optional":
            return self._optional(node, name)
        kinds_or_ops = self._functions(node.func)
        args = tuple(self._expression(a) for a in node.args)
        if node.keywords:
            raise self._error(node, "keyword arguments are not part of a pattern; write them by position or as `...`")
        rest = bool(args) and isinstance(args[-1], Rest)
        kinds: set[str] = set()
        normal = args
        for function in kinds_or_ops:
            if isinstance(function, frozenset):
                kinds |= function
            else:
                try:
                    kind, normal = normalise_call(function, args[:-1] if rest else args, lambda _: None)
                except IndexError:
                    raise self._error(node, f"{function} needs more arguments") from None
                kinds.add(kind)
        if rest and not (normal and isinstance(normal[-1], Rest)):
            while normal and normal[-1] is None:  # defaults that the normal form filled in
                normal = normal[:-1]
            normal = (*normal, Rest())
        if len(kinds) == 1:
            kind, normal = self._composite(next(iter(kinds)), normal)
            kinds = {kind}
        commutative = not kinds.isdisjoint(COMMUTATIVE) and len(normal) >= 2
        call = Call(name or f"_{len(self.calls)}", frozenset(kinds), normal, node.lineno, commutative)
        self.calls.append(call)
        return call

    def _composite(self, kind: str, args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """What the canonical form of a graph makes of ops and their operands, done to the pattern as well."""
        if kind == "reciprocal" and self._is_inner(args[0], "sqrt"):
            return "rsqrt", args[0].args
        if kind == "div" and self._is_inner(args[1], "sqrt"):
            root: Call = args[1]
            inverse = Call(root.name, frozenset({"rsqrt"}), root.args, root.line)
            self.calls[self.calls.index(root)] = inverse
            return "mul", (args[0], inverse)
        if kind == "mul" and len(args) == 2:
            for x, other in (args, args[::-1]):
                if self._is_inner(other, "reciprocal"):
                    return self._composite("div", (x, other.args[0]))
                if self._is_inner(other, "sigmoid"):
                    inner = other.args[0]
                    if inner == x:
                        return "silu", (x,)
                    if (
                        self._is_inner(inner, "mul")
                        and inner.args[0] == x
                        and isinstance(inner.args[1], ConstantVariable)
                    ):
                        return "quick_gelu", (x,)
            if args[0] == args[1] and isinstance(args[0], Call | Variable):
                return "square", args[:1]
        return kind, args

    def _is_inner(self, arg: Any, kind: str) -> bool:
        """A call of this kind that nothing outside of the site may read."""
        return isinstance(arg, Call) and arg.kinds == {kind} and arg.name not in self.outputs

    def _optional(self, node: ast.Call, name: str) -> Any:
        if len(node.args) != 1 or not isinstance(node.args[0], ast.Call):
            raise self._error(node, "expected optional(aten.op(…))")
        present = next(self.present)
        if present:
            return self._expression(node.args[0], name)
        inner = node.args[0]
        if not inner.args:
            raise self._error(node, "an optional op needs a first operand to take its place")
        # Operands after the first belong to the absent op and must not leave marks behind.
        first = self._expression(inner.args[0], name)
        for other in inner.args[1:]:
            for mark in ast.walk(other):
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "optional":
                    next(self.present)
        return first[0] if isinstance(first, tuple) and first else first

    def _functions(self, node: ast.expr) -> list[str | frozenset[str]]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._functions(node.left) + self._functions(node.right)
        if isinstance(node, ast.Attribute):
            space = node.value
            dotted = f"{space.id}.{node.attr}" if isinstance(space, ast.Name) else ast.unparse(node)
            if dotted.startswith("anyof."):
                members = OP_CLASSES.get(dotted.removeprefix("anyof."))
                if members is None:
                    raise self._error(
                        node, f"no op class `{dotted}`; known: {', '.join(f'anyof.{k}' for k in OP_CLASSES)}"
                    )
                return [members]
            return [dotted]
        raise self._error(
            node, f"`{ast.unparse(node)}` is not an op; expected aten.NAME, namespace.NAME or anyof.CLASS"
        )
