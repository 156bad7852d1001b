"""Operands of a region as its FX nodes have them: before their casts, before their views, out of the parts of a tensor.

Content alone does not say how a tensor is read: the canonical graph takes a transposed view for the tensor itself. What
a replacement is called with therefore comes from the arguments of the nodes that the region consists of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from auditor.collect.capture import hint
from auditor.graph.nodes import CValue, Node
from auditor.graph.ops import kind_of
from auditor.patching.calls import Nested
from auditor.patching.region import Unreachable, viewed
from auditor.patching.site import SiteView

Operand = fx.Node | Nested


def sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape as at the call that was traced."""
    return tuple(hint(n) for n in tensor.shape)


def read_by(view: SiteView, node: Node, content: CValue) -> fx.Node:
    """The argument that shows ``content`` to the FX node of ``node``.

    Raises:
        Unreachable: none does.
    """
    for op in node.ops:
        for given in view.node_of(op).all_input_nodes:
            if view.content(given) is content.root:
                return given
    raise Unreachable(f"{content.value!r} is no argument of {node.kind}")


def argument(view: SiteView, node: Node, content: CValue) -> Operand:
    """What the FX node of ``node`` is called with for its operand ``content``, as it is outside of the region.

    Raises:
        Unreachable: no argument shows it, or something in the region computes it.
    """
    return outside(view, read_by(view, node, content))


def uncast(view: SiteView, node: fx.Node) -> fx.Node:
    """``node`` before the casts and copies that belong to the region."""
    while node in view.region.members:
        source, kinds = _only_tensor(view, node), _kinds(view, node)
        if source is None or kinds != {"copy"}:
            break
        node = source
    return node


def _kinds(view: SiteView, node: fx.Node) -> set[str]:
    return {kind_of(op.name) for op in view.captured.ops_of(node) if op.kernels}


def outside(view: SiteView, node: fx.Node) -> Operand:
    """``node`` itself, or what it is in the region before casts and copies: views between are taken again.

    Raises:
        Unreachable: something in the region computes it.
    """
    if node not in view.region.members:
        return node
    source, kinds = _only_tensor(view, node), _kinds(view, node)
    if source is None or kinds - {"copy"}:
        raise Unreachable(f"{node.name} is computed in between")
    before = outside(view, source)
    return before if _same_layout(view, node, source) or kinds else _viewed(node, source, before)


def _only_tensor(view: SiteView, node: fx.Node) -> fx.Node | None:
    tensors = [n for n in node.all_input_nodes if isinstance(view.captured.results[n], Tensor)]
    return tensors[0] if len(tensors) == 1 and node.args[:1] == (tensors[0],) else None


def _same_layout(view: SiteView, node: fx.Node, source: fx.Node) -> bool:
    a, b = view.fake(node), view.fake(source)
    return sizes(a) == sizes(b) and tuple(map(hint, a.stride())) == tuple(map(hint, b.stride()))


def _viewed(node: fx.Node, source: fx.Node, before: Operand) -> Nested:
    if node.all_input_nodes != [source] or node.kwargs:
        raise Unreachable(f"{node.name} views it by sizes that change from call to call")
    function = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
    return Nested(function, (before, *node.args[1:]))  # type: ignore[arg-type]


def viewed_by(view: SiteView, node: fx.Node) -> Iterator[fx.Node]:
    """``node``, the tensor that it is a view of, the one that this is a view of, and so on."""
    return (n for n in viewed(node, view.captured) if isinstance(view.captured.results[n], Tensor))


def with_rows(view: SiteView, node: fx.Node, rows: Sequence[int]) -> Operand:
    """The tensor that ``node`` is a view of, in the shape (*rows, width): the last dimension of ``node`` behind others.

    Raises:
        Unreachable: it has not been of this shape.
    """
    width = sizes(view.fake(node))[-1]
    for source in viewed_by(view, node):
        if sizes(view.fake(source)) == (*rows, width):
            return outside(view, source)
    raise Unreachable(f"{node.name} was never of the shape that the result has")


def uncut(view: SiteView, parts: Sequence[fx.Node]) -> fx.Node | None:
    """The tensor of which ``parts`` are consecutive pieces of the last dimension, and the whole of it."""
    width = sum(sizes(view.fake(part))[-1] for part in parts)
    for source in viewed_by(view, parts[0]):
        whole = view.fake(source)
        if sizes(whole)[-1:] == (width,) and _consecutive(view, whole, parts):
            return source
    return None


def interlaced(view: SiteView, even: fx.Node, odd: fx.Node) -> fx.Node | None:
    """The tensor of whose last dimension ``even`` has the elements 0, 2, 4, … and ``odd`` the elements 1, 3, 5, …"""
    first, second = view.fake(even), view.fake(odd)
    for source in viewed_by(view, even):
        whole = view.fake(source)
        step = hint(whole.stride(-1)) if whole.dim() else 0
        if sizes(whole) != (*sizes(first)[:-1], 2 * sizes(first)[-1]):
            continue
        if _places(first, whole, 2 * step) == 0 and _places(second, whole, 2 * step) == step:
            return source
    return None


def _consecutive(view: SiteView, whole: Tensor, parts: Sequence[fx.Node]) -> bool:
    step, place = hint(whole.stride(-1)), 0
    for part in parts:
        if _places(view.fake(part), whole, step) != place:
            return False
        place += step * sizes(view.fake(part))[-1]
    return True


def _places(part: Tensor, whole: Tensor, step: int) -> int | None:
    """Where in ``whole`` the view ``part`` begins; None where it differs in more than the last dimension."""
    if part.untyped_storage()._cdata != whole.untyped_storage()._cdata or part.dim() != whole.dim():
        return None
    if sizes(part)[:-1] != sizes(whole)[:-1] or (sizes(part)[-1] > 1 and hint(part.stride(-1)) != step):
        return None
    rows = zip(part.stride()[:-1], whole.stride()[:-1], sizes(part)[:-1], strict=True)
    if any(size > 1 and hint(a) != hint(b) for a, b, size in rows):
        return None
    return int(hint(part.storage_offset()) - hint(whole.storage_offset()))


def learned_number(view: SiteView, argument: Any) -> float | None:
    """A number, or one that the model makes anew as a tensor at every call (``torch.full([], 8.0)``); else None."""
    if isinstance(argument, (int, float)):
        return float(argument)
    if type(argument) is not CValue or argument.value.numel != 1:
        return None
    for node, values in view.captured.values.items():
        if values and values[0] is not None and view.canonical.cvalue(values[0]).root is argument.root:
            return _filled(node)
    return None


def _filled(node: fx.Node) -> float | None:
    if node.target is torch.full:
        value = node.args[1] if len(node.args) > 1 else node.kwargs.get("fill_value")
    elif node.target in (torch.tensor, torch.scalar_tensor):
        value = node.args[0]
    else:
        return None
    return float(value) if isinstance(value, (int, float)) else None
