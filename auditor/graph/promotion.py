"""Dtype promotion and broadcasting: the type of what a pointwise op makes of its inputs (PyTorch's rules)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from auditor.graph.model import ITEMSIZE, Arg, Value, contiguous_strides

Shape = tuple[int, ...]

_CATEGORY = {"bool": 0, **dict.fromkeys(("u8", "i8", "i16", "i32", "i64", "u16", "u32", "u64"), 1),
             **dict.fromkeys(("f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64"), 2),
             **dict.fromkeys(("c32", "c64", "c128"), 3)}  # fmt: skip
_SCALARS = {bool: "bool", int: "i64", float: "f32", complex: "c64"}


_OF_NUMBERS = frozenset({"f64", "i64", "bool", "c128"})


def may_be_number(dtype: str, shape: Shape, device: str) -> bool:
    """Whether a tensor may be one that PyTorch makes of a Python number, unseen by any recorder."""
    return not shape and dtype in _OF_NUMBERS and device == "cpu"


def is_floating(dtype: str) -> bool:
    """Floating or complex."""
    return _CATEGORY.get(dtype, 2) >= 2


def promote(a: str, b: str) -> str:
    """The smallest dtype that both fit in, by PyTorch's lattice."""
    if a == b:
        return a
    low, high = sorted((a, b), key=lambda d: (_CATEGORY.get(d, 2), ITEMSIZE.get(d, 4)))
    if _CATEGORY.get(low, 2) != _CATEGORY.get(high, 2):
        return "c128" if (low, high) == ("f64", "c64") else high
    if {a, b} == {"f16", "bf16"}:
        return "f32"
    return "i16" if {a, b} == {"u8", "i8"} else high


def result_dtype(args: Iterable[Arg]) -> str:
    """Dtype that pointwise ``args`` promote to: tensors first, then scalar tensors, then Python numbers.

    A lower group counts only where its category (bool, integer, floating, complex) is higher.
    """
    groups: list[str | None] = [None, None, None]
    for arg in args:
        dtype, level = _leveled(arg)
        if dtype:
            known = groups[level]
            groups[level] = dtype if known is None else promote(known, dtype)
    made: str | None = None
    for dtype in groups:
        if dtype and (made is None or _CATEGORY.get(dtype, 2) > _CATEGORY.get(made, 2)):
            made = dtype
    return made or "f32"


def _leveled(arg: Arg) -> tuple[str | None, int]:
    if isinstance(arg, Value):
        return arg.dtype, 0 if arg.shape else 1
    return _SCALARS.get(type(arg)), 2


def broadcast(shapes: Iterable[Shape]) -> Shape:
    """The common shape. :raises ValueError: naming the sizes that do not agree."""
    made: Shape = ()
    for shape in shapes:
        pairs = zip_longest(reversed(made), reversed(shape), fillvalue=1)
        made = tuple(reversed([_agree(a, b, made, shape) for a, b in pairs]))
    return made


def _agree(a: int, b: int, left: Shape, right: Shape) -> int:
    if a != b and 1 not in (a, b):
        raise ValueError(f"shapes {list(left)} and {list(right)} do not broadcast ({a} and {b})")
    return b if a == 1 else a


def pointwise_strides(shape: Shape, tensors: Sequence[Value]) -> Shape:
    """Strides of a fresh pointwise result: those of the inputs where all full-sized ones agree and are dense."""
    full = [t.strides for t in tensors if t.shape == shape]
    if full and all(s == full[0] for s in full) and is_dense(shape, full[0]):
        return full[0]
    return contiguous_strides(shape)


def is_dense(shape: Shape, strides: Shape) -> bool:
    """No gaps and no overlap, in whatever order of dimensions."""
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return True
