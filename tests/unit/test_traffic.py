"""Bytes that a kernel moves."""

from __future__ import annotations

import pytest

from auditor.graph.ssa import parse
from auditor.graph.traffic import bytes_of, region_of, traffic_of

X = "x: f32[4, 8]\nr: f32[4, 1]\nw: f32[8]\nb: bf16[4, 8]\n"


@pytest.mark.parametrize(
    ("body", "read", "written"),
    [
        ("y = aten.neg(x)", 128, 128),
        ("y = aten.add(x, x)", 128, 128),
        ("y = aten.add(x, aten.view(x, [4, 8]))", 128, 128),
        ("y = aten.add(x, w)", 128 + 32, 128),
        ("y = aten.add(x, aten.expand(r, [4, 8]))", 128 + 16, 128),
        ("y = aten.mean(x, [-1], True)", 128, 16),
        ("y = aten._to_copy(x, bf16)", 128, 64),
        ("aten.add_(x, w)", 128 + 32, 128),
        ("aten.copy_(x, b)", 64, 128),
        ("aten.fill_(x, 0)", 0, 128),
        ("aten.add_(aten.slice(x, 1, 0, 2), 1)", 32, 32),
        ("y = aten.neg(aten.slice(x, 1, 0, 2))", 32, 32),
        ("l, h = aten.split(x, 4, -1)\ny = aten.cat([h, l], -1)", 128, 128),
        ("l, h = aten.split(x, 4, -1)\ny = aten.add(l, h)", 128, 64),
    ],
)
def test_read_and_written(body: str, read: int, written: int) -> None:
    moved = traffic_of(parse(X + body).ops[-1])
    assert (moved.read, moved.written, moved.total) == (read, written, read + written)


def test_a_gather_reads_the_rows_that_it_takes() -> None:
    [op] = parse("t: f32[1000, 8]\ni: i64[4]\ny = aten.embedding(t, i)").ops
    moved = traffic_of(op)
    assert (moved.read, moved.written) == (4 * 8 * 4 + 4 * 8, 4 * 8 * 4)


def test_two_reshapes_of_one_content_are_one_region() -> None:
    graph = parse("x: f32[4, 8]\na = aten.view(x, [32])\nb = aten.t(x)\nc = aten.slice(x, 1, 0, 4)")
    x, a, b, c = graph.values
    assert region_of(a) == region_of(b) == region_of(x) != region_of(c)
    assert bytes_of([x, a, b]) == 128
    assert bytes_of([]) == 0
