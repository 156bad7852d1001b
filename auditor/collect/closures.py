"""What stands below an optimizer's step in a trace and is no part of it.

``optimizer.step(closure)`` calls forward and backward itself: Lightning always does, and L-BFGS has to, several times
in one step. A closure is no range of its own in a trace. It is taken to begin with the step, or after a backward pass
with the next ``zero_grad`` or module, and to end with its backward; what comes after that is the optimizer's own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache

from auditor.collect.execution_trace import ExecutionTrace, Node
from auditor.graph.model import ACCUMULATE

BACKWARD = "autograd::engine::evaluate_function: "
STEP, ZERO_GRAD = "Optimizer.step#", "Optimizer.zero_grad#"
OPTIMIZER = (STEP, ZERO_GRAD)
_BEGINS = (ZERO_GRAD, "fa.module|")
_NODE = re.compile(r"\w*Backward\d*")


@cache
def is_backward_node(name: str) -> bool:
    """Whether an event of this name is a node that runs in the backward pass, as the profilers of all versions name it.

    Before PyTorch 1.10 there is no range around a node, but the node alone: ``ReluBackward1``.
    """
    return name.startswith((BACKWARD, "torch::autograd::")) or _NODE.fullmatch(name) is not None


_TAKES_UP = re.compile(
    r"(?:Mul|Div|Pow|Exp|Log|Sqrt|Rsqrt|Abs|Neg|Sin|Cos|Erf|Sigmoid|Tanh|Relu|LeakyRelu|Elu|Gelu|Silu|Mish|Softplus"
    r"|Hardtanh|Hardswish|Hardsigmoid|Threshold|Clamp\w*|Where|MaskedFill|NativeDropout|FusedDropout"
    r"|Softmax|LogSoftmax|Native(?:Layer|Batch|Group)Norm|(?:Cudnn|Miopen)(?:BatchNorm|Convolution)|Convolution\w*"
    r"|Thnn\w+|Mm|Bmm|Mv|Dot|Sum|Mean|Var|Std|Norm|LinalgVectorNorm|Max|Min|Cumsum|Embedding|Index\w*|Gather|Scatter"
    r"|Clone|ToCopy|T|Transpose|Permute|View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|Slice|Select|Split\w*|Unbind|Cat"
    r"|Stack|Repeat|Roll|Flip|Pad|ConstantPadNd|MaxPool\w+|AvgPool\w+|Upsample\w+|BinaryCrossEntropy\w*|NllLoss\w*"
    r"|MseLoss|ScaledDotProduct\w+)Backward\d+"
)


@cache
def takes_up(name: str) -> bool:
    """Whether what a node of this name gives on is never the gradient itself: as that of ``a + b`` to both is."""
    return _TAKES_UP.fullmatch(name) is not None


def scope_of(name: str) -> str:
    """``SGD.step`` of an optimizer's range, ``AccumulateGrad`` of the node that adds up gradients; else ``""``."""
    if name.startswith(OPTIMIZER):
        return name.partition("#")[2]
    return ACCUMULATE if name.endswith(f"::{ACCUMULATE}") else ""


@dataclass(frozen=True, slots=True)
class Closures:
    """Spans of node ids, first and last, in order and apart from each other: each call of a step's closure."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def __contains__(self, node: int) -> bool:
        at = bisect_right(self.first, node)
        return at > 0 and node <= self.last[at - 1]


NONE = Closures()


def backward_ends(trace: ExecutionTrace) -> list[int]:
    """Nodes at which a backward pass had returned, in order; none in traces that the recorder did not make."""
    return sorted(node.id for node in trace.nodes.values() if node.name == "fa.backward_end")


def closures_of(trace: ExecutionTrace) -> dict[int, Closures]:
    """Of each optimizer step that has a backward pass within: its closure's calls. Node ids are in order of start."""
    steps = [node for node in trace.nodes.values() if node.name.startswith(STEP)]
    if not steps:
        return {}
    events = sorted(
        (node.id, node.name.startswith(BACKWARD))
        for node in trace.nodes.values()
        if node.name.startswith((BACKWARD, *_BEGINS))
    )
    ids = [id_ for id_, _ in events]
    found = {}
    for step in steps:
        within = events[bisect_right(ids, step.id) : bisect_right(ids, _last_within(trace, step))]
        if any(backward for _, backward in within):
            found[step.id] = _calls(step.id, within)
    return found


def _calls(step: int, events: list[tuple[int, bool]]) -> Closures:
    first, last = [step], [0]
    for id_, backward in events:
        if backward:
            last[-1] = id_
        elif last[-1]:
            first.append(id_)
            last.append(0)
    if not last[-1]:  # zero_grad of the optimizer's own, after the last one
        del first[-1], last[-1]
    return Closures(tuple(first), tuple(last))


def _last_within(trace: ExecutionTrace, node: Node) -> int:
    """The largest id of what ran within ``node``: the last child that started, or what ran in that."""
    while children := trace.children.get(node.id):
        node = children[-1]
    return node.id
