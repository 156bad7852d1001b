"""A sample of a replacement as calls that a clock can take: one for each implementation, forward or with backward.

Every implementation gets the same tensors, the same incoming gradients and the same Python around it, so that what
differs between two times is the implementation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fused_replacements import Replacement, Sample

Pass = Literal["forward", "forward+backward"]
Implementation = Callable[..., Any]
Run = Callable[[], Any]
PASSES: Final[tuple[Pass, ...]] = ("forward", "forward+backward")


def passes(replacement: Replacement) -> tuple[Pass, ...]:
    return PASSES if replacement.has_backward else PASSES[:1]


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def learned(replacement: Replacement, sample: Sample) -> list[Tensor]:
    """The tensors of ``sample`` that take a gradient: floating, not declared constant by an op, and no mask."""
    if not replacement.has_backward:
        return []
    signature = inspect.signature(replacement.function)
    constant = {name for op in replacement.ops for name in op.constant}
    named: list[tuple[str, Any]] = []
    for name, value in signature.bind(*sample.args, **sample.kwargs).arguments.items():
        further = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        named += value.items() if further else [(name, value)]
    found = [tensor for name, value in named if name not in constant for tensor in tensors(value)]
    return [tensor for tensor in found if tensor.is_floating_point() and not _is_mask(tensor)]


def _is_mask(tensor: Tensor) -> bool:
    """Whether it adds nothing or forbids: that is data, where a bias of other numbers is learned."""
    return bool(tensor.numel() and ((tensor == 0) | (tensor < -9e3)).all())


class Size(NamedTuple):
    """What ``Replacement.samples`` takes."""

    rows: int
    width: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Call:
    """One sample, and what backward starts from."""

    replacement: Replacement
    sample: Sample
    inputs: list[Tensor]
    """Those that take a gradient."""
    incoming: list[Tensor]
    """A random gradient for each output that has one."""

    @classmethod
    def of(cls, replacement: Replacement, sample: Sample) -> Call:
        inputs = learned(replacement, sample)
        for tensor in inputs:
            tensor.requires_grad_()
        outputs = replacement.reference(*sample.args, **sample.kwargs)
        incoming = [torch.randn_like(output) for output in tensors(outputs) if output.requires_grad]
        return cls(replacement, sample, inputs, incoming)

    def forward(self, implementation: Implementation) -> Any:
        """The outputs, as in inference: nothing is kept for a backward."""
        with torch.no_grad():
            return implementation(*self.sample.args, **self.sample.kwargs)

    def training(self, implementation: Implementation) -> tuple[Any, list[Tensor | None]]:
        """The outputs and the gradients of ``inputs``."""
        outputs = implementation(*self.sample.args, **self.sample.kwargs)
        starts = [output for output in tensors(outputs) if output.requires_grad]
        return outputs, list(torch.autograd.grad(starts, self.inputs, self.incoming, allow_unused=True))

    def prepare(self, which: Pass) -> None:
        """Make the inputs require a gradient, or not: some kernels are chosen by that."""
        for tensor in self.inputs:
            tensor.requires_grad_(which != "forward")

    def run(self, which: Pass, implementation: Implementation) -> Run:
        """A call in one pass. The inputs have been prepared for it."""
        return partial(self.forward if which == "forward" else self.training, implementation)

    def unsupported(self) -> str | None:
        """Why the replacement would run this unfused, or None."""
        return self.replacement.supports(*self.sample.args, **self.sample.kwargs)

    def others(self) -> Iterator[tuple[str, Implementation]]:
        """PyTorch's own fused ops, where they compute the same."""
        for provider in self.replacement.alternatives:
            if provider.supports(*self.sample.args, **self.sample.kwargs) is None:
                yield provider.name, provider.function

    def bytes_moved(self, which: Pass) -> int:
        """What a perfect kernel moves: each input read and each output written once; likewise in backward."""
        read, outputs = (
            tensors((self.sample.args, dict(self.sample.kwargs))),
            tensors(self.forward(self.replacement.reference)),
        )
        forward = sum(map(nbytes, read)) + sum(map(nbytes, outputs))
        if which == "forward":
            return forward
        backward = sum(map(nbytes, read)) + sum(map(nbytes, self.incoming)) + sum(map(nbytes, self.inputs))
        return forward + backward


def labels(replacement: Replacement) -> list[str]:
    """The variants of a replacement."""
    return [sample.label for sample in replacement.samples(4, 64, torch.float32, torch.device("cpu"))]


def sample_of(replacement: Replacement, label: str, size: Size, seed: int = 0) -> Sample:
    """The variant ``label`` with random tensors."""
    torch.manual_seed(seed)
    return next(sample for sample in replacement.samples(*size) if sample.label == label)


def fitting_rows(replacement: Replacement, size: Size, limit_bytes: int, peak_bytes: Callable[[Run], int]) -> int:
    """The rows of ``size``, or their largest half, quarter … at which eager needs no more memory than a limit.

    Attention by parts takes memory and time in the square of the rows, so the rows are approached from below.
    """
    fits = max(1, size.rows // 64)
    while fits < size.rows and 4 * _hungriest(replacement, size._replace(rows=fits), peak_bytes) <= limit_bytes:
        fits *= 2
    return min(fits, size.rows)


def _hungriest(replacement: Replacement, size: Size, peak_bytes: Callable[[Run], int]) -> int:
    """Peak of the variant that needs most, forward."""
    most = 0
    for sample in replacement.samples(*size):
        with torch.no_grad():
            most = max(most, peak_bytes(partial(replacement.reference, *sample.args, **sample.kwargs)))
    return most


def nbytes(tensor: Tensor) -> int:
    """Bytes of distinct elements: an expanded dimension counts once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return torch.Size(sizes).numel() * tensor.element_size() if tensor.numel() else 0


def compiled(reference: Implementation) -> Implementation:
    """``torch.compile`` of ``reference``, for exact shapes and without graph breaks.

    Dynamo forgets what it compiled before: all replacements' calls would count as recompilations of one function,
    and past the limit they would run eager without a word.
    """
    torch._dynamo.reset()
    return torch.compile(reference, dynamic=False, fullgraph=True)
