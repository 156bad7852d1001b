"""View algebra: what a view op makes of a tensor's shape, strides and storage offset.

Pure arithmetic, no torch, so that graphs read from a file need neither a device nor tensors. Sizes, strides and
offsets are in elements of the tensor's own dtype. The rules are ATen's (``TensorShape.cpp``, ``TensorUtils.cpp``);
the tests compare every op with real tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

from auditor.graph.model import contiguous_strides

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """Where the elements of one tensor lie in its storage."""

    shape: Shape
    strides: Shape
    offset: int = 0


class HasLayout(Protocol):
    """A :class:`Layout`, or a value of a graph."""

    @property
    def shape(self) -> Shape: ...
    @property
    def strides(self) -> Shape: ...
    @property
    def offset(self) -> int: ...


class Slice(NamedTuple):
    """``base[..., start:stop:step]`` along one dimension. ``dim`` is negative, ``size`` is that of the base."""

    dim: int
    start: int
    stop: int
    step: int
    size: int


def views_of(op: str, base: Layout, args: Sequence[Any] = ()) -> tuple[Layout, ...] | None:
    """Layouts of the results of view ``op`` (``aten.transpose``) on ``base``; one, or a list for ``split`` and kin.

    ``args`` are the op's arguments after the tensor, in schema order, trailing defaults optional. ``None`` where
    the strides of ``base`` do not allow a view (a copy would be made), or the arguments do not fit it.
    """
    try:
        made = _TABLE[op](base, *args)
    except (IndexError, TypeError, ValueError):
        return None
    if made is None:
        return None
    return (made,) if isinstance(made, Layout) else tuple(made)


def slice_of(base: HasLayout, view: HasLayout) -> Slice | None:
    """How ``view`` selects along ONE dimension of ``base``, of the same storage and rank.

    Only strides and offsets decide, so ``slice``, ``narrow``, ``chunk``, ``split``, and ``unbind`` or ``select``
    of a reshaped base give equal answers. ``None`` where it is no such slice, or is all of the base.
    """
    if len(base.shape) != len(view.shape):
        return None
    changed = [d for d, (n, m) in enumerate(zip(base.shape, view.shape, strict=True)) if n != m]
    if len(changed) != 1:
        return None
    kept = (d for d in range(len(base.shape)) if d != changed[0])
    if any(base.strides[d] != view.strides[d] and base.shape[d] > 1 for d in kept):
        return None
    return _slice_along(base, view, changed[0])


def _slice_along(base: HasLayout, view: HasLayout, d: int) -> Slice | None:
    size, count, stride = base.shape[d], view.shape[d], base.strides[d]
    if stride <= 0:
        return None
    start, rest = divmod(view.offset - base.offset, stride)
    step, uneven = divmod(view.strides[d], stride) if count > 1 else (1, 0)
    if rest or uneven or step < 1 or start < 0 or start + max(count - 1, 0) * step >= max(size, start + 1):
        return None
    if start > size:
        return None
    return Slice(d - len(base.shape), start, min(start + count * step, size), step, size)


def view_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides that show a tensor as ``new`` without moving elements, ``None`` where there are none.

    Same cases as ATen's ``computeStride``: a run of dimensions that lie densely in memory can be cut anew.
    """
    if not shape:
        return (1,) * len(new)
    if prod(shape) == 0:
        return strides if shape == new else contiguous_strides(new)
    made = [0] * len(new)
    at, step, old_run, new_run = len(new) - 1, strides[-1], 1, 1
    for d in reversed(range(len(shape))):
        old_run *= shape[d]
        if d and (shape[d - 1] == 1 or strides[d - 1] == old_run * step):
            continue
        while at >= 0 and (new_run < old_run or new[at] == 1):
            made[at] = new_run * step
            new_run *= new[at]
            at -= 1
        if new_run != old_run:
            return None
        if d:
            step, old_run, new_run = strides[d - 1], 1, 1
    return tuple(made) if at < 0 else None


def resolve_shape(numel: int, shape: Sequence[int]) -> Shape:
    """``shape`` with its one ``-1`` filled in. :raises ValueError: where it does not hold ``numel`` elements."""
    known = prod(n for n in shape if n != -1)
    unknown = sum(n == -1 for n in shape)
    if unknown > 1 or (unknown and (known == 0 or numel % known)) or (not unknown and known != numel):
        raise ValueError(f"shape {list(shape)} does not hold {numel} elements")
    return tuple(numel // known if n == -1 else n for n in shape)


def axis(rank: int, dim: int) -> int:
    """``dim`` as an index from 0; a scalar has one dimension to address. :raises IndexError: out of range."""
    count = max(rank, 1)
    if not -count <= dim < count:
        raise IndexError(f"dimension {dim} is out of range for rank {rank}")
    return dim % count


def _same(x: Layout, *_: Any) -> Layout:
    return x


def _view(x: Layout, shape: Sequence[int]) -> Layout | None:
    new = resolve_shape(prod(x.shape), shape)
    strides = view_strides(x.shape, x.strides, new)
    return None if strides is None else Layout(new, strides, x.offset)


def _as_strided(x: Layout, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Layout:
    if len(size) != len(stride):
        raise ValueError("size and stride differ in length")
    return Layout(tuple(size), tuple(stride), x.offset if offset is None else offset)


def _permute(x: Layout, dims: Sequence[int]) -> Layout:
    order = [axis(len(x.shape), d) for d in dims]
    if sorted(order) != list(range(len(x.shape))):
        raise ValueError(f"{list(dims)} is not an order of {len(x.shape)} dimensions")
    return Layout(tuple(x.shape[d] for d in order), tuple(x.strides[d] for d in order), x.offset)


def _transpose(x: Layout, dim0: int, dim1: int) -> Layout:
    rank = len(x.shape)
    a, b = axis(rank, dim0), axis(rank, dim1)
    order = list(range(rank))
    if rank:
        order[a], order[b] = order[b], order[a]
    return _permute(x, order)


def _t(x: Layout) -> Layout:
    if len(x.shape) > 2:
        raise ValueError("t takes at most two dimensions")
    return _permute(x, list(reversed(range(len(x.shape)))))


def _matrix_transpose(x: Layout) -> Layout:
    return _transpose(x, -2, -1) if len(x.shape) > 1 else x


def _movedim(x: Layout, source: int | Sequence[int], destination: int | Sequence[int]) -> Layout:
    rank = len(x.shape)
    src = [axis(rank, d) for d in ([source] if isinstance(source, int) else source)]
    dst = [axis(rank, d) for d in ([destination] if isinstance(destination, int) else destination)]
    if not rank:
        return x
    placed = dict(zip(dst, src, strict=True))
    rest = (d for d in range(rank) if d not in src)
    return _permute(x, [placed[d] if d in placed else next(rest) for d in range(rank)])


def _unsqueeze(x: Layout, dim: int) -> Layout:
    d = axis(len(x.shape) + 1, dim)
    stride = x.shape[d] * x.strides[d] if d < len(x.shape) else 1
    return Layout((*x.shape[:d], 1, *x.shape[d:]), (*x.strides[:d], stride, *x.strides[d:]), x.offset)


def _squeeze(x: Layout, dim: int | Sequence[int] | None = None) -> Layout:
    rank = len(x.shape)
    if dim is None:
        asked = set(range(rank))
    else:
        asked = {axis(rank, d) for d in ([dim] if isinstance(dim, int) else dim)}
    kept = [d for d in range(rank) if d not in asked or x.shape[d] != 1]
    return Layout(tuple(x.shape[d] for d in kept), tuple(x.strides[d] for d in kept), x.offset)


def _expand(x: Layout, size: Sequence[int], *_: Any) -> Layout:
    added = len(size) - len(x.shape)
    if added < 0:
        raise ValueError("expand cannot drop dimensions")
    if any(n < (-1 if d >= added else 0) for d, n in enumerate(size)):
        raise ValueError("only a dimension that exists can keep its size")
    shape, strides = list(size), [0] * len(size)
    for d in reversed(range(len(size))):
        old, stride = _expanded_dim(x, d - added, shape, strides, d)
        shape[d] = old if size[d] == -1 else size[d]
        if old not in (1, shape[d]):
            raise ValueError(f"cannot expand size {old} to {shape[d]}")
        strides[d] = stride if shape[d] == old else 0
    return Layout(tuple(shape), tuple(strides), x.offset)


def _expanded_dim(x: Layout, old: int, shape: list[int], strides: list[int], d: int) -> tuple[int, int]:
    """Size and stride of dimension ``d`` before expansion; a new leading one has size 1 and ATen's dense stride."""
    if old >= 0:
        return x.shape[old], x.strides[old]
    return 1, shape[d + 1] * strides[d + 1] if x.shape else 0


def _replace(x: Layout, d: int, size: int, stride: int, shift: int) -> Layout:
    return Layout(
        (*x.shape[:d], size, *x.shape[d + 1 :]), (*x.strides[:d], stride, *x.strides[d + 1 :]), x.offset + shift
    )


def _slice(x: Layout, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Layout:
    if not x.shape or step < 1:
        raise ValueError("slice needs a dimension and a positive step")
    d = axis(len(x.shape), dim)
    first, last, _ = slice(start, end).indices(x.shape[d])
    count = max(0, -(-(last - first) // step))
    return _replace(x, d, count, x.strides[d] * step, first * x.strides[d])


def _narrow(x: Layout, dim: int, start: int, length: int) -> Layout:
    d = axis(len(x.shape), dim)
    size = x.shape[d]
    first = start + size if start < 0 else start
    if not 0 <= first <= first + length <= size:
        raise ValueError(f"narrow {start}+{length} lies outside of size {size}")
    return _replace(x, d, length, x.strides[d], first * x.strides[d])


def _select(x: Layout, dim: int, index: int) -> Layout:
    d = axis(len(x.shape), dim)
    size = x.shape[d]
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of range for size {size}")
    at = x.offset + index % size * x.strides[d]
    return Layout(x.shape[:d] + x.shape[d + 1 :], x.strides[:d] + x.strides[d + 1 :], at)


def _cut(x: Layout, d: int, lengths: Iterable[int]) -> list[Layout]:
    parts, first = [], 0
    for length in lengths:
        parts.append(_narrow(x, d, first, length))
        first += length
    return parts


def _split(x: Layout, size: int | Sequence[int], dim: int = 0) -> list[Layout]:
    if not isinstance(size, int):
        return _split_with_sizes(x, size, dim)
    d = axis(len(x.shape), dim)
    total = x.shape[d]
    if size < 0 or (size == 0 and total):
        raise ValueError(f"cannot split {total} into parts of {size}")
    count = max(-(-total // size), 1) if size else 1
    return _cut(x, d, (min(size, total - i * size) for i in range(count)))


def _split_with_sizes(x: Layout, sizes: Sequence[int], dim: int = 0) -> list[Layout]:
    d = axis(len(x.shape), dim)
    if sum(sizes) != x.shape[d]:
        raise ValueError(f"{list(sizes)} do not add up to {x.shape[d]}")
    return _cut(x, d, sizes)


def _chunk(x: Layout, chunks: int, dim: int = 0) -> list[Layout]:
    d = axis(len(x.shape), dim)
    if chunks < 1:
        raise ValueError("chunk needs at least one chunk")
    size = -(-x.shape[d] // chunks)
    return _split(x, size, d) if size else _cut(x, d, [0] * chunks)


def _tensor_split(x: Layout, where: int | Sequence[int], dim: int = 0) -> list[Layout]:
    d = axis(len(x.shape), dim)
    total = x.shape[d]
    if isinstance(where, int):
        if where < 1:
            raise ValueError("tensor_split needs at least one section")
        return _cut(x, d, (total // where + (i < total % where) for i in range(where)))
    return [_slice(x, d, a, b) for a, b in zip([0, *where], [*where, total], strict=True)]


def _unbind(x: Layout, dim: int = 0) -> list[Layout]:
    d = axis(len(x.shape), dim)
    return [_select(x, d, i) for i in range(x.shape[d])]


def _flatten(x: Layout, start: int = 0, end: int = -1) -> Layout | None:
    first, last = axis(len(x.shape), start), axis(len(x.shape), end)
    if not x.shape:
        return Layout((1,), (1,), x.offset)
    if first > last:
        raise ValueError("flatten ends before it starts")
    if first == last:
        return x
    return _view(x, (*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def _unflatten(x: Layout, dim: int, sizes: Sequence[int]) -> Layout | None:
    d = axis(len(x.shape), dim)
    return _view(x, (*x.shape[:d], *resolve_shape(x.shape[d], sizes), *x.shape[d + 1 :]))


def _diagonal(x: Layout, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Layout:
    a, b = axis(len(x.shape), dim1), axis(len(x.shape), dim2)
    if a == b:
        raise ValueError("diagonal needs two dimensions")
    size = max(0, min(x.shape[a], x.shape[b] - offset) if offset >= 0 else min(x.shape[a] + offset, x.shape[b]))
    shift = (offset * x.strides[b] if offset >= 0 else -offset * x.strides[a]) if size else 0
    kept = [d for d in range(len(x.shape)) if d not in (a, b)]
    shape, strides = [x.shape[d] for d in kept], [x.strides[d] for d in kept]
    return Layout((*shape, size), (*strides, x.strides[a] + x.strides[b]), x.offset + shift)


def _view_as_real(x: Layout) -> Layout:
    return Layout((*x.shape, 2), (*(2 * s for s in x.strides), 1), 2 * x.offset)


def _view_as_complex(x: Layout) -> Layout | None:
    if not x.shape or x.shape[-1] != 2 or x.strides[-1] != 1:
        return None
    if x.offset % 2 or any(s % 2 and n != 1 for s, n in zip(x.strides[:-1], x.shape[:-1], strict=True)):
        return None
    return Layout(x.shape[:-1], tuple(s // 2 for s in x.strides[:-1]), x.offset // 2)


_TABLE: dict[str, Callable[..., Layout | list[Layout] | None]] = {
    "aten.alias": _same,
    "aten.as_strided": _as_strided,
    "aten.chunk": _chunk,
    "aten.detach": _same,
    "aten.diagonal": _diagonal,
    "aten.expand": _expand,
    "aten.flatten": _flatten,
    "aten.lift_fresh": _same,
    "aten.mT": _matrix_transpose,
    "aten.movedim": _movedim,
    "aten.narrow": _narrow,
    "aten.numpy_T": lambda x: _permute(x, list(reversed(range(len(x.shape))))),
    "aten.permute": _permute,
    "aten.reshape": _view,
    "aten.select": _select,
    "aten.slice": _slice,
    "aten.split": _split,
    "aten.split_with_sizes": _split_with_sizes,
    "aten.squeeze": _squeeze,
    "aten.swapaxes": _transpose,
    "aten.swapdims": _transpose,
    "aten.t": _t,
    "aten.tensor_split": _tensor_split,
    "aten.transpose": _transpose,
    "aten.unbind": _unbind,
    "aten.unflatten": _unflatten,
    "aten.unsafe_chunk": _chunk,
    "aten.unsafe_split": _split,
    "aten.unsafe_split_with_sizes": _split_with_sizes,
    "aten.unsqueeze": _unsqueeze,
    "aten.view": _view,
    "aten.view_as_complex": _view_as_complex,
    "aten.view_as_real": _view_as_real,
    "aten._reshape_alias": lambda x, size, stride: _as_strided(x, size, stride),
    "aten._unsafe_view": _view,
}

VIEWS = frozenset(_TABLE)
"""Ops that give another look at their first argument. ``reshape`` and ``flatten`` copy where they must."""
