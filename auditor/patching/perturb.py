"""Other inputs for a captured step: other values, and other sizes where the model takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from auditor.patching.precision import copied_tensor, copies
from auditor.patching.step import Step, named_inputs, tensors_of


def variants(step: Step) -> Iterator[tuple[str, Step]]:
    """The captured inputs, then perturbed ones. Eager may refuse some of them."""
    yield "captured inputs", step
    yield "other values", _perturbed(step, 1, {})
    tensors = [t for _, t in tensors_of(named_inputs(step.args, step.kwargs))]
    batch, length = _shared(tensors, 0), _shared(tensors, 1)
    if batch and length and batch != length:
        yield "another batch size and length", _perturbed(step, 2, {**_smaller(batch, 1), **_smaller(length, 4)})
    if length:
        yield "another length", _perturbed(step, 3, _smaller(length, 4), first=1)
    if batch:
        yield "another batch size", _perturbed(step, 4, _smaller(batch, 1), last=1)
    for seed in range(5, 9):
        yield f"other values ({seed - 3})", _perturbed(step, seed, {})


def _shared(tensors: Sequence[Tensor], dim: int) -> int:
    """The size of ``dim`` that all tensors have which have such a dim, broadcast ones apart; 0 where they differ."""
    sizes = {t.shape[dim] for t in tensors if t.dim() > dim} - {1}
    return sizes.pop() if len(sizes) == 1 else 0


def _smaller(size: int, parts: int) -> dict[int, int]:
    """``size`` to an odd one about a part smaller: a kernel that serves only even or full sizes shows."""
    less = size - max(1, size // parts) if parts > 1 else size - 1
    return {size: max(1, less - (parts > 1 and less % 2 == 0))}


def _perturbed(step: Step, seed: int, sizes: Mapping[int, int], *, first: int = 0, last: int = 99) -> Step:
    """The step on other values, with the sizes of the dims from ``first`` to before ``last`` cut as ``sizes`` says."""
    generator = torch.Generator().manual_seed(seed)

    def change(tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided:
            return copied_tensor(tensor)
        cut = tuple(
            slice(sizes.get(size, size) if first <= dim < last else size) for dim, size in enumerate(tensor.shape)
        )
        made = copied_tensor(tensor.detach()[cut])
        made.copy_(_other_values(made, generator))
        return made.requires_grad_(tensor.requires_grad)

    args, kwargs = copies((tuple(step.args), dict(step.kwargs)), change)
    return replace(step, args=args, kwargs=kwargs)


def _other_values(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Floating values scaled and jittered, integers permuted; masks, positions and offsets stay.

    A mask is what has infinite or huge values or only two; a position or offset what never falls along a row.
    """
    sample = tensor.flatten()[:4096]
    if tensor.dtype == torch.bool or sample.unique().numel() <= 2 or tensor.is_complex():
        return tensor
    if tensor.is_floating_point():
        wide = tensor.double()
        if not bool((wide.abs() < 1e4).all()):
            return tensor
        noise = torch.randn(tensor.shape, dtype=torch.float64, generator=generator).to(tensor.device)
        return 1.25 * wide + 0.1 * wide.square().mean().sqrt() * noise
    if bool((tensor.diff(dim=-1) >= 0).all()):
        return tensor
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.flatten()[order].reshape(tensor.shape)
