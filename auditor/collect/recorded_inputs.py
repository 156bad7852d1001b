"""Inputs of an op as Kineto writes them (``Input Dims``, ``Input type``, ``Input Strides``, ``Concrete Inputs``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec

from auditor.collect.arguments import DTYPES, MOST_DIMENSIONS, MOST_ELEMENTS, NotRecordedError
from auditor.collect.kineto import OpArgs
from auditor.graph.model import Constant, contiguous_strides


class TensorSpec(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A tensor without identity. ``dtype`` is ``""`` inside a tensor list: Kineto does not write it there.

    Looked up for every input of every op of a trace, so hashed once and compared in C.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Recorded = TensorSpec | Constant | tuple["Recorded", ...]
Path = tuple[int, ...]
"""Position of an argument; of an element of a list argument: two numbers."""


@dataclass(slots=True, frozen=True)
class RecordedInputs:
    """Every argument of one call in schema order; ``types`` as written. ``known``: the profiler recorded shapes.

    ``spoken``: numbers and lists of numbers, too; older ones wrote tensors only. ``strided``: strides, too, which still
    older ones left out, so that every tensor looks contiguous.
    """

    types: tuple[str, ...] = ()
    values: tuple[Recorded, ...] = ()
    known: bool = False
    spoken: bool = False
    strided: bool = False

    def looks(self, made: TensorSpec) -> TensorSpec:
        """How a tensor like ``made`` is written where a later call reads it."""
        return made if self.strided else TensorSpec(made.dtype, made.shape, contiguous_strides(made.shape))


def raw_inputs(args: OpArgs) -> tuple[bytes, bytes, bytes, bytes]:
    """What :func:`decode_inputs` takes, as ``args`` hold it."""
    return bytes(args.types), bytes(args.dims), bytes(args.strides), bytes(args.concrete)


def decode_inputs(types: bytes, dims: bytes, strides: bytes, concrete: bytes) -> RecordedInputs:
    """The inputs of a call, from the JSON of its four lists; unknown where they are of another form than Kineto's."""
    kinds = _items(types)
    shapes = _items(dims)
    if not kinds or len(shapes) != len(kinds):
        return RecordedInputs()
    steps = _padded(_items(strides), len(kinds))
    texts = _padded(_items(concrete), len(kinds))
    try:
        values = tuple(map(_value, map(str, kinds), shapes, steps, texts))
    except NotRecordedError:
        return RecordedInputs()
    return RecordedInputs(tuple(map(str, kinds)), values, known=True, spoken=bool(concrete), strided=bool(strides))


def tensors_in(values: Sequence[Recorded], outer: Path = ()) -> Iterator[tuple[Path, TensorSpec]]:
    """Every tensor among ``values`` with its place, lists opened."""
    for i, value in enumerate(values):
        if isinstance(value, TensorSpec):
            yield (*outer, i), value
        elif isinstance(value, tuple):
            yield from tensors_in(value, (*outer, i))


def _items(raw: bytes) -> list[Any]:
    if not raw:
        return []
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    return decoded if isinstance(decoded, list) else []


def _padded(items: list[Any], count: int) -> list[Any]:
    return items if len(items) == count else [None] * count


def _value(kind: str, shape: Any, strides: Any, text: Any) -> Recorded:
    if kind == "TensorList":
        if not isinstance(shape, list):
            raise NotRecordedError
        inner = _padded(strides if isinstance(strides, list) else [], len(shape))
        return tuple(_tensor("", s, t) for s, t in zip(shape, inner, strict=True) if isinstance(s, list))
    if kind in DTYPES:
        return _tensor(DTYPES[kind], shape, strides)
    return _constant(text)


def _tensor(dtype: str, shape: Any, strides: Any) -> TensorSpec:
    sizes = _whole(shape)
    if sizes is None or prod(sizes) > MOST_ELEMENTS:
        raise NotRecordedError
    steps = _whole(strides)
    known = steps is not None and len(steps) == len(sizes)
    return TensorSpec(dtype, sizes, steps if known and steps is not None else contiguous_strides(sizes))


def _whole(numbers: Any) -> tuple[int, ...] | None:
    """Sizes or strides; ``None`` for what is none."""
    if not isinstance(numbers, list) or len(numbers) > MOST_DIMENSIONS:
        return None
    if not all(type(n) is int and 0 <= n <= MOST_ELEMENTS for n in numbers):
        return None
    return tuple(numbers)


def _constant(text: Any) -> Constant | tuple[Constant, ...]:
    """``2``, ``1.5``, ``True``, ``[1, -1]``; ``None`` for what Kineto leaves empty."""
    if not isinstance(text, str) or text in ("", "None"):
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        value = json.loads(text.replace("True", "true").replace("False", "false"))
    except (ValueError, RecursionError):
        return _number(text)
    if isinstance(value, list):
        plain = all(item is None or isinstance(item, int | float | str) for item in value)
        return tuple(value) if plain else text
    return value if isinstance(value, int | float) else text


def _number(text: str) -> Constant:
    try:
        return float(text)  # "1." and "inf" are no JSON
    except ValueError:
        return text
