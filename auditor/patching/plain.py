"""Whether a forward does the same for all calls of one form: it decides by nothing, and reads only what a form is for.

A form is kept for dtypes and ranks of the arguments and for the module's own settings. Dynamo would guard whatever else
a forward looked at, sizes, a configuration behind an attribute, a global; a bound module has no such guards. So the
source of its forward is read: what might depend on more leaves the module to Dynamo.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
_ASKED = frozenset(
    {"shape", "size", "numel", "ndim", "dim", "stride", "is_contiguous", "storage_offset", "nelement", "element_size",
     "requires_grad", "grad", "grad_fn", "is_leaf", "data", "item", "tolist", "numpy", "device", "is_cuda", "nbytes",
     "itemsize", "layout", "data_ptr", "untyped_storage", "get_device", "is_inference", "_version", "is_grad_enabled",
     "get_default_dtype", "get_num_threads", "is_autocast_enabled", "backends"}
)  # fmt: skip
"""Of a tensor, and in no form's key."""
_DECIDING = (
    ast.If, ast.IfExp, ast.While, ast.For, ast.AsyncFor, ast.Try, ast.With, ast.AsyncWith, ast.Match, ast.BoolOp,
    ast.Assert, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete,
    ast.Import, ast.ImportFrom, ast.Raise, ast.NamedExpr, ast.Starred,
    *((ast.TryStar,) if hasattr(ast, "TryStar") else ()),
)  # fmt: skip
_BUILTINS = frozenset({"abs", "bool", "float", "int", "pow", "round", "slice"})
"""Which read nothing but what they are given."""


def reads_beyond(module: nn.Module) -> str:
    """Why calls of ``module`` that have one form may differ in more; empty where they can't."""
    return _reads_beyond(module, type(module).forward, set())


def _reads_beyond(module: nn.Module, function: Any, seen: set[Any]) -> str:
    if function in seen:
        return ""
    seen.add(function)
    body = _body(function)
    if body is None:
        return "the source of its forward is not at hand"
    if function.__code__.co_freevars:
        return "its forward reads what another function holds"
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(isinstance(default, _PLAIN) for default in defaults):
        return "a default of its forward may change inside"
    own, nodes = next(iter(inspect.signature(function).parameters)), list(_nodes(body))
    through = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    if any(isinstance(node, ast.Name) and node.id == own and id(node) not in through for node in nodes):
        return "its forward hands itself on"
    for node in nodes:
        reason = _reason(node, module, own, function, seen)
        if reason:
            return reason
    return ""


def _body(function: Any) -> ast.FunctionDef | None:
    """The function's own source; None where it is wrapped, made at run time, or not to be read."""
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    found = tree.body[0] if tree.body else None
    return found if isinstance(found, ast.FunctionDef) and not found.decorator_list else None


def _nodes(body: ast.FunctionDef) -> Iterator[ast.AST]:
    """What is run: neither annotations nor defaults are."""
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign):
            yield from ast.walk(statement.target)
            yield from ast.walk(statement.value) if statement.value else ()
        else:
            yield from ast.walk(statement)


def _reason(node: ast.AST, module: nn.Module, own: str, function: Any, seen: set[Any]) -> str:
    if isinstance(node, _DECIDING):
        return "its forward decides, or does more than compute"
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return "its forward changes what it is given"
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return _of_name(node.id, own, function)
    if isinstance(node, ast.Attribute):
        return _of_attribute(node, module, own, seen)
    return ""


def _of_name(name: str, own: str, function: Any) -> str:
    code = function.__code__
    if name == own or name in code.co_varnames:
        return ""
    value = function.__globals__.get(name)
    known = name in _BUILTINS if name not in function.__globals__ else _is_of_torch(value)
    if not known:
        return f"its forward reads {name!r}"
    return ""


def _is_of_torch(value: Any) -> bool:
    """A module, function or class that is the same at every call."""
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in ("torch", "math")
    home = getattr(value, "__module__", None) or ""
    kinds = (types.FunctionType, types.BuiltinFunctionType, type)
    return isinstance(value, kinds) and home.partition(".")[0] in ("torch", "math", "typing")


def _of_attribute(node: ast.Attribute, module: nn.Module, own: str, seen: set[Any]) -> str:
    if not (isinstance(node.value, ast.Name) and node.value.id == own):
        return f"its forward asks for .{node.attr}" if node.attr in _ASKED else ""
    method = inspect.getattr_static(type(module), node.attr, None)
    if node.attr not in vars(module) and isinstance(method, types.FunctionType):
        return _reads_beyond(module, method, seen)
    held = {**module._parameters, **module._buffers, **vars(module)}
    if node.attr not in held:
        return f"its forward reads self.{node.attr}, which is no setting of its own"
    value = held[node.attr]
    parts = value if isinstance(value, tuple) else (value,)
    if all(isinstance(part, (Tensor, *_PLAIN)) for part in parts):
        return ""
    return f"its forward reads self.{node.attr}, which may change inside"
