"""Which recorded ops are *dispatched* ops: what the dispatcher calls below autograd, composite ops opened.

A composite op (``aten::linear``) is a decomposition into other ops on every backend: PyTorch registers it under the
``CompositeImplicitAutograd`` key, which is what is asked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VIEWS = frozenset({
    "view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "t", "transpose", "permute", "expand",
    "slice", "select", "narrow", "alias", "detach", "as_strided", "unfold", "diagonal", "movedim", "split",
    "split_with_sizes", "unbind", "chunk", "view_as_real", "view_as_complex", "_conj", "_neg_view", "lift_fresh",
    "real", "imag"
})  # fmt: skip
"""Names of aten ops that only make another view of their input. Held to be views even where no schema is known."""

_ALLOCATIONS = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "_efficientzerotensor",
    "new_empty", "new_empty_strided", "resize_", "resize_as_", "set_", "record_stream"
})  # fmt: skip
_HOST_SYNCS = frozenset(["_local_scalar_dense", "item", "is_nonzero", "equal"])

METADATA_IN_PLACE = frozenset({
    "detach_", "requires_grad_", "squeeze_", "unsqueeze_", "t_", "transpose_", "as_strided_"
})  # fmt: skip
"""Ops that change a tensor's shape or flags in place and write no element: views, whatever their schema says."""


@cache
def namespace(name: str) -> str:
    """``aten`` of ``aten::add`` or of ``aten.add``; ``""`` for a plain annotation."""
    head, separator, _ = name.replace("::", ".").partition(".")
    return head if separator else ""


@cache
def bare(name: str) -> str:
    """``add`` of ``aten::add`` or of ``aten.add``."""
    return name.replace("::", ".").partition(".")[2]


@cache
def is_composite(name: str) -> bool:
    """Whether op ``name`` (``aten::linear``, ``aten::add.Tensor``) decomposes on every backend. Unknown ops do not.

    ``aten::silu_backward`` and a few more have a decomposition *and* kernels: those are dispatched.
    """
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return bool(has_kernel(name, "CompositeImplicitAutograd")) and not has_kernel(name, "CPU")
    except RuntimeError:
        return False


@cache
def parse_schema(text: str) -> torch._C.FunctionSchema | None:
    """The schema, ``None`` where this PyTorch cannot read it (another version's types)."""
    import torch

    try:
        return torch._C.parse_schema(text)
    except RuntimeError:
        return None


@cache
def overloads(name: str) -> tuple[torch._C.FunctionSchema, ...]:
    """Schemas of every overload of ``aten::add`` known to this PyTorch."""
    import torch

    if "::" not in name:
        return ()
    return tuple(torch._C._jit_get_schemas_for_operator(name))


def full_name(schema: torch._C.FunctionSchema) -> str:
    """``aten::add.Tensor``; ``aten::relu`` where the overload has no name."""
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


@cache
def schema_for(name: str, types: tuple[str, ...]) -> torch._C.FunctionSchema | None:
    """The overload that fits a Kineto ``Input type`` list (which holds every argument, defaults too)."""
    fitting = [s for s in overloads(name) if len(s.arguments) == len(types) and _fits(s, types)]
    plain = [s for s in fitting if not any(a.alias_info and a.alias_info.is_write for a in s.arguments)]
    if name.endswith("_"):
        plain = []
    return next(iter(plain or fitting), None)


def _fits(schema: torch._C.FunctionSchema, types: Sequence[str]) -> bool:
    return all(_fits_argument(str(a.type), t) for a, t in zip(schema.arguments, types, strict=True))


def _fits_argument(declared: str, recorded: str) -> bool:
    if recorded in ("", "None"):  # None, or a kind that Kineto does not write down
        return declared not in ("Tensor", "List[Tensor]")
    if recorded in ("Scalar", "Int", "Double", "Bool"):
        return "Tensor" not in declared and "List" not in declared
    if recorded in ("ScalarList", "GenericList"):
        return "List" in declared and ("Tensor" not in declared or recorded == "GenericList")
    if recorded == "TensorList":
        return "List" in declared and "Tensor" in declared
    return "Tensor" in declared and "List" not in declared


@cache
def is_view(name: str, schema_text: str = "") -> bool:
    """Whether the op only makes views: a known name, or a schema that returns an alias and writes nothing."""
    if bare(name) in VIEWS:
        return True
    schema = parse_schema(schema_text) if schema_text else None
    return schema is not None and returns_alias(schema)


def returns_alias(schema: torch._C.FunctionSchema) -> bool:
    """Whether every result aliases an argument and no argument is written."""
    writes = any(a.alias_info and a.alias_info.is_write for a in schema.arguments)
    return bool(schema.returns) and not writes and all(r.alias_info is not None for r in schema.returns)


@cache
def launches_nothing(name: str) -> bool:
    """Whether op ``aten.empty`` only allocates, describes or reads back to the host: no kernel of a CPU-only run."""
    return bare(name) in _ALLOCATIONS | _HOST_SYNCS | METADATA_IN_PLACE
