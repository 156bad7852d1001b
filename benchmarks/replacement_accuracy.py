"""Is a replacement as exact as the eager code? Outputs and gradients against the definition in fp64.

The error of the replacement may be twice that of eager, each the largest over a tensor, plus rounding that no code can
avoid: half a unit of the last place of the largest element in bf16 and fp16, two units in fp32, where sums of another
order differ. NaN and infinities must stand where eager has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

import torch
from replacement_calls import Call, Implementation, Size, learned, sample_of, tensors
from torch import Tensor
from torch.utils._pytree import tree_map

from fused_replacements import Replacement

SEED: Final = 3
"""Set before every call: what is random inside (dropout) is the same in each."""
LAST_PLACES: Final = {torch.float32: 2.0, torch.bfloat16: 0.5, torch.float16: 0.5}


@dataclass(frozen=True)
class Accuracy:
    """Of one variant at one dtype."""

    worst: float
    """The largest error as a share of what is allowed: over 1 is wrong."""
    problems: list[str]


def accuracy(replacement: Replacement, label: str, size: Size) -> Accuracy:
    """How exact the variant ``label`` is, forward and, where it has one, backward."""
    call = Call.of(replacement, sample_of(replacement, label, size))
    before = [tensor.detach().clone() for tensor in tensors((call.sample.args, dict(call.sample.kwargs)))]
    fused = _results(call, replacement.function)
    now = tensors((call.sample.args, dict(call.sample.kwargs)))
    problems = ["an input was written to"] if not all(map(_same, before, now)) else []
    eager = _results(call, replacement.reference)
    exact = _results(_wide(call), replacement.reference)
    worst = 0.0
    for place, (mine, its, true) in enumerate(zip(fused, eager, exact, strict=True)):
        share, problem = _compared(mine, its, true)
        worst = max(worst, share)
        outputs = len(fused) - len(call.inputs)
        where = f"output {place}" if place < outputs else f"gradient {place - outputs}"
        problems += [f"{where} {problem}"] if problem else []
    return Accuracy(worst, problems)


def _same(before: Tensor, now: Tensor) -> bool:
    return (
        torch.equal(before.nan_to_num(), now.detach().nan_to_num())
        if before.is_floating_point()
        else torch.equal(before, now)
    )


def _results(call: Call, implementation: Implementation) -> list[Tensor | None]:
    torch.manual_seed(SEED)
    if not call.inputs or not call.incoming:
        return [*tensors(call.forward(implementation)), *repeat(None, len(call.inputs))]
    outputs, gradients = call.training(implementation)
    return [*(output.detach() for output in tensors(outputs)), *gradients]


def _wide(call: Call) -> Call:
    """The same numbers in fp64, the dtypes that a call asks for included."""

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.detach().double()
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    sample = replace(
        call.sample, args=tree_map(wide, call.sample.args), kwargs=tree_map(wide, dict(call.sample.kwargs))
    )
    inputs = learned(call.replacement, sample)
    for tensor in inputs:
        tensor.requires_grad_()
    return replace(call, sample=sample, inputs=inputs, incoming=[gradient.double() for gradient in call.incoming])


def _compared(mine: Tensor | None, its: Tensor | None, true: Tensor | None) -> tuple[float, str | None]:
    """The error of ``mine`` as a share of the allowed one, and what is wrong with it."""
    if its is None or true is None or not its.numel():
        return 0.0, None
    if mine is None:
        return float("inf"), "is missing"
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return float("inf"), f"is {mine.dtype} {tuple(mine.shape)}, not {its.dtype} {tuple(its.shape)}"
    if not its.is_floating_point():
        return (0.0, None) if torch.equal(mine, its) else (float("inf"), "differs")
    if not torch.equal(mine.isnan(), its.isnan()):
        return float("inf"), "has NaN elsewhere than eager"
    off, its_off, scale = _largest([mine, its, true])
    allowed = 2 * its_off + LAST_PLACES.get(mine.dtype, 2.0) * torch.finfo(mine.dtype).eps * scale
    share = off / allowed if off else 0.0
    return share, f"is off by {off:.3g}, eager by {its_off:.3g}" if share > 1 else None


def _largest(three: Sequence[Tensor]) -> Iterator[float]:
    """The largest error of the first two against the third, and its largest element."""
    mine, its, true = (torch.nan_to_num(tensor.double(), 0.0, 3e38, -3e38) for tensor in three)
    yield from (float((mine - true).abs().max()), float((its - true).abs().max()), float(true.abs().max()))
