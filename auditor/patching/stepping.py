"""Running a captured step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from auditor.patching.errors import floating_leaves
from auditor.patching.precision import copies
from auditor.patching.verify import Step, cotangents_of, step_modes


def run_step(call: Callable[..., Any], step: Step, *, backward: bool = True, copied: bool = True) -> Any:
    """``call`` (a model) on the inputs of ``step``, in its modes, and backward where it has one; returns the output.

    ``copied``: on copies of the inputs, for a model that writes to them (a KV cache).
    """
    args, kwargs = (copies(tuple(step.args)), copies(dict(step.kwargs))) if copied else (step.args, step.kwargs)
    with step_modes(step, live=True):
        output = call(*args, **kwargs)
        if backward and step.has_backward:
            outputs = [leaf for _, leaf in floating_leaves(output)]
            pairs = [
                (leaf, grad)
                for leaf, grad in zip(outputs, cotangents_of(outputs, step), strict=True)
                if grad is not None and leaf.requires_grad
            ]
            torch.autograd.backward([leaf for leaf, _ in pairs], [grad for _, grad in pairs])
    return output
