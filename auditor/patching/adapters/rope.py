"""Rotary position embedding in its spellings: half-split, interleaved, of complex numbers; whole heads or a part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from auditor.graph.nodes import CValue, Node
from auditor.patching.adapters.operands import Operand, interlaced, outside, read_by, sizes, uncast, uncut, viewed_by
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.calls import Nested
from auditor.patching.region import Unreachable
from auditor.patching.site import SiteView


@dataclass(frozen=True)
class _Turn:
    """What is turned, by which tables. ``half``: as many pairs has a head."""

    x: Operand
    cos: Operand
    sin: Operand
    half: int
    interleaved: bool


def rope(view: SiteView) -> Iterator[Wanted]:
    """q or k, turned by the angles of their positions."""
    if view.has("pairs"):
        turn = _complex(view)
    elif view.has("turned"):
        turn = _by_whole_tables(view)
    else:
        turn = _by_halves(view)
    dtype = view.fake(view.region.outputs[0]).dtype
    options = {"interleaved": turn.interleaved, "rotary_dim": 2 * turn.half, "dtype": dtype}
    yield Wanted("rope", (turn.x, None, turn.cos, turn.sin), options, view.results(view.sink()))


def _by_whole_tables(view: SiteView) -> _Turn:
    """``x · cos + turned · sin``, where ``turned`` holds the second elements negated, and the first ones."""
    turned = view.call("turned")
    interleaved = _order(view, turned)
    negated, first = turned.args[0]
    second = negated.root.producer
    pair = uncast(view, read_by(view, turned, first)), uncast(view, read_by(view, second, second.args[0]))
    x = _head(view, *pair, interleaved)
    rank = view.fake(pair[0]).dim()
    cos, sin = (_table(view, _content(view, name), rank) for name in ("cos", "sin"))
    return _Turn(x, cos, sin, sizes(view.fake(pair[0]))[-1], interleaved)


def _by_halves(view: SiteView) -> _Turn:
    """Both elements of the pairs on their own, joined at the end."""
    found = [_content(view, name) for name in ("x1", "x2", "cos1", "sin1")]
    others = [_content(view, name) if view.has(name) else None for name in ("cos2", "sin2")]
    interleaved = _order(view, view.call("y"))
    try:
        x = _head(view, *_pair(view, *found[:2]), interleaved)
    except Unreachable:
        # products commute: the pattern may have taken the tables for the halves
        found, others = [*found[2:], *found[:2]], [None, None]
        x = _head(view, *_pair(view, *found[:2]), interleaved)
    first = view.fake(_pair(view, *found[:2])[0])
    cos, sin = (
        _pair_table(view, table, other or table, first.dim(), interleaved)
        for table, other in zip(found[2:], others, strict=True)
    )
    back = any(node.kind == "neg" for node in view.inside())
    return _Turn(x, cos, Nested(torch.neg, (sin,)) if back else sin, sizes(first)[-1], interleaved)


def _complex(view: SiteView) -> _Turn:
    """The product of pairs, taken for complex numbers, and a complex table."""
    product = view.call("y")
    pairs, freqs = read_by(view, product, _content(view, "pairs")), _content(view, "freqs")
    *rows, half = sizes(view.fake(pairs))
    head = _of_shape(view, pairs, (*rows, 2 * half))
    x = outside(view, _with_rest(view, head))
    table = _lifted(view, read_by(view, product, freqs), len(rows) + 1)
    return _Turn(x, Nested(torch.real, (table,)), Nested(torch.imag, (table,)), half, True)


def _content(view: SiteView, name: str) -> CValue:
    found = view.variable(name)
    return view.out(name) if found is None else found


def _reader(view: SiteView, content: CValue) -> Node:
    for node in view.inside():
        if node.kind == "mul" and any(operand.root is content.root for operand in node.operands()):
            return node
    raise Unreachable(f"{content.value!r} is a factor of no product")


def _pair(view: SiteView, first: CValue, second: CValue) -> tuple[fx.Node, fx.Node]:
    a, b = (uncast(view, read_by(view, _reader(view, content), content)) for content in (first, second))
    return a, b


def _order(view: SiteView, joined: Node) -> bool:
    """Whether ``joined`` puts the elements of a pair side by side.

    Raises:
        Unreachable: it joins them in another way.
    """
    parts, dim = joined.args
    if joined.kind == "stack" and dim in (-1, -2):
        return bool(dim == -1)
    node = view.node_of(joined.op)
    width = sizes(view.fake(node.all_input_nodes[0]))[-1]
    if joined.kind == "cat" and dim == -1 and len(parts) == 2:
        return width == 1 and sizes(view.fake(node))[-2] != 1 and view.fake(node).dim() > len(parts[0].value.shape)
    raise Unreachable("the turned elements are joined in another way")


def _head(view: SiteView, first: fx.Node, second: fx.Node, interleaved: bool) -> Operand:
    """The tensor of whose heads ``first`` and ``second`` hold the elements of the pairs.

    Raises:
        Unreachable: they are not all of it, or not of this order.
    """
    head = interlaced(view, first, second) if interleaved else uncut(view, (first, second))
    if head is None:
        raise Unreachable("the elements of its pairs are not the parts of one tensor, in the order of the result")
    return outside(view, _with_rest(view, head))


def _with_rest(view: SiteView, head: fx.Node) -> fx.Node:
    """``head`` and what is passed through behind it, as one tensor."""
    if not view.has("whole"):
        return head
    whole = view.call("whole")
    parts = view.node_of(whole.op).args[0]
    if not isinstance(parts, (list, tuple)) or len(parts) != 2 or whole.args[0][0].root is not view.out("y").root:
        raise Unreachable("what is passed through does not come behind what is turned")
    rest = parts[1]
    assert isinstance(rest, fx.Node)
    found = uncut(view, (head, uncast(view, rest)))
    if found is None:
        raise Unreachable("what is turned and what is passed through are not the parts of one tensor")
    return found


def _table(view: SiteView, content: CValue, rank: int) -> Operand:
    return _lifted(view, read_by(view, _reader(view, content), content), rank)


def _pair_table(view: SiteView, first: CValue, second: CValue, rank: int, interleaved: bool) -> Operand:
    """One table for both elements of a pair, or the table that has an entry for each."""
    if first.root is second.root:
        return _table(view, first, rank)
    a, b = _pair(view, first, second)
    whole = interlaced(view, a, b) if interleaved else uncut(view, (a, b))
    if whole is None:
        raise Unreachable("the elements of a pair have tables of their own")
    return _lifted(view, whole, rank)


def _lifted(view: SiteView, table: fx.Node, rank: int) -> Operand:
    """``table`` with as many dimensions as the heads have: the replacement would put one in elsewhere."""
    found = outside(view, table)
    for _ in range(rank - view.fake(table).dim()):
        found = Nested(torch.unsqueeze, (found, 0))
    return found


def _of_shape(view: SiteView, node: fx.Node, shape: tuple[int, ...]) -> fx.Node:
    """The real tensor of this shape that ``node`` views as complex."""
    while True:
        chain = list(viewed_by(view, node))
        for source in chain:
            if sizes(view.fake(source)) == shape and not view.fake(source).is_complex():
                return source
        before = uncast(view, chain[-1])
        if before is chain[-1]:
            raise Unreachable("the pairs are not the elements of one tensor of this shape")
        node = before
