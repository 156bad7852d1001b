"""The grammar of SSA text: lines of Python to statements, each with its place. Nothing here knows what ops mean."""

from __future__ import annotations

import ast
import math
import textwrap
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

from auditor.errors import AuditError
from auditor.graph.signatures import DTYPES

CONSTANTS: dict[str, float] = {"inf": math.inf, "nan": math.nan}
FRESH = "fresh"
"""``in fresh``: storage of its own, where the op would otherwise give a view."""
DIRECTIVES = ("phase", "module", "source", "device", "pace")
RESERVED = DTYPES | CONSTANTS.keys() | {FRESH, *DIRECTIVES}
"""Names that cannot be given to a value."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in the text; line and column count from 1."""

    file: str
    line: int
    column: int

    def error(self, message: str) -> AuditError:
        return AuditError(f"{self.file}:{self.line}:{self.column}: {message}")


@dataclass(frozen=True, slots=True)
class Literal:
    value: int | float | bool | str | complex | None
    place: Place


@dataclass(frozen=True, slots=True)
class Ref:
    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class Item:
    """``parts[1]``: one of several results."""

    of: Expr
    index: int
    place: Place


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Expr, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Call:
    """``aten.add.Tensor(x, 1, alpha=2)``: ``name`` is ``aten.add``, ``overload`` is ``Tensor``."""

    name: str
    overload: str
    args: tuple[Expr, ...]
    keywords: tuple[tuple[str, Expr], ...]
    place: Place


Expr = Literal | Ref | Item | Sequence | Call


@dataclass(frozen=True, slots=True)
class TypeText:
    """``f32[64, 256](256, 1) @ 32 in x``; ``within`` names a value that lives in the same storage."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    offset: int
    within: Ref | None
    place: Place


@dataclass(frozen=True, slots=True)
class Declare:
    name: str
    type: TypeText
    place: Place


@dataclass(frozen=True, slots=True)
class Assign:
    """``targets`` is empty for a call whose results get no name; ``unpack`` where they stand as a tuple."""

    targets: tuple[str, ...]
    unpack: bool
    type: TypeText | None
    value: Expr
    place: Place


@dataclass(frozen=True, slots=True)
class Directive:
    name: str
    args: tuple[int | float | bool | str | complex | None, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Return:
    values: tuple[Expr, ...]
    place: Place


Statement = Declare | Assign | Directive | Return


def statements(text: str, file: str = "<graph>", first_line: int = 1) -> list[Statement]:
    """The statements of ``text``, whose first line is line ``first_line`` of ``file``.

    :raises AuditError: naming file, line, column and what was expected.
    """
    flat = textwrap.dedent(text)
    reader = _Reader(file, first_line - 1, _margin(text) - _margin(flat))
    return [reader.statement(node) for node in reader.tree(flat).body]


def _margin(text: str) -> int:
    line = next((line for line in text.splitlines() if line.strip()), "")
    return len(line) - len(line.lstrip())


class _Reader:
    """Turns syntax-tree nodes into statements; holds what places need."""

    def __init__(self, file: str, lines_before: int, margin: int) -> None:
        self.file, self.lines_before, self.margin = file, lines_before, margin

    def tree(self, text: str) -> ast.Module:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the tree is read, never run
                return ast.parse(text)
        except SyntaxError as e:
            raise self._place(e.lineno or 1, e.offset or 1).error(f"{e.msg}; expected SSA text") from None
        except (ValueError, RecursionError, MemoryError) as e:
            raise self._place(1, 1).error(f"this is not readable as SSA text ({e})") from None

    def _place(self, line: int, column: int) -> Place:
        return Place(self.file, line + self.lines_before, column + self.margin)

    def at(self, node: Any) -> Place:
        return self._place(node.lineno, node.col_offset + 1)

    def fail(self, node: Any, message: str) -> NoReturn:
        raise self.at(node).error(message)

    def statement(self, node: ast.stmt) -> Statement:
        match node:
            case ast.AnnAssign(target=ast.Name(), value=None):
                return Declare(self.target(node.target), self.type(node.annotation), self.at(node))
            case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
                names = (self.target(node.target),)
                return Assign(names, False, self.type(node.annotation), self.expr(value), self.at(node))
            case ast.Assign(targets=[ast.Tuple(elts=elts) | ast.List(elts=elts)], value=value):
                return Assign(tuple(map(self.target, elts)), True, None, self.expr(value), self.at(node))
            case ast.Assign(targets=[target], value=value):
                return Assign((self.target(target),), False, None, self.expr(value), self.at(node))
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if name in DIRECTIVES:
                return self.directive(name, call)
            case ast.Expr(value=ast.Call() as call):
                return Assign((), False, None, self.expr(call), self.at(node))
            case ast.Return(value=value):
                return Return(self.returned(value), self.at(node))
        raise self.at(node).error(
            "expected `name: f32[2, 64]`, `name = aten.op(…)`, `aten.op(…)`, `return name` "
            "or one of phase(…), module(…), source(…), device(…), pace(…)",
        )

    def target(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            self.fail(node, "expected the name of a value on the left of `=` or `:`")
        if node.id in RESERVED:
            self.fail(node, f"`{node.id}` is reserved and cannot name a value; choose another name")
        return node.id

    def returned(self, node: ast.expr | None) -> tuple[Expr, ...]:
        if node is None:
            return ()
        return tuple(map(self.expr, node.elts)) if isinstance(node, (ast.Tuple, ast.List)) else (self.expr(node),)

    def directive(self, name: str, call: ast.Call) -> Directive:
        if call.keywords:
            self.fail(call, f"{name}(…) takes no keywords")
        args = []
        for node in call.args:
            arg = self.expr(node)
            if not isinstance(arg, Literal):
                self.fail(node, f"{name}(…) takes strings and numbers only")
            args.append(arg.value)
        return Directive(name, tuple(args), self.at(call))

    def expr(self, node: ast.expr) -> Expr:
        match node:
            case ast.Call():
                return self.call(node)
            case ast.Name(id=name):
                if name in DTYPES:
                    return Literal(name, self.at(node))
                return Literal(CONSTANTS[name], self.at(node)) if name in CONSTANTS else Ref(name, self.at(node))
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return Sequence(tuple(map(self.expr, elts)), self.at(node))
            case ast.Subscript(value=value, slice=place):
                return Item(self.expr(value), self.index(place), self.at(node))
            case ast.Constant(value=value) if value is Ellipsis:
                self.fail(node, "`...` stands for what was left out when this text was printed; print it in full")
            case ast.Attribute(value=ast.Name(id="torch"), attr=attr):
                return Literal(_TORCH_DTYPES.get(attr, attr), self.at(node))  # torch.float32, torch.contiguous_format
        return Literal(self.number(node), self.at(node))

    def number(self, node: ast.expr) -> Any:
        """A constant, with its sign, or a complex number written as a sum."""
        match node:
            case ast.Constant(value=int() | float() | complex() | str() | None as value):
                return value
            case ast.Name(id=name) if name in CONSTANTS:
                return CONSTANTS[name]
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                value = self.number(operand)
                if not isinstance(value, str) and value is not None:
                    return -value if isinstance(sign, ast.USub) else value
            case ast.Call(func=ast.Name(id="complex"), args=[re, im], keywords=[]):
                return complex(self.number(re), self.number(im))
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=ast.Constant(value=complex() as im)):
                real = self.number(left)
                if isinstance(real, (int, float)):
                    return complex(real, im.imag if isinstance(op, ast.Add) else -im.imag)
        raise self.at(node).error("expected a value, a constant, a list or a call of an op")

    def call(self, node: ast.Call) -> Expr:
        if isinstance(node.func, ast.Name) and node.func.id == "complex":
            return Literal(self.number(node), self.at(node))
        path = self.path(node.func)
        if path[:2] == ["torch", "ops"]:
            path = path[2:]
        if len(path) not in (2, 3):
            self.fail(node.func, "expected the name of an op as `namespace.op` or `namespace.op.overload`")
        overload = path[2] if len(path) == 3 and path[2] != "default" else ""
        keywords = []
        for keyword in node.keywords:
            if keyword.arg is None:
                self.fail(keyword.value, "`**` is not part of SSA text")
            keywords.append((keyword.arg, self.expr(keyword.value)))
        args = tuple(map(self.expr, node.args))
        return Call(".".join(path[:2]), overload, args, tuple(keywords), self.at(node))

    def path(self, node: ast.expr) -> list[str]:
        names: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            names.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            self.fail(node, "expected the name of an op as `namespace.op`")
        return [inner.id, *reversed(names)]

    def type(self, node: ast.expr) -> TypeText:
        """``f32[2, 64](64, 1) @ 32 in x``, all but the first part optional."""
        inner, within, offset, strides = node, None, 0, None
        if isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ast.In) and len(inner.ops) == 1:
            (owner,) = inner.comparators
            if not isinstance(owner, ast.Name):
                self.fail(owner, "expected the name of a value after `in`")
            inner, within = inner.left, Ref(owner.id, self.at(owner))
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.MatMult):
            offset, inner = self.integer(inner.right), inner.left
        if isinstance(inner, ast.Call) and not inner.keywords:
            strides, inner = tuple(map(self.integer, inner.args)), inner.func
        if isinstance(inner, ast.Name) and inner.id in DTYPES and strides is None:
            return TypeText(inner.id, (), (), offset, within, self.at(node))
        if not (isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and inner.value.id in DTYPES):
            self.fail(
                node,
                "expected a type like `f32[2, 64]`, `f32[64, 2](1, 64)`, `f32[8] @ 32` or `f32` for a scalar; "
                f"{_DTYPE_HINT}",
            )
        dims = inner.slice.elts if isinstance(inner.slice, (ast.Tuple, ast.List)) else [inner.slice]
        shape = tuple(map(self.integer, dims))
        if strides is not None and len(strides) != len(shape):
            self.fail(node, f"{len(strides)} strides for {len(shape)} dimensions; give one stride for each")
        return TypeText(inner.value.id, shape, strides, offset, within, self.at(node))

    def index(self, node: ast.expr) -> int:
        index = self.number(node)
        if type(index) is not int:
            self.fail(node, "expected the number of a result, from 0")
        return index

    def integer(self, node: ast.expr) -> int:
        if not (isinstance(node, ast.Constant) and type(node.value) is int):
            self.fail(node, "expected an integer that is not negative")
        return node.value


_TORCH_DTYPES = {
    "float64": "f64", "float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16",
    "int64": "i64", "long": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
    "complex64": "c64", "complex128": "c128", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
}  # fmt: skip
_DTYPE_HINT = f"dtypes are {', '.join(sorted(DTYPES))}"
