"""What needs an op and its operands to be told: ``x * sigmoid(x)`` is ``silu``, ``1 / sqrt`` is ``rsqrt``.

Each function may give a new node another kind and let it absorb the nodes that it now covers. What one call
tells by itself is in :mod:`auditor.graph.normal`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from auditor.graph.model import Op, Value, owner_of
from auditor.graph.nodes import CValue, Node
from auditor.graph.ops import base_name, kind_of

if TYPE_CHECKING:
    from auditor.graph.canonical import Canonical

COMPLEX = frozenset({"c32", "c64", "c128"})


def _made_by(arg: Any, kind: str) -> Node | None:
    if type(arg) is CValue and arg.producer is not None and arg.producer.kind == kind:
        return arg.producer
    return None


def _rewrite_mul(graph: Canonical, node: Node) -> None:
    a, b = node.args
    if type(a) is CValue and type(b) is CValue:
        if _same_elements(a, b, node.op):
            node.kind, node.args = "square", (a,)
            return
        for x, other in ((a, b), (b, a)):
            for rewrite in (_as_silu, _as_dropout, _as_dropout_backward, _as_division):
                if rewrite(graph, node, x, other):
                    return
        if node.op.outputs and node.op.outputs[0].dtype in COMPLEX:
            node.kind = "complex_mul"
    elif not _as_division(graph, node, b, a):
        _as_mean(graph, node)


def _same_elements(a: CValue, b: CValue, op: Op) -> bool:
    """Both factors show one content, and the same element of it at each index: not ``x * x.t()``."""
    if a.root is not b.root or a.value.dtype != b.value.dtype:
        return False
    left, right = op.args[:2]
    if not isinstance(left, Value) or not isinstance(right, Value):
        return False
    return left is right or (left.shape == right.shape and _steps(left) == _steps(right))


def _steps(value: Value) -> list[int]:
    return [step for step, size in zip(value.strides, value.shape, strict=True) if size != 1]


def _as_silu(graph: Canonical, node: Node, x: CValue, gate: CValue) -> bool:
    """``x * sigmoid(x)`` is ``silu``, ``x * sigmoid(c * x)`` is ``quick_gelu``: neither gates another tensor."""
    sigmoid = _made_by(gate, "sigmoid")
    if sigmoid is None or not graph.read_only_by(gate, node.op):
        return False
    source = sigmoid.args[0]
    scale = _made_by(source, "mul")
    if source.root is x.root:
        node.kind = "silu"
    elif scale is not None and _scales(scale, x) and graph.read_only_by(source, sigmoid.op):
        graph.absorb(node, scale)
        node.kind = "quick_gelu"
    else:
        return False
    graph.absorb(node, sigmoid)
    node.args = (x,)
    return True


def _scales(mul: Node, x: CValue) -> bool:
    """``mul`` multiplies ``x`` by a number."""
    return type(mul.args[0]) is CValue and mul.args[0].root is x.root and is_scalar(mul.args[1])


def is_scalar(arg: Any) -> bool:
    """A Python number. Traces write ``x / 8.0`` with a 0-d tensor that no op of the step has made."""
    if type(arg) is CValue:
        return arg.producer is None and arg.value.shape == ()
    return isinstance(arg, int | float)


def _as_division(graph: Canonical, node: Node, x: Any, inverse: Any) -> bool:
    """``x * (1 / y)``; PyTorch computes ``127 / y`` so, too."""
    reciprocal = _made_by(inverse, "reciprocal")
    if reciprocal is None or not graph.read_only_by(inverse, node.op):
        return False
    graph.absorb(node, reciprocal)
    node.kind, node.args = "div", (x, reciprocal.args[0])
    return True


def _as_dropout(graph: Canonical, node: Node, x: CValue, noise: CValue) -> bool:
    scale = _made_by(noise, "mul")
    if scale is None or type(scale.args[1]) is CValue or not graph.read_only_by(noise, node.op):
        return False
    draw = _made_by(scale.args[0], "bernoulli")
    if draw is None:
        return False
    graph.absorb(node, scale)
    graph.absorb(node, draw)
    node.kind, node.args = "dropout", (x,)
    return True


def _as_dropout_backward(_: Canonical, node: Node, grad: CValue, noise: CValue) -> bool:
    """The backward of a dropout by parts multiplies by the noise that the forward drew and scaled."""
    drawn = noise.root.producer
    if drawn is None or drawn.kind != "dropout" or not noise.root.index or node.phase != "backward":
        return False
    node.kind, node.args = "dropout_backward", (grad, noise)
    return True


def _as_mean(graph: Canonical, node: Node) -> None:
    total, factor = node.args
    reduce = _made_by(total, "sum")
    if reduce is None or not isinstance(factor, float) or not graph.read_only_by(total, node.op):
        return
    source = reduce.args[0].value
    if total.value.numel and abs(factor * source.numel / total.value.numel - 1) < 1e-6:
        graph.absorb(node, reduce)
        node.kind, node.args = "mean", reduce.args


def _rewrite_reduction(_: Canonical, node: Node) -> None:
    """Old traces hold no numbers: the dims are what the result lacks, and what is averaged is a square.

    A power of which nothing is known may be another one; no rule takes its mean for a norm but under a root.
    """
    source = node.args[0]
    if type(source) is not CValue or not node.op.outputs or len(node.args) < 2 or node.args[1] is not None:
        return
    shape, result = source.value.shape, node.op.outputs[0].shape
    if len(shape) > 1 and result in ((*shape[:-1], 1), shape[:-1]):
        node.args = (source, (-1,), *node.args[2:])
    power = _made_by(source, "pow")
    if node.kind == "mean" and power is not None and power.args[1:] == (None,):
        power.kind, power.args = "square", power.args[:1]


def _rewrite_reciprocal(graph: Canonical, node: Node) -> None:
    root = _made_by(node.args[0], "sqrt")
    if root is not None and graph.read_only_by(node.args[0], node.op):
        graph.absorb(node, root)
        node.kind, node.args = "rsqrt", root.args


def _rewrite_div(graph: Canonical, node: Node) -> None:
    """``x / sqrt(v)`` is ``x * rsqrt(v)`` when nobody else reads the root; a division by a number is a scale."""
    if is_scalar(node.args[1]):
        node.kind = "mul"
        return
    root = _made_by(node.args[1], "sqrt")
    if root is not None and graph.read_only_by(node.args[1], node.op):
        root.kind = "rsqrt"
        node.kind = "mul"


def _rewrite_relu(_: Canonical, node: Node) -> None:
    """``clamp(norm, 1e-12)`` of one number a row is a floor: traces write constants with six decimals, as 0."""
    source = node.args[0]
    if base_name(node.op.name) != "aten.relu" and type(source) is CValue and source.value.shape[-1:] == (1,):
        node.kind, node.args = "clamp_min", (source, 0.0)


def _rewrite_softmax(graph: Canonical, node: Node) -> None:
    """``softmax(x - amax(x))`` is ``softmax(x)``: the kernel subtracts the maximum anyway."""
    shifted = _made_by(node.args[0], "sub")
    if shifted is None or not graph.read_only_by(node.args[0], node.op):
        return
    x, shift = shifted.args
    top = _made_by(shift, "amax")
    dims = top.args[1] if top is not None and len(top.args) > 1 else None
    if top is None or dims != (node.args[1],) or top.args[0].root is not x.root:
        return
    if graph.read_only_by(shift, shifted.op):
        graph.absorb(node, shifted)
        graph.absorb(node, top)
        node.args = (x, node.args[1])


def _rewrite_cast(_: Canonical, node: Node) -> None:
    op = node.op
    if op.outputs and type(node.args[0]) is CValue and op.outputs[0].dtype == node.args[0].value.dtype:
        node.kind = "copy"


def _rewrite_copy_into(_: Canonical, node: Node) -> None:
    """``copy_`` over all of a fresh buffer is a copy of its source; into a part or a live buffer it is a write."""
    if len(node.args) < 2:
        return
    source, written = node.args[1], node.op.args[0]
    if type(source) is not CValue or not isinstance(written, Value):
        return
    owner = owner_of(written)
    fresh = owner.producer is not None and kind_of(owner.producer.name) == "allocation"
    if fresh and written.extent == owner.extent and written.numel == source.value.numel:
        node.kind = "cast" if written.dtype != source.value.dtype else "copy"
        node.args = (source,)


REWRITES = {
    "mul": _rewrite_mul,
    "mean": _rewrite_reduction,
    "sum": _rewrite_reduction,
    "amax": _rewrite_reduction,
    "reciprocal": _rewrite_reciprocal,
    "div": _rewrite_div,
    "softmax": _rewrite_softmax,
    "relu": _rewrite_relu,
    "cast": _rewrite_cast,
    "copy_into": _rewrite_copy_into,
}
