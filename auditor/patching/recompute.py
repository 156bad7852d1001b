"""Activation checkpointing in a graph that runs eagerly.

Dynamo makes of ``torch.utils.checkpoint`` an operator around a graph of its own. Run eagerly that operator recomputes,
but draws other random numbers the second time: it counts on a compiler that keeps them. So it is exchanged for the
function that the model called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

OPTIONS = ("preserve_rng_state", "determinism_check", "debug", "early_stop")


class Recomputed:
    """Calls a graph, and calls it again in backward. ``opaque``: what it calls is no part of the graph around it."""

    opaque = True
    __name__ = "checkpoint"

    def __init__(self, body: fx.GraphModule, given: Mapping[str, Any]) -> None:
        self.body = body
        self._options = {name: given[name] for name in OPTIONS if name in given}
        contexts = body.meta.get("_checkpoint_context_fn")
        if contexts is not None:
            self._options["context_fn"] = contexts

    def __call__(self, body: fx.GraphModule, *inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return body.forward(*inputs)
        return checkpoint(body.forward, *inputs, use_reentrant=False, **self._options)


def take_checkpoints(module: fx.GraphModule) -> list[fx.GraphModule]:
    """The graphs inside of ``module`` that are checkpointed; each is called by ``checkpoint`` from now on."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.higher_order.tag_activation_checkpoint:
            body = getattr(module, node.args[0].target)
            node.target, node.kwargs = Recomputed(body, node.kwargs), {}
            found.append(body)
    return found
