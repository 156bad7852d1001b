"""What common calls make, by the rules of :mod:`auditor.graph.infer`: most calls of a model need no PyTorch for that.

The first op that PyTorch runs on meta tensors makes it import its compiler, which takes as long as PyTorch itself.
"""

from __future__ import annotations

from contextlib import suppress
from math import ceil, isfinite, prod
from typing import Any

from auditor.collect.arguments import MOST_DIMENSIONS, MOST_ELEMENTS
from auditor.collect.dispatched import bare, namespace
from auditor.collect.recorded_inputs import Recorded, RecordedInputs, TensorSpec, tensors_in
from auditor.graph.infer import infer
from auditor.graph.layout import VIEWS, Layout
from auditor.graph.model import Arg, Value, contiguous_strides
from auditor.graph.ops import POINTWISE, base_name
from auditor.graph.promotion import broadcast, lies_as
from auditor.graph.signatures import DTYPE_CODES, signature

Made = tuple[tuple[TensorSpec, int], ...]
"""Outputs, with where each begins in what it is a view of, in elements."""

_FLOATING = frozenset({"f64", "f32", "f16", "bf16"})
_NUMBERS = _FLOATING | {"i64", "i32", "bool"}


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


_OF_INTEGERS = _aten(
    """abs neg add sub rsub mul div eq ne lt le gt ge where masked_fill maximum minimum logical_and logical_or
    logical_not bitwise_and bitwise_or bitwise_not floor_divide"""
)
"""Pointwise ops that models call with integers and masks; of others PyTorch's own answers are odd."""
_OF_TRUTH = _aten("eq ne lt le gt ge logical_and logical_or logical_not")
"""Whatever numbers these are given, they make booleans."""
_POINTWISE = POINTWISE - _aten("_masked_scale")
_ANY_LAYOUT = (
    _POINTWISE
    | VIEWS
    | _aten("t detach alias transpose permute mm bmm addmm baddbmm cat stack embedding clone _to_copy")
)
"""Ops of which the rules know what they make of inputs in any order of dimensions."""
_TENSORS_ONLY = _aten("mm bmm addmm baddbmm t detach alias embedding")
"""Ops whose numbers, which older profilers did not write, tell nothing of their results."""


def results_by_rule(name: str, schema: Any, inputs: RecordedInputs, list_dtype: str) -> Made | None:
    """Outputs of op ``name`` (``aten::add``); ``None`` where PyTorch has to be asked.

    ``list_dtype`` is the dtype of the tensors in its lists.
    """
    op = f"{namespace(name)}.{bare(name)}"
    base = base_name(op)
    if op == "aten.arange":
        return _range(schema, inputs)
    tensors = [spec for _, spec in tensors_in(inputs.values)]
    declared = [str(a.type) for a in schema.arguments]
    if not op.startswith("aten.") or not _is_known_overload(base, schema):
        return None
    given = [v for v, a in zip(inputs.values, schema.arguments, strict=True) if a.kwarg_only and a.alias_info]
    if given:  # out=
        read = [v for v, a in zip(inputs.values, schema.arguments, strict=True) if not (a.kwarg_only and a.alias_info)]
        return _written(base, given, [spec for _, spec in tensors_in(read)])
    if not inputs.spoken and not (_is_silent(base, tensors) or _has_no_numbers(schema)):
        return None
    if not (base in _ANY_LAYOUT or all(map(_is_row_major, tensors))):
        return None
    if base in POINTWISE and not (_is_plain(base, tensors) and _is_ordered(base, tensors)):
        return None
    args = [_arg(v, kind, list_dtype, base) for v, kind in zip(inputs.values, declared, strict=True)]
    if base in POINTWISE and any(isinstance(a, str) for a in args):
        return None
    try:
        made = infer(op, tuple(args))
    except (ValueError, ArithmeticError, AttributeError):  # arguments that no recorder wrote
        return None
    if made is None or not all(_is_held(t.layout) for t in made.types):
        return None
    return tuple((TensorSpec(t.dtype, t.layout.shape, t.layout.strides), t.layout.offset) for t in made.types)


def _is_held(layout: Layout) -> bool:
    """Whether a machine could hold it; no tensor of a program is larger, or has less than no elements."""
    whole = all(type(n) is int and 0 <= n <= MOST_ELEMENTS for n in (*layout.shape, *layout.strides, layout.offset))
    return whole and len(layout.shape) <= MOST_DIMENSIONS and prod(layout.shape) <= MOST_ELEMENTS


def _range(schema: Any, inputs: RecordedInputs) -> Made | None:
    """``arange`` counts from ``start`` (0) to before ``end``, by ``step`` (1); of integers, if all three are."""
    with suppress(ArithmeticError):  # numbers beyond what a float holds
        return _counted(schema, inputs)
    return None


def _counted(schema: Any, inputs: RecordedInputs) -> Made | None:
    given = {a.name: value for a, value in zip(schema.arguments, inputs.values, strict=True)}
    asked: Any = given.get("dtype")
    start, end, step = (_number(given.get(name, n)) for name, n in (("start", 0), ("end", None), ("step", 1)))
    if start is None or end is None or not step or "out" in given or not (asked is None or type(asked) is int):
        return None
    size = ceil((end - start) / step)
    dtype = DTYPE_CODES.get(asked, "") if asked is not None else "i64" if type(start + end + step) is int else "f32"
    return ((TensorSpec(dtype, (size,), (1,)), 0),) if dtype and 0 <= size <= MOST_ELEMENTS else None


def _number(value: Recorded) -> int | float | None:
    return value if type(value) in (int, float) and isfinite(value) else None  # type: ignore[arg-type, return-value]


def _written(base: str, given: list[Recorded], read: list[TensorSpec]) -> Made | None:
    """A tensor that was given for the result is the result, where it need not be resized for it."""
    out = given[0]
    if len(given) > 1 or base not in POINTWISE or not isinstance(out, TensorSpec):
        return None
    try:
        fits = broadcast(spec.shape for spec in read) == out.shape
    except ValueError:
        return None
    return ((out, 0),) if fits else None


def _is_silent(base: str, tensors: list[TensorSpec]) -> bool:
    """Whether numbers that were not recorded tell nothing of the result."""
    return base in _TENSORS_ONLY or base in _OF_TRUTH or (base in _POINTWISE and _are_floating(tensors))


def _is_known_overload(base: str, schema: Any) -> bool:
    """Whether arguments stand where the rules look for them."""
    known = signature(base)
    if known is None:
        return base in POINTWISE or base in VIEWS or base in _TENSORS_ONLY
    names = [parameter.name for parameter in known]
    return [a.name for a in schema.arguments] == names[: len(schema.arguments)]


def _has_no_numbers(schema: Any) -> bool:
    """Whether tensors alone decide: ``alpha`` of a sum promotes nothing."""
    return all(str(a.type) == "Tensor" or a.name == "alpha" for a in schema.arguments)


def _is_plain(base: str, tensors: list[TensorSpec]) -> bool:
    if base not in _POINTWISE or not tensors:
        return False
    return _are_floating(tensors) or (base in _OF_INTEGERS and all(t.dtype in _NUMBERS for t in tensors))


def _is_row_major(spec: TensorSpec) -> bool:
    """Strides of dimensions of one element aside, which may be anything."""
    return lies_as(spec.shape, spec.strides, contiguous_strides(spec.shape))


def _is_ordered(base: str, tensors: list[TensorSpec]) -> bool:
    """Whether the rule tells the result: this op looks at its gradient and its input in another order."""
    return base != "aten.threshold_backward" or all(t == tensors[0] for t in tensors)


def _are_floating(tensors: list[TensorSpec]) -> bool:
    return all(t.dtype in _FLOATING for t in tensors)


def _arg(value: Recorded, declared: str, list_dtype: str, base: str) -> Arg:
    if isinstance(value, tuple):
        return tuple(_arg(item, declared, list_dtype, base) for item in value)
    if not isinstance(value, TensorSpec):
        return value
    if not value.shape and value.dtype == "f64":  # a Python number: must not promote
        return 1.0 if "Optional" not in declared else None
    strides = value.strides if base in _ANY_LAYOUT else contiguous_strides(value.shape)
    return Value(-1, value.dtype or list_dtype, value.shape, strides)
