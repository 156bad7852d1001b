"""Values of an execution-trace node, decoded by their type strings: ``Tensor(float)``, ``GenericList[Int]``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from auditor.collect.execution_trace import Side
from auditor.graph.model import Constant, contiguous_strides

DTYPES = {
    "float": "f32", "double": "f64", "c10::Half": "f16", "c10::BFloat16": "bf16",
    "long int": "i64", "long": "i64", "long long": "i64", "__int64": "i64", "int": "i32", "short": "i16",
    "short int": "i16",
    "signed char": "i8", "unsigned char": "u8", "bool": "bool",
    "unsigned short": "u16", "unsigned int": "u32", "unsigned long": "u64",
    "c10::complex<float>": "c64", "c10::complex<double>": "c128", "c10::complex<c10::Half>": "c32",
    "c10::Float8_e4m3fn": "f8e4m3", "c10::Float8_e5m2": "f8e5m2",
    "c10::Float8_e4m3fnuz": "f8e4m3", "c10::Float8_e5m2fnuz": "f8e5m2",
}  # fmt: skip
"""C++ type names, as traces write dtypes, to the short names of the op graph."""


MOST_ELEMENTS = 1 << 48
"""Of a tensor: a hundred times what the largest machine holds."""
MOST_DIMENSIONS = 64
"""Of a tensor, to PyTorch (``c10::TensorIterator`` and its kin count them in the bits of a word)."""


class NotRecordedError(ValueError):
    """What stands for a tensor or a number is none."""


@dataclass(slots=True, frozen=True)
class TensorRef:
    """A tensor as the trace saw it at one moment. ``offset``, ``shape`` and ``strides`` in elements."""

    tensor: int
    storage: int
    offset: int
    itemsize: int
    device: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def region(self) -> tuple[int, int]:
        """First byte and one past the last byte that it touches in its storage."""
        if 0 in self.shape:
            return (self.offset * self.itemsize, self.offset * self.itemsize)
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (self.offset * self.itemsize, (self.offset + last + 1) * self.itemsize)


Decoded = TensorRef | Constant | tuple["Decoded", ...]


def decode_side(side: Side) -> tuple[Decoded, ...]:
    """Every input (or output) of a node, in schema order.

    Raises:
        NotRecordedError: what stands for a tensor or a number is none.
    """
    try:
        return _decoded_side(side)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise NotRecordedError from None


def _decoded_side(side: Side) -> tuple[Decoded, ...]:
    count = len(side.values)
    shapes = side.shapes if len(side.shapes) == count else [[]] * count
    strides = side.strides if len(side.strides) == count else [None] * count
    types = side.types if len(side.types) == count else [""] * count
    return tuple(map(_decode, side.values, types, shapes, strides))


def _decode(value: Any, type_: str, shape: Any, strides: Any) -> Decoded:
    if value == "<None>" or type_ == "None" or type_.startswith("Tensor(nullptr"):
        return None
    if type_.startswith("Tensor(") and isinstance(value, list) and len(value) >= 6:
        return _tensor(value, type_[len("Tensor(") : -1], shape, strides)
    if isinstance(value, list):
        count = len(value)
        kinds = element_types(type_)
        kinds = kinds if len(kinds) == count else (kinds[:1] or ("",)) * count
        shapes = shape if isinstance(shape, list) and len(shape) == count else [[]] * count
        steps = strides if isinstance(strides, list) and len(strides) == count else [None] * count
        return tuple(map(_decode, value, kinds, shapes, steps))
    if type_ == "Double":
        return float(value)  # "-inf" and "nan" come as text
    if isinstance(value, int | float | bool | str) or value is None:
        return value
    return str(value)


def _tensor(value: list[Any], dtype: str, shape: Any, strides: Any) -> TensorRef:
    sizes = tuple(map(_whole, shape))
    steps = tuple(map(_whole, strides)) if isinstance(strides, list) and len(strides) == len(sizes) else None
    if len(sizes) > MOST_DIMENSIONS or prod(sizes) > MOST_ELEMENTS:
        raise NotRecordedError
    return TensorRef(
        _whole(value[0]), _whole(value[1]), _whole(value[2]), _whole(value[4]), str(value[5]),
        DTYPES.get(dtype, dtype), sizes, contiguous_strides(sizes) if steps is None else steps,
    )  # fmt: skip


def _whole(value: Any) -> int:
    """Ids, sizes, strides and offsets, none of which is negative or beyond 64 bits."""
    number = int(value)
    if not 0 <= number < 2**63:
        raise NotRecordedError
    return number


@cache
def element_types(type_: str) -> tuple[str, ...]:
    """``("Int", "Tensor(float)")`` of ``GenericList[Int,Tensor(float)]`` or ``Tuple[…]``; empty for other types."""
    head, bracket, rest = type_.partition("[")
    if not bracket or head not in ("GenericList", "Tuple", "TensorList", "ScalarList"):
        return ()
    parts, depth, start, body = [], 0, 0, rest[:-1]
    for i, char in enumerate(body):
        depth += (char in "[(<") - (char in "])>")
        if char == "," and depth == 0:
            parts.append(body[start:i])
            start = i + 1
    return (*parts, body[start:]) if body else ()
