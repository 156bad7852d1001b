"""A cross entropy of logits and classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from auditor.engine.pattern import OP_CLASSES
from auditor.graph.nodes import Node
from auditor.patching.adapters.operands import argument
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.region import Unreachable
from auditor.patching.site import SiteView

REDUCTIONS = ("none", "mean", "sum")
"""In the order of PyTorch's ``Reduction``, whose number the native op is given."""


def cross_entropy(view: SiteView) -> Iterator[Wanted]:
    """``F.cross_entropy`` of rows of logits, with the casts around it. A smoothed one writes in place inside."""
    loss = _loss(view)
    lp = view.call("lp")
    if len(lp.outs[0].value.shape) != 2:
        raise Unreachable("the logits are not rows of classes")
    _, target, weight, reduction, ignored = (*loss.args, None, None, None)[:5]
    kwargs: dict[str, Any] = {
        "reduction": REDUCTIONS[1 if reduction is None else reduction],
        "ignore_index": -100 if ignored is None else ignored,
        "dtype": view.fake(view.region.outputs[0]).dtype,
    }
    args = (argument(view, lp, lp.args[0]), argument(view, loss, target), view.operand(weight))
    yield Wanted("cross_entropy", args, kwargs, view.results(view.sink()))


def _loss(view: SiteView) -> Node:
    """The native loss of the log-probabilities."""
    for node in view.inside() if view.has("lp") else ():
        if node.kind in OP_CLASSES["nll_loss"]:
            return node
    raise Unreachable("only a loss of classes after a log-softmax has a kernel of its own")
