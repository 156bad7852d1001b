"""What is known of an output whose shape a trace does not tell, and which later reads it may be.

Traces of older profilers hold no numbers: not the sizes of a view, not the stride of a convolution. The shapes that the
next ops read do tell: a view of ``[1024, 96]`` that is never read, and a read of ``[1024, 12, 8]`` that nothing made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

from auditor.collect.dispatched import bare, overloads
from auditor.collect.recorded_inputs import Recorded, RecordedInputs, TensorSpec

Shape = tuple[int, ...]
Key = tuple[Callable[[Shape, Shape], bool], str, Shape]
"""Form of the op, dtype, and what it leaves of a shape: so that of many outputs only few are looked at."""


@dataclass(slots=True, frozen=True)
class Partial:
    """An output of op ``name`` made from a tensor of ``shape``. ``dtype``: ``""`` where it may be any.

    ``alias``: the argument that it is a view of, -1 for none. ``many``: the op may make several.
    """

    name: str
    dtype: str
    shape: Shape
    alias: int = -1
    many: bool = False

    def fits(self, spec: TensorSpec) -> bool:
        """Whether a read of ``spec``, among whose keys is :attr:`key`, may be of this output."""
        return _FITS.get(self.name, _same)(self.shape, spec.shape)

    def has_room(self, parts: Sequence[Shape], read: Shape) -> bool:
        """Whether the op may have made one of shape ``read`` beside ``parts``: together they are what it was made from.

        ``split`` and ``chunk`` make parts of one size, but for a smaller last one.
        """
        if self.name not in _ALONG_ONE:
            return True
        cut = self.cut(parts[0])
        if cut is None or any(read[i] != n for i, n in enumerate(self.shape) if i != cut[0]):
            return False
        along = cut[0]
        sizes = [*(part[along] for part in parts), read[along]]
        small, large = min(sizes), max(sizes)
        last = small == self.shape[along] % large and sizes.count(large) == len(sizes) - 1
        return sum(sizes) <= self.shape[along] and (small == large or last or self.name == "split_with_sizes")

    def cut(self, read: Shape) -> tuple[int, int] | None:
        """The dimension that a part of shape ``read`` is taken of and how much of it, ``None`` if it is no part."""
        form = _FITS.get(self.name, _same)
        if form is _cut:
            differ = [i for i, (whole, part) in enumerate(zip(self.shape, read, strict=True)) if whole != part]
            return (differ[0], read[differ[0]]) if differ else None
        if form is _selected:
            gone = [i for i in range(len(self.shape)) if self.shape[:i] + self.shape[i + 1 :] == read]
            return (gone[0], 1) if gone else None
        return None

    def keeps(self, read: Shape) -> bool:
        """Whether the op would change nothing: a slice from end to end, as ``x[:, a:b]`` takes of dimension 0."""
        return self.name in _SLICES and read == self.shape

    @property
    def is_known(self) -> bool:
        """Whether it is known what the op does to shapes: an op of PyTorch's."""
        return self.name in _FITS

    @property
    def key(self) -> Key:
        """What a read of this output has in common with it: among the :func:`keys_of` its looks."""
        return (_FITS.get(self.name, _same), self.dtype, _IN_COMMON[_FITS.get(self.name, _same)](self.shape))


@lru_cache(maxsize=65536)
def keys_of(spec: TensorSpec) -> tuple[Key, ...]:
    """Keys of the outputs that a read of ``spec`` may be of."""
    shared = [(form, in_common(spec.shape)) for form, in_common in _IN_COMMON.items()]
    return tuple((form, dtype, common) for dtype in (spec.dtype, "") for form, common in shared)


def partial_of(name: str, inputs: RecordedInputs) -> Partial | None:
    """What can be told of the first output of ``name`` (``aten::view``), ``None`` if nothing.

    Ops of other libraries mostly make what looks like their first tensor, or write into it.
    """
    base = bare(name)
    if base not in _FITS and overloads(name):
        return None
    tensors = [v for v in inputs.values if isinstance(v, TensorSpec)]
    if base == "scalar_tensor":
        return Partial(base, "", ())
    if not tensors:
        return None
    first = tensors[0]
    dtype = "" if base in _CASTS else first.dtype
    if base not in _FITS:
        return Partial(base, first.dtype, first.shape, many=True)
    if base in _CONVOLUTIONS:
        return _convolved(base, inputs.values)
    return Partial(base, dtype, first.shape, 0 if base in _VIEWS else -1, base in _MANY)


def _convolved(name: str, values: tuple[Recorded, ...]) -> Partial | None:
    """Batch and channels of the result; how large it is depends on stride and padding."""
    x, weight = (values[0], values[1]) if len(values) > 1 else (None, None)
    if not isinstance(x, TensorSpec) or not isinstance(weight, TensorSpec) or len(x.shape) != len(weight.shape):
        return None
    return Partial(name, x.dtype, (x.shape[0], weight.shape[0], *x.shape[2:])) if len(x.shape) > 2 else None


def _as_large(made: Shape, read: Shape) -> bool:
    return prod(made) == prod(read)


def _permuted(made: Shape, read: Shape) -> bool:
    return sorted(made) == sorted(read)


def _squeezed(made: Shape, read: Shape) -> bool:
    return made != read and [n for n in made if n != 1] == [n for n in read if n != 1]


def _cut(made: Shape, read: Shape) -> bool:
    """A part along one dimension."""
    if len(made) != len(read):
        return False
    differ = [(m, r) for m, r in zip(made, read, strict=True) if m != r]
    return len(differ) <= 1 and all(r < m for m, r in differ)


def _selected(made: Shape, read: Shape) -> bool:
    return len(read) == len(made) - 1 and any(made[:i] + made[i + 1 :] == read for i in range(len(made)))


def _expanded(made: Shape, read: Shape) -> bool:
    if len(read) < len(made):
        return False
    tail = read[len(read) - len(made) :]
    return made != read and all(m in (1, r) for m, r in zip(made, tail, strict=True))


def _reduced(made: Shape, read: Shape) -> bool:
    """Some dimensions gone, or of size 1."""
    if len(read) == len(made):
        return made != read and all(r in (1, m) for m, r in zip(made, read, strict=True))
    rest = iter(made)
    return len(read) < len(made) and all(n in rest for n in read)


def _convolution(made: Shape, read: Shape) -> bool:
    """Batch and channels as they are; the rest may shrink, by one factor in all dimensions."""
    if len(made) != len(read) or made[:2] != read[:2]:
        return False
    ratios = [m / r for m, r in zip(made[2:], read[2:], strict=True) if r]
    return all(ratio > 0.4 for ratio in ratios) and all(0.5 < a / b < 2 for a, b in pairwise(ratios))


def _same(made: Shape, read: Shape) -> bool:
    return made == read


_CONVOLUTIONS = ("convolution", "cudnn_convolution", "miopen_convolution", "_convolution")
_CASTS = ("to", "_to_copy", "empty_like", "zeros_like", "ones_like")
_MANY = ("split", "split_with_sizes", "chunk", "unbind")
_ALONG_ONE = frozenset({"split", "split_with_sizes", "chunk"})
_SLICES = frozenset({"slice", "narrow"})
_SHAPING: dict[str, Callable[[Shape, Shape], bool]] = {
    **dict.fromkeys(("view", "_reshape_alias", "_unsafe_view", "reshape"), _as_large),
    **dict.fromkeys(("transpose", "permute", "movedim"), _permuted),
    **dict.fromkeys(("unsqueeze", "squeeze"), _squeezed),
    **dict.fromkeys(("slice", "narrow", "split", "split_with_sizes", "chunk"), _cut),
    **dict.fromkeys(("select", "unbind"), _selected),
    "expand": _expanded,
}
_VIEWS = frozenset(_SHAPING)
_FITS: dict[str, Callable[[Shape, Shape], bool]] = {
    **_SHAPING,
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduced),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d"), _convolution),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys((*_CASTS, "scalar_tensor"), _same),
}
_IN_COMMON: dict[Callable[[Shape, Shape], bool], Callable[[Shape], Shape]] = {
    _same: tuple,
    _as_large: lambda shape: (prod(shape),),
    _permuted: lambda shape: tuple(sorted(shape)),
    _squeezed: lambda shape: tuple(n for n in shape if n != 1),
    _convolution: lambda shape: (len(shape), *shape[:2]),
    **dict.fromkeys((_cut, _selected, _expanded, _reduced), lambda _: ()),
}
