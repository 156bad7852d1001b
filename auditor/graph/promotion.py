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
    """Strides of a fresh pointwise result of ``shape``: dense, in the order of dimensions that the inputs lie in.

    The first input that tells two dimensions apart decides (``TensorIterator``'s ``fast_set_up`` and
    ``reorder_dimensions`` in ATen).
    """
    inputs = [_expanded(t, shape) for t in tensors if t.shape]
    if len(shape) < 2 or not inputs:
        return contiguous_strides(shape)
    if all(t.shape == shape for t in tensors):
        for known in _formats(shape):
            if all(lies_as(shape, strides, known) for strides in inputs):
                return known
        if all(strides == inputs[0] for strides in inputs) and is_dense(shape, inputs[0]):
            return inputs[0]
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        at = i
        for before in reversed(range(i)):
            decided = _compare(shape, inputs, order[before], order[at])
            if decided < 0:
                break
            if decided > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _expanded(tensor: Value, shape: Shape) -> Shape:
    """Strides of ``tensor`` broadcast to ``shape``: 0 where it repeats."""
    missing = len(shape) - len(tensor.shape)
    own = zip(tensor.shape, tensor.strides, shape[missing:], strict=True)
    return (*(0,) * missing, *(0 if n == 1 != whole else stride for n, stride, whole in own))


def _formats(shape: Shape) -> list[Shape]:
    """Strides of the memory formats that are kept as they are: row-major, and channels last."""
    found = [contiguous_strides(shape)]
    if len(shape) == 4:
        batch, height, width, channels = contiguous_strides((shape[0], shape[2], shape[3], shape[1]))
        found.append((batch, channels, height, width))
    return found


def lies_as(shape: Shape, strides: Shape, expected: Shape) -> bool:
    """Whether ``strides`` are ``expected``, but for dimensions of one element, whose stride says nothing."""
    return all(s == e or n == 1 for n, s, e in zip(shape, strides, expected, strict=True))


def _compare(shape: Shape, inputs: Sequence[Shape], inner: int, outer: int) -> int:
    """Positive where dimension ``outer`` should lie within ``inner``, negative where not, 0 where nothing tells."""
    for strides in inputs:
        a, b = strides[inner], strides[outer]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[inner] > shape[outer]:
            return 1
    return 0


def is_dense(shape: Shape, strides: Shape) -> bool:
    """No gaps and no overlap, in whatever order of dimensions."""
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return True
