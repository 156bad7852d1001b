"""The view algebra against real tensors: every op, random shapes, strides and offsets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.graph.layout import VIEWS, Layout, Slice, slice_of, views_of


def layout(x: torch.Tensor) -> Layout:
    return Layout(tuple(x.shape), tuple(x.stride()), x.storage_offset())


@st.composite
def tensors(draw: st.DrawFn, min_rank: int = 0, max_rank: int = 4, min_size: int = 0) -> torch.Tensor:
    """A tensor that is dense, permuted, sliced or expanded, at some offset of its storage."""
    shape = draw(st.lists(st.integers(min_size, 6), min_size=min_rank, max_size=max_rank))
    x = torch.empty([*shape, 2]).select(-1, draw(st.integers(0, 1))) if draw(st.booleans()) else torch.empty(shape)
    if x.dim():
        x = x.permute(draw(st.permutations(range(x.dim()))))
        d = draw(st.integers(0, x.dim() - 1))
        cut = draw(st.integers(0, max(x.shape[d] - max(min_size, 1), 0)))
        x = x.narrow(d, cut, x.shape[d] - cut)
        if draw(st.booleans()):
            sizes = list(x.shape)
            sizes[d] = min(sizes[d], 1) * 3
            x = x.narrow(d, 0, min(1, x.shape[d])).expand(sizes)
    return x


METHODS = {
    "movedim", "swapaxes", "swapdims", "flatten", "unflatten", "chunk", "reshape", "narrow", "tensor_split",
}  # fmt: skip


def run(op: str, x: torch.Tensor, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """What torch makes of it: None where it refuses or copies."""
    name = op.removeprefix("aten.")
    try:
        if name == "mT":
            out = x.mT if x.dim() > 1 else x
        elif name in METHODS:
            out = getattr(torch.Tensor, name)(x, *args)
        else:
            out = getattr(torch.ops.aten, name)(x, *args)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    outs = [out] if isinstance(out, torch.Tensor) else list(out)
    same_storage = all(o.untyped_storage()._cdata == x.untyped_storage()._cdata for o in outs)
    return outs if same_storage else None


dims = st.integers(-5, 4)
sizes = st.lists(st.integers(-1, 12), max_size=5)
ends = st.one_of(st.none(), st.integers(-8, 8), st.just(2**63 - 1))
ARGS: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "alias": st.just(()),
    "detach": st.just(()),
    "t": st.just(()),
    "mT": st.just(()),
    "numpy_T": st.just(()),
    "as_strided": st.integers(0, 3).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 2), min_size=n, max_size=n),
            st.lists(st.integers(0, 1), min_size=n, max_size=n),
            st.one_of(st.none(), st.just(0)),
        )
    ),
    "view": st.tuples(sizes),
    "_unsafe_view": st.tuples(sizes),
    "reshape": st.tuples(sizes),
    "transpose": st.tuples(dims, dims),
    "swapaxes": st.tuples(dims, dims),
    "swapdims": st.tuples(dims, dims),
    "permute": st.tuples(st.integers(0, 4).flatmap(lambda n: st.permutations(range(n)))),
    "movedim": st.tuples(dims, dims) | st.tuples(st.just([0, 1]), st.just([-1, 0])),
    "unsqueeze": st.tuples(dims),
    "squeeze": st.just(()) | st.tuples(dims) | st.tuples(st.lists(st.integers(0, 3), unique=True, max_size=3)),
    "expand": st.tuples(sizes),
    "slice": st.tuples(dims, ends, ends, st.integers(0, 3)),
    "narrow": st.tuples(dims, st.integers(-7, 7), st.integers(0, 7)),
    "select": st.tuples(dims, st.integers(-7, 7)),
    "split": st.tuples(st.integers(0, 7), dims) | st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=3), dims),
    "split_with_sizes": st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=3), dims),
    "chunk": st.tuples(st.integers(0, 7), dims),
    "tensor_split": st.tuples(st.integers(0, 7) | st.lists(st.integers(-3, 7), min_size=1, max_size=3), dims),
    "unbind": st.tuples(dims),
    "flatten": st.tuples(dims, dims),
    "unflatten": st.tuples(dims, st.lists(st.integers(-1, 6), min_size=1, max_size=3)),
    "diagonal": st.tuples(st.integers(-4, 4), dims, dims),
}  # fmt: skip
NEEDS_OWN_TEST = {"view_as_real", "view_as_complex", "_reshape_alias", "lift_fresh"}
SAME_AS = {"unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"}  # as split, chunk; torch's return fresh storages


def test_every_view_op_is_compared_with_torch() -> None:
    assert {name.removeprefix("aten.") for name in VIEWS} == {*ARGS, *NEEDS_OWN_TEST, *SAME_AS}


@pytest.mark.parametrize("name", ARGS)
def test_views_are_those_of_torch(name: str) -> None:
    @settings(max_examples=150, deadline=None)
    @given(tensors(), ARGS[name])
    def check(x: torch.Tensor, args: tuple[Any, ...]) -> None:
        expected = run(f"aten.{name}", x, args)
        if expected is None and name == "as_strided":
            return  # only torch knows how large the storage is
        if any(size < 0 for tensor in expected or () for size in tensor.shape):
            return  # torch expands a scalar to (0, -1) as if that were a shape
        got = views_of(f"aten.{name}", layout(x), args)
        assert got == (None if expected is None else tuple(map(layout, expected)))

    check()


@settings(max_examples=300, deadline=None)
@given(tensors(), st.data())
def test_view_to_a_shape_of_the_same_size(x: torch.Tensor, data: st.DataObject) -> None:
    # GIVEN a shape that holds as many elements, made by splitting, merging and adding dimensions of one
    shape: list[int] = []
    for n in x.shape:
        divisors = [d for d in range(1, n + 1) if n % d == 0] or [1]
        d = data.draw(st.sampled_from(divisors))
        shape += [d, n // d]
    merged = data.draw(st.integers(0, max(len(shape) - 1, 0)))
    if len(shape) > 1 and merged < len(shape) - 1:
        shape[merged : merged + 2] = [shape[merged] * shape[merged + 1]]
    # WHEN seen as that shape THEN it is a view exactly where torch finds one
    expected = run("aten.view", x, (shape,))
    got = views_of("aten.view", layout(x), (shape,))
    assert got == (None if expected is None else tuple(map(layout, expected)))


@settings(max_examples=100, deadline=None)
@given(tensors(min_size=1))
def test_complex_views(x: torch.Tensor) -> None:
    z = torch.empty(x.shape, dtype=torch.complex64).permute([*reversed(range(x.dim()))])
    assert views_of("aten.view_as_real", layout(z)) == (layout(torch.view_as_real(z)),)
    expected = run("aten.view_as_complex", x, ())
    assert views_of("aten.view_as_complex", layout(x)) == (None if expected is None else (layout(expected[0]),))


def test_reshape_alias_takes_shape_and_strides() -> None:
    x = torch.empty(4, 6)[1:]
    assert views_of("aten._reshape_alias", layout(x), ([18], [1])) == (
        layout(torch.ops.aten._reshape_alias(x, [18], [1])),
    )


def test_unknown_dimension_is_no_view() -> None:
    assert views_of("aten.select", Layout((2, 3), (3, 1)), (5, 0)) is None
    assert views_of("aten.view", Layout((2, 3), (3, 1)), ("six",)) is None


@settings(max_examples=300, deadline=None)
@given(tensors(min_rank=1, min_size=1), st.data())
def test_a_slice_is_found_however_spelled(x: torch.Tensor, data: st.DataObject) -> None:
    # GIVEN a slice that drops something, along a dimension that is not expanded
    d = data.draw(st.integers(0, x.dim() - 1))
    size = x.shape[d]
    if size < 2 or x.stride(d) == 0:
        return
    step = data.draw(st.integers(1, 3))
    start = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(start + 1, size))
    view = torch.ops.aten.slice(x, d, start, stop, step)
    if view.shape == x.shape:
        return
    # THEN the base indexed by what was found is the view
    found = slice_of(layout(x), layout(view))
    assert found is not None
    assert (found.dim, found.start, found.size) == (d - x.dim(), start, size)
    again = torch.ops.aten.slice(x, found.dim, found.start, found.stop, found.step)
    assert (again.shape, again.storage_offset()) == (view.shape, view.storage_offset())
    assert view.shape[d] == 1 or again.stride() == view.stride()


X = torch.empty(2, 3, 8)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (X[..., :4], Slice(-1, 0, 4, 1, 8)),
        (X.narrow(-1, 4, 4), Slice(-1, 4, 8, 1, 8)),
        (X.chunk(2, -1)[1], Slice(-1, 4, 8, 1, 8)),
        (X.split([4, 4], 2)[1], Slice(-1, 4, 8, 1, 8)),
        (X.view(2, 3, 2, 4).unbind(2)[1], Slice(-1, 4, 8, 1, 8)),
        (X.view(2, 3, 4, 2).select(-1, 0), Slice(-1, 0, 8, 2, 8)),
        (X.view(2, 3, 4, 2).unbind(-1)[1], Slice(-1, 1, 8, 2, 8)),
        (X[..., 1::2], Slice(-1, 1, 8, 2, 8)),
        (X[:, 1:], Slice(-2, 1, 3, 1, 3)),
        (X, None),
        (X[:, 1:, :4], None),
        (X[0], None),
        (X.view(2, 24)[:, :8], None),
        (X.transpose(1, 2), None),
    ],
)
def test_slices_of_one_tensor(view: torch.Tensor, expected: Slice | None) -> None:
    assert slice_of(layout(X), layout(view)) == expected


def test_a_view_of_something_before_the_base_is_no_slice_of_it() -> None:
    left, right = X.chunk(2, -1)
    assert slice_of(layout(right), layout(left[..., :2])) is None
    assert slice_of(layout(left), layout(right[..., :2])) is None
