"""Optimizer steps as calls that can be measured like every other replacement.

``fused_optimizer`` takes an optimizer and returns a handle; what costs time is ``step``. So here a sample makes an
optimizer over random parameters, each implementation switches one of its own, and a call is a step of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.optim import SGD, AdamW, Optimizer

from fused_replacements import Replacement, Sample

Make = Callable[[], Optimizer]


def measurable(replacement: Replacement) -> Replacement:
    """``replacement``, or where that takes an optimizer, its steps."""
    if replacement.family != "optimizer":
        return replacement
    return replace(
        replacement,
        function=_stepping(replacement.function),
        reference=_stepping(replacement.reference),
        supports=lambda make: replacement.supports(make()),
        samples=_samples,
    )


def _stepping(switch: Callable[[Optimizer], Any]) -> Callable[[Make], None]:
    switched: dict[Make, Optimizer] = {}

    def step(make: Make) -> None:
        if make not in switched:
            switched[make] = make()
            switch(switched[make])
        switched[make].step()

    return step


def _samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """``rows`` × ``width`` elements in all, in few large parameters and in many small ones."""

    def parameters(count: int) -> list[torch.Tensor]:
        made = [torch.randn(max(1, rows // count), width, dtype=dtype, device=device) for _ in range(count)]
        for parameter in made:
            parameter.requires_grad_().grad = torch.randn_like(parameter)
        return made

    yield Sample("AdamW, 4 parameters", (lambda: AdamW(parameters(4)),))
    yield Sample("AdamW, 256 parameters", (lambda: AdamW(parameters(256)),))
    yield Sample("SGD with momentum, 64 parameters", (lambda: SGD(parameters(64), lr=1e-3, momentum=0.9),))
