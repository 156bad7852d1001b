"""A captured step of a model: its inputs, the modes that it ran in, the gradients that came back; and running it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from auditor.patching.errors import floating_leaves, named_leaves
from auditor.patching.precision import copies


@dataclass(frozen=True)
class Step:
    """A captured call of the model, and what its backward starts from."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    grad_enabled: bool = True
    inference_mode: bool = False
    autocast: tuple[str, torch.dtype] | None = None
    """Device type and dtype."""
    training: bool = False
    cotangents: tuple[Tensor | None, ...] | None = None
    """For each floating leaf of the output, in order, the gradient that comes in; None where none does. Without them a
    training step starts from its scalar outputs, or from random numbers where it has none."""

    @property
    def has_backward(self) -> bool:
        return self.grad_enabled and not self.inference_mode and (self.training or self.cotangents is not None)


Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments by place and by name."""


def copied_inputs(step: Step) -> Inputs:
    """Copies of the inputs of ``step``, for a model that may write to them (a KV cache)."""
    return copies(tuple(step.args)), copies(dict(step.kwargs))


def writes_inputs(call: Callable[..., Any], step: Step) -> bool:
    """Whether ``call`` changes what it is given: it is run once, on copies."""
    given = copied_inputs(step)
    run_step(call, step, backward=False, inputs=given)
    before = dict(tensors_of(named_inputs(step.args, step.kwargs)))
    after = dict(tensors_of(named_inputs(*given)))
    return before.keys() != after.keys() or any(not _same(before[path], after[path]) for path in before)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.detach(), other.detach()))


def run_step(
    call: Callable[..., Any], step: Step, *, backward: bool = True, inputs: Inputs | None = None
) -> Any:  # fmt: skip
    """``call`` (a model) on the inputs of ``step``, in its modes, and backward where it has one; returns the output.

    It is given copies of what was captured, or ``inputs``.
    """
    args, kwargs = copied_inputs(step) if inputs is None else inputs
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


@contextmanager
def step_modes(step: Step, live: bool) -> Iterator[None]:
    """The modes that the step was called in. In fp64 there is no autocast, and inference mode is no_grad."""
    with ExitStack() as stack:
        if step.inference_mode and live:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(step.grad_enabled and not step.inference_mode))
        if step.autocast is not None and live:
            stack.enter_context(torch.autocast(step.autocast[0], dtype=step.autocast[1]))
        yield


def cotangents_of(outputs: Sequence[Tensor], step: Step) -> list[Tensor | None]:
    """For each output the gradient that comes in, in its dtype; where the sizes are others, a random one as large."""
    given = step.cotangents
    if given is None:
        scalars = any(leaf.dim() == 0 and leaf.requires_grad for leaf in outputs)
        given = tuple(None if scalars and leaf.dim() else torch.ones((), dtype=leaf.dtype) for leaf in outputs)
    if len(given) != len(outputs):
        raise ValueError(f"{len(given)} cotangents for {len(outputs)} floating outputs")
    return [
        None if grad is None else _fitting(grad.detach(), leaf, seed)
        for seed, (leaf, grad) in enumerate(zip(outputs, given, strict=True))
    ]


def _fitting(grad: Tensor, leaf: Tensor, seed: int) -> Tensor:
    if grad.shape == leaf.shape:
        return grad.to(leaf)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(leaf.shape, dtype=torch.float64, generator=generator)
    rms = grad.double().square().mean().sqrt() if grad.numel() else 1.0
    # what fp16 and bf16 both hold, so that every version starts from the same numbers
    return (drawn * rms).bfloat16().to(leaf)


def named_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**{f"args[{place}]": value for place, value in enumerate(args)}, **kwargs}


def tensors_of(value: Any) -> list[tuple[str, Tensor]]:
    return [(path, leaf) for path, leaf in named_leaves(value) if isinstance(leaf, Tensor)]
