"""How every replacement is called and judged: by its samples, against its definition in fp64."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from fused_replacements import Replacement, Sample, find
from fused_replacements._registry import HOME

CPU = torch.device("cpu")
NAMES = [name for name in HOME if name != "fused_optimizer"]  # it takes an optimizer, and has tests of its own


def sample_of(name: str, label: str, rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> Sample:
    """The variant ``label`` of a replacement, with random tensors that depend on ``seed`` only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return next(s for s in find(name).samples(rows, width, dtype, CPU) if s.label == label)


def labels(name: str) -> list[str]:
    return [sample.label for sample in find(name).samples(4, 64, torch.float32, CPU)]


def variants(first_only: bool = False) -> list[tuple[str, str]]:
    """(name, label) of every variant of every replacement, or of the first of each."""
    return [(name, label) for name in NAMES for label in (labels(name)[:1] if first_only else labels(name))]


def mapped(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    """``sample`` with every tensor changed."""

    def one(value: Any) -> Any:
        return change(value) if isinstance(value, Tensor) else value

    return replace(sample, args=tree_map(one, sample.args), kwargs=tree_map(one, dict(sample.kwargs)))


def tensors(sample: Sample) -> list[Tensor]:
    found, _ = tree_flatten((sample.args, dict(sample.kwargs)))
    return [value for value in found if isinstance(value, Tensor)]


def doubled(sample: Sample) -> Sample:
    return mapped(sample, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def learned(replacement: Replacement, sample: Sample) -> list[bool]:
    """For each tensor of ``sample`` whether it has a gradient: floating, and not declared constant by the op."""
    constant = {name for op in replacement.ops for name in op.constant}
    bound = inspect.signature(replacement.function).bind(*sample.args, **sample.kwargs)
    flags: list[bool] = []
    for name, value in bound.arguments.items():
        kind = inspect.signature(replacement.function).parameters[name].kind
        inner = value.items() if kind is inspect.Parameter.VAR_KEYWORD else [(name, value)]
        for key, item in inner:
            found, _ = tree_flatten(item)
            flags += [
                tensor.is_floating_point() and key not in constant for tensor in found if isinstance(tensor, Tensor)
            ]
    return flags


@dataclass(frozen=True)
class Result:
    outputs: list[Tensor]
    gradients: list[Tensor | None]

    def all(self) -> list[Tensor | None]:
        return [*self.outputs, *self.gradients]


def called(
    replacement: Replacement, function: Callable[..., Any], sample: Sample, *, backward: bool = True, seed: int = 1
) -> Result:
    """Outputs of ``function``, and the gradient of every learned tensor for one random incoming gradient."""
    flags = iter(learned(replacement, sample))

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(next(flags) and backward)

    mine = mapped(sample, leaf)
    outputs = as_list(function(*mine.args, **mine.kwargs))
    if not (backward and any(output.requires_grad for output in outputs)):
        return Result([output.detach() for output in outputs], [])
    leaves = [tensor for tensor in tensors(mine) if tensor.requires_grad]
    incoming = [gradient_like(output, seed + i) for i, output in enumerate(outputs)]
    pairs = [(output, grad) for output, grad in zip(outputs, incoming, strict=True) if output.requires_grad]
    gradients = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return Result([output.detach() for output in outputs], list(gradients))


def gradient_like(output: Tensor, seed: int) -> Tensor:
    """A random gradient that is the same number in every precision: drawn in fp64, rounded to what fp16 can hold."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(output.shape, dtype=torch.float64, generator=generator)
    return drawn.bfloat16().to(torch.float16).to(output.dtype)


def as_list(outputs: Any) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


ROUNDINGS = {torch.float32: 2.0, torch.bfloat16: 0.5, torch.float16: 0.5, torch.float64: 64.0}
"""Units of the last place of the largest element that any result may be off: low precision rounds its result once,
and in fp32 sums of another order differ by a few."""
PRODUCT_ROUNDINGS = {**ROUNDINGS, torch.float32: 6.0}
"""The same for siblings that become one GEMM: MKL sums a product of another width in another order."""


def worse_than_eager(
    fused: Result, eager: Result, exact: Result, floor: float = 0.0, roundings: Mapping[torch.dtype, float] = ROUNDINGS
) -> list[str]:
    """Where the error of ``fused`` is over twice that of ``eager``, in words.

    ``floor`` is the least magnitude that roundings are taken relative to: the gradient of a norm of one element is
    the difference of two equal numbers, and only its size before that says what an error is.
    """
    assert len(fused.all()) == len(eager.all()) == len(exact.all())
    found = []
    for place, (mine, its, true) in enumerate(zip(fused.all(), eager.all(), exact.all(), strict=True)):
        where = f"output {place}" if place < len(fused.outputs) else f"gradient {place - len(fused.outputs)}"
        if its is None or true is None or not its.numel():
            continue
        reason = "it is missing" if mine is None else _difference(mine, its, true, floor, roundings)
        if reason:
            found.append(f"{where}: {reason}")
    return found


def _difference(
    mine: Tensor, its: Tensor, true: Tensor, floor: float, roundings: Mapping[torch.dtype, float]
) -> str | None:
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return f"it is {mine.dtype}{tuple(mine.shape)}, not {its.dtype}{tuple(its.shape)}"
    if not torch.equal(mine.isnan(), its.isnan()):
        return "it has NaN elsewhere than the definition"
    rounding = roundings[mine.dtype] * torch.finfo(mine.dtype).eps
    mine, its, true = (torch.nan_to_num(t.double(), 0.0, 3e38, -3e38) for t in (mine, its, true))
    eager_error, error = float((its - true).abs().max()), float((mine - true).abs().max())
    allowed = 2 * eager_error + rounding * max(floor, float(true.abs().max()))
    return f"error {error:.3g}, allowed {allowed:.3g} (eager {eager_error:.3g})" if error > allowed else None


def judge(replacement: Replacement, sample: Sample, *, backward: bool = True, floor: float = 0.0) -> list[str]:
    """What is wrong with the fused result for ``sample``; no input may have changed on the way."""
    before = [(tensor, tensor.clone(), tensor._version) for tensor in tensors(sample)]
    fused = called(replacement, replacement.function, sample, backward=backward)
    wrong = [
        f"an input of shape {tuple(tensor.shape)} was written to"
        for tensor, copy, version in before
        if tensor._version != version or not torch.equal(tensor.nan_to_num(), copy.nan_to_num())
    ]
    eager = called(replacement, replacement.reference, sample, backward=backward)
    exact = called(replacement, replacement.reference, doubled(sample), backward=backward)
    roundings = PRODUCT_ROUNDINGS if replacement.family == "horizontal" else ROUNDINGS
    return wrong + worse_than_eager(fused, eager, exact, floor, roundings)


def strided(tensor: Tensor, how: str) -> Tensor:
    """The same values at other strides: ``sliced`` rows of a wider tensor, or ``transposed`` memory order."""
    if tensor.dim() < 2 or not tensor.numel():
        return tensor
    if how == "sliced":
        wider = tensor.new_zeros(*tensor.shape[:-1], tensor.size(-1) + 16)
        if tensor.is_floating_point():
            wider.fill_(float("nan"))
        wider[..., : tensor.size(-1)] = tensor
        return wider[..., : tensor.size(-1)]
    if how == "transposed":
        order = [*range(tensor.dim() - 2), tensor.dim() - 1, tensor.dim() - 2]
        return tensor.permute(order).contiguous().permute(order)
    raise ValueError(how)


def described(wrong: Iterable[str]) -> str:
    return "\n".join(wrong)
