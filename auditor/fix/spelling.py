"""Expressions that one replacement call can stand for, where all of a site is written in one statement on one line."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class Spelling:
    """``pattern`` is an expression; names that begin with ``_`` stand for any expression, the same one each time.

    Functions are compared by their last name (``F.silu``, ``torch.nn.functional.silu``), factors in either order.
    """

    replacement: str
    pattern: str
    call: str
    name: str
    """What has to be imported."""
    dtypes: tuple[str, ...] = ()
    """The only dtypes in which the two round alike; empty: all."""


SPELLINGS = (
    Spelling("act_mul", "silu(_gate) * _up", "silu_mul({_gate}, {_up})", "silu_mul"),
    Spelling("act_mul", "gelu(_gate) * _up", "gelu_mul({_gate}, {_up})", "gelu_mul"),
    Spelling("act_mul", "gelu(_gate, approximate='tanh') * _up", "gelu_mul({_gate}, {_up}, 'tanh')", "gelu_mul"),
    *(
        Spelling("rms_norm", pattern, "rms_norm({_x}, {_weight}, {_eps})", "rms_norm", ("f32", "f64"))
        for pattern in (
            "_weight * (_x * rsqrt(_x.pow(2).mean(-1, keepdim=True) + _eps))",
            "_x * rsqrt(_x.pow(2).mean(-1, keepdim=True) + _eps) * _weight",
            "_x * rsqrt(mean(_x * _x, -1, keepdim=True) + _eps) * _weight",
            "_x * rsqrt((_x * _x).mean(-1, keepdim=True) + _eps) * _weight",
        )
    ),
)


def rewritten(lines: list[str], statement: ast.stmt, replacement: str, dtype: str) -> tuple[str, str] | None:
    """The one line of ``statement`` with the call in place of the expression, and the name to import.

    None where the statement is longer than a line, or shows no expression, or more than one, that is known.
    """
    if statement.lineno != statement.end_lineno:
        return None
    line = lines[statement.lineno - 1].encode()  # columns of the syntax tree count bytes
    fitting = [s for s in SPELLINGS if s.replacement == replacement and (not s.dtypes or dtype in s.dtypes)]
    found: dict[ast.expr, tuple[Spelling, dict[str, ast.expr]]] = {}
    for node in (node for node in ast.walk(statement) if isinstance(node, ast.expr)):
        for spelling in fitting:
            bound = matched(ast.parse(spelling.pattern, mode="eval").body, node)
            if bound is not None:
                found.setdefault(node, (spelling, bound))
    if len(found) != 1:
        return None
    ((node, (spelling, bound)),) = found.items()
    call = spelling.call.format(**{name: ast.unparse(part) for name, part in bound.items()})
    if node.end_col_offset is None:
        return None
    return (line[: node.col_offset] + call.encode() + line[node.end_col_offset :]).decode(), spelling.name


def matched(pattern: ast.expr, node: ast.expr) -> dict[str, ast.expr] | None:
    """What each name of the pattern stands for in ``node``; None where they differ."""
    return _match(pattern, node, {})


def _match(pattern: ast.AST, node: ast.AST, bound: dict[str, ast.expr]) -> dict[str, ast.expr] | None:
    if isinstance(pattern, ast.Name) and pattern.id.startswith("_"):
        return _bind(pattern.id, node, bound)
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call) and isinstance(pattern.func, ast.Name):
        if _last_name(node.func) != pattern.func.id or isinstance(node.func, ast.Call):
            return None
        return _match_all([*pattern.args, *_keywords(pattern)], [*node.args, *_keywords(node)], bound)
    if type(pattern) is not type(node):
        return None
    if isinstance(pattern, ast.BinOp) and isinstance(node, ast.BinOp):
        return _match_product(pattern, node, bound)
    if isinstance(pattern, ast.Constant) and isinstance(node, ast.Constant):
        return bound if pattern.value == node.value else None
    if isinstance(pattern, ast.Attribute) and isinstance(node, ast.Attribute):
        return _match(pattern.value, node.value, bound) if pattern.attr == node.attr else None
    return _match_children(pattern, node, bound)


def _match_product(pattern: ast.BinOp, node: ast.BinOp, bound: dict[str, ast.expr]) -> dict[str, ast.expr] | None:
    if type(pattern.op) is not type(node.op):
        return None
    straight = _match_all([pattern.left, pattern.right], [node.left, node.right], dict(bound))
    if straight is not None or not isinstance(pattern.op, (ast.Mult, ast.Add)):
        return straight
    return _match_all([pattern.left, pattern.right], [node.right, node.left], dict(bound))


def _match_children(pattern: ast.AST, node: ast.AST, bound: dict[str, ast.expr]) -> dict[str, ast.expr] | None:
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
        mine = [pattern.func, *pattern.args, *_keywords(pattern)]
        return _match_all(mine, [node.func, *node.args, *_keywords(node)], bound)
    if isinstance(pattern, ast.UnaryOp) and isinstance(node, ast.UnaryOp):
        return _match(pattern.operand, node.operand, bound) if type(pattern.op) is type(node.op) else None
    same = isinstance(pattern, ast.Name) and isinstance(node, ast.Name) and pattern.id == node.id
    return bound if same else None


def _match_all(
    patterns: list[ast.expr], nodes: list[ast.expr], bound: dict[str, ast.expr]
) -> dict[str, ast.expr] | None:
    if len(patterns) != len(nodes):
        return None
    found: dict[str, ast.expr] | None = bound
    for pattern, node in zip(patterns, nodes, strict=True):
        found = _match(pattern, node, found) if found is not None else None
    return found


def _bind(name: str, node: ast.AST, bound: dict[str, ast.expr]) -> dict[str, ast.expr] | None:
    if not isinstance(node, ast.expr):
        return None
    known = bound.get(name)
    if known is not None and ast.dump(known) != ast.dump(node):
        return None
    return {**bound, name: node}


def _keywords(call: ast.Call) -> list[ast.expr]:
    """Values of the keywords by name; a name that differs makes their number or values differ."""
    ordered = sorted(call.keywords, key=lambda keyword: keyword.arg or "")
    return [part for k in ordered for part in (ast.Constant(k.arg), k.value)]


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
