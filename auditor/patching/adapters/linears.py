"""Linear layers: with what is applied to their result, and several on one input."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from auditor.engine.pattern import OP_CLASSES
from auditor.graph.nodes import CValue, Node
from auditor.patching.adapters.activations import names_of
from auditor.patching.adapters.operands import Operand, argument, outside, sizes, with_rows
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.region import Unreachable
from auditor.patching.site import SiteView
from fused_replacements.horizontal._adjacent import adjacent
from fused_replacements.horizontal.packed_linears import PackedLinears, packing_refusal

_LINEAR = ("input", "weight", "bias")


@dataclass(frozen=True)
class _Linear:
    """A call of a linear layer. ``conv1d``: the weight is (in, out)."""

    x: Operand
    weight: Operand
    bias: Operand | None
    conv1d: bool


def linear_epilogue(view: SiteView) -> Iterator[Wanted]:
    """A linear layer and a bias, an activation, or a residual add behind it."""
    gemm, last = view.call("g", "p"), view.call("y", "s")
    _check_one_step(gemm, last)
    linear, addend = _linear(view, gemm), _addend(view, gemm)
    bias, residual = linear.bias, None
    if addend is not None and view.fake(addend).dim() == 1 and bias is None:
        bias = addend
    elif addend is not None and last.kind == "add":
        residual = _as_large(view, addend)
    elif addend is not None:
        raise Unreachable("more than one bias is added before the activation")
    results = view.results(view.sink())
    for name in ("identity",) if last.kind == "add" else _activations(view, last):
        kwargs = {"residual": residual, "conv1d": linear.conv1d}
        yield Wanted("linear_epilogue", (linear.x, linear.weight, bias, name), kwargs, results)


def _check_one_step(gemm: Node, last: Node) -> None:
    """Refuse what the library has no epilogue for: an activation of another one, and a sum that is scaled."""
    before = last.args[0].root.producer if type(last.args[0]) is CValue else None
    kind = before.kind if before is not None and before is not gemm else ""
    if last.kind == "mul" and kind == "add":
        raise Unreachable("no epilogue scales the sum")
    if kind in OP_CLASSES["activation"] | {"quick_gelu"} and last.kind not in ("square", "pow", "add"):
        raise Unreachable("no epilogue computes two activations")


def _activations(view: SiteView, last: Node) -> tuple[str, ...]:
    """The names that the library has for what the pattern's last call and those before it compute."""
    if last.kind in ("square", "pow"):
        return ("relu_squared",)
    names = names_of(view, last)
    if not names:
        raise Unreachable(f"no epilogue computes {last.kind}")
    return names


def _linear(view: SiteView, gemm: Node) -> _Linear:
    node = view.node_of(gemm.op)
    if node.target in (F.linear, torch._C._nn.linear):
        return _of_linear(view, node)
    if node.target is torch.addmm:
        return _of_addmm(view, node)
    if node.target in (torch.matmul, torch.mm, operator.matmul, "matmul", "mm", "__matmul__"):
        return _of_product(view, node)
    raise Unreachable(f"{gemm.kind} has no fused epilogue")


def _of_linear(view: SiteView, node: fx.Node) -> _Linear:
    given = dict(zip(_LINEAR, node.args, strict=False)) | dict(node.kwargs)
    bias = given.get("bias")
    return _Linear(_given(view, given["input"]), _given(view, given["weight"]),
                   None if bias is None else _given(view, bias), False)  # fmt: skip


def _of_addmm(view: SiteView, node: fx.Node) -> _Linear:
    if node.kwargs or len(node.args) != 3:
        raise Unreachable(f"{node.name} is called by keywords")
    bias, x, weight = node.args
    if not isinstance(bias, fx.Node) or view.fake(bias).dim() != 1:
        raise Unreachable(f"{node.name} adds more than a row")
    return _Linear(_rows_of(view, x), _given(view, weight), outside(view, bias), True)


def _of_product(view: SiteView, node: fx.Node) -> _Linear:
    if node.kwargs or len(node.args) != 2:
        raise Unreachable(f"{node.name} is called by keywords")
    x, weight = node.args
    if not isinstance(weight, fx.Node) or view.fake(weight).dim() != 2:
        raise Unreachable("a product of two activations has no fused epilogue")
    return _Linear(_rows_of(view, x), _given(view, weight), None, True)


def _rows_of(view: SiteView, x: Any) -> Operand:
    """``x`` in the shape of the result: models flatten the rows of what they multiply, and view the result."""
    if not isinstance(x, fx.Node):
        raise Unreachable("it multiplies a constant")
    rows = sizes(view.fake(view.region.outputs[0]))[:-1]
    return with_rows(view, x, rows)


def _given(view: SiteView, value: Any) -> Operand:
    if not isinstance(value, fx.Node):
        raise Unreachable("it multiplies a constant")
    return outside(view, value)


def _addend(view: SiteView, gemm: Node) -> fx.Node | None:
    """What is added to the product."""
    for node in view.inside():
        if node.kind == "add":
            a, b = node.args
            other = b if a.root.producer is gemm else a
            found = argument(view, node, other) if type(other) is CValue else None
            if not isinstance(found, fx.Node):
                raise Unreachable("what is added is a number, or viewed in another shape in between")
            return found
    return None


def _as_large(view: SiteView, addend: fx.Node) -> fx.Node:
    if sizes(view.fake(addend)) != sizes(view.fake(view.region.outputs[0])):
        raise Unreachable(f"{addend.name} is broadcast over the result")
    return addend


def packed_linear(view: SiteView) -> Iterator[Wanted]:
    """Linear layers on one input. Weights that do not lie one behind the other are put there."""
    nodes = list(dict.fromkeys(view.node_of(op) for op in view.region.site.region.ops))
    if any(node.target not in (F.linear, torch._C._nn.linear) for node in nodes):
        raise Unreachable("the siblings are not all calls of F.linear")
    linears = [_of_linear(view, node) for node in nodes]
    x, weights = linears[0].x, tuple(_placeholder(linear.weight) for linear in linears)
    if any(linear.x is not x for linear in linears):
        raise Unreachable("the siblings read their input in different shapes")
    biases = tuple(linear.bias for linear in linears)
    places = {node: i for i, node in enumerate(nodes)}
    if any(node not in places for node in view.region.outputs):
        raise Unreachable("a view of a result belongs to it")
    present = tuple(bias for bias in biases if isinstance(bias, fx.Node))
    buffers = (weights, present) if len(present) == len(weights) else (weights,)
    yield Wanted(
        "packed_linear", (x, weights, biases if present else None), {}, tuple(places[n] for n in view.region.outputs),
        buffers=buffers, prepare=_packing(view, weights),
    )  # fmt: skip


def _placeholder(weight: Operand) -> fx.Node:
    if not isinstance(weight, fx.Node):
        raise Unreachable("a weight is a view of another tensor")
    return weight


def _packing(view: SiteView, weights: Sequence[fx.Node]) -> Callable[[], Callable[[], None]] | None:
    """What puts the live weights into one buffer; None where they lie in one.

    Raises:
        Unreachable: they can't be moved.
    """
    modules = [view.module_of(weight) for weight in weights]

    def pack() -> Callable[[], None]:
        if _packed(modules, view.model):
            return lambda: None  # the modules are called twice
        return PackedLinears(modules).undo  # type: ignore[arg-type]

    return None if _packed(modules, view.model) else pack


def _packed(modules: Sequence[nn.Module], model: nn.Module | None) -> bool:
    """Whether the weights lie in one buffer. Raises Unreachable where they don't and can't be put there."""
    if adjacent([module.weight for module in modules]):  # type: ignore[misc]
        return True
    reason = packing_refusal(modules, model)
    if reason is not None:
        raise Unreachable(reason)
    return False
