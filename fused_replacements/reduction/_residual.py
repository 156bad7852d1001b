"""The op of a norm after a residual add: it returns both the norm and the sum, and keeps the sum alone for backward.

An op of this library keeps its inputs. Here that would keep two arrays, where eager code keeps the sum that it has
anyway, since the next residual add reads it. The gradient of the sum is also that of both inputs, so it is written
once and handed to both, as the backward of an add does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fused_replacements._compiled import Argument
from fused_replacements._dispatched import Kernels
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused

Norm = Callable[..., Tensor]


class ResidualOp(FusedOp):
    """``(x, residual, …) -> (norm(x + residual, …), x + residual)``, of tensors of one shape.

    Args:
        schema: its first two arguments are the tensors that are added; the rest are the norm's own.
        norm: the norm in plain PyTorch, of the sum and the rest.
        norm_gradient: ``(gradient of the norm, the sum, the rest, needs)`` to the gradients of the sum and of the
            other tensors, where ``needs`` says so.

    The backward op takes ``(gradient of the norm or None, that of the sum or None, the sum, the rest, needs)``.
    """

    def __init__(
        self,
        schema: str,
        norm: Norm,
        norm_gradient: Callable[..., list[Tensor]],
        *,
        forward: Kernels,
        backward: Kernels,
        misfit: Callable[..., str | None],
    ) -> None:
        self.norm = norm
        self.norm_gradient = norm_gradient
        super().__init__(
            schema,
            self._add_and_norm,
            forward=forward,
            backward=backward,
            gradient=self._gradient_of_sum,
            misfit=misfit,
        )
        self.bind(_residual_function(self))

    def refuses(self, *arguments: Argument) -> str | None:
        """As for every op; its backward reads the sum, which is contiguous, so only the forward can refuse."""
        reason = self.forward.foreign(arguments)
        if reason is not None or arguments[0].device.type == "cpu":
            return reason
        return self.forward._refusal(arguments)

    def _add_and_norm(self, x: Tensor, residual: Tensor, *rest: Argument) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.norm(total, *rest), total

    def broadcast(self, x: Tensor, residual: Tensor, *rest: Argument) -> tuple[Tensor, Tensor]:
        """The definition, for tensors of different shapes, where the add broadcasts; said once.

        Raises:
            ValueError: they don't broadcast, or don't fit the weights.
        """
        try:
            norm, total = self._add_and_norm(x, residual, *rest)
        except RuntimeError as error:
            raise self.forward.explained(error, (x, residual, *rest)) from None
        if not torch.compiler.is_compiling():
            say_unfused(self.name, "x and residual have different shapes")
        return norm, total

    def _gradient_of_sum(self, dnorm: Tensor | None, dtotal: Tensor | None, *arguments: Argument) -> list[Tensor]:
        total, *rest, needs = arguments
        if dnorm is None:
            assert dtotal is not None
            vectors = [v for v, need in zip(self._vectors(rest), needs[1:], strict=True) if need and v is not None]
            return [dtotal.to(total.dtype, copy=True)] * needs[0] + [torch.zeros_like(vector) for vector in vectors]
        found = self.norm_gradient(dnorm, total, *rest, needs)
        if needs[0] and dtotal is not None:
            found[0] = (found[0] + dtotal).to(total.dtype)
        return found

    def _vectors(self, rest: Sequence[Argument]) -> list[Tensor | None]:
        return [rest[i - 2] for i in self._tensors[2:]]

    def _backward_schema(self) -> str:
        declared = str(self.forward.schema)
        inside = declared[declared.index("residual, ") + len("residual, ") : declared.rindex(") ->")]
        return f"{self.name}_backward(Tensor? grad0, Tensor? grad1, Tensor total, {inside}, bool[] needs) -> Tensor[]"

    def _fake_gradient(self, *arguments: Argument) -> list[Tensor]:
        _, _, total, *rest, needs = arguments
        wanted = [t for t, need in zip([total, *self._vectors(rest)], needs, strict=True) if need]
        return [tensor.new_empty(tensor.shape) for tensor in wanted]

    def twice_differentiable(
        self, grads: Sequence[Tensor | None], total: Tensor, rest: list[Argument], needs: Sequence[bool]
    ) -> list[Tensor]:
        """The gradients as the backward op gives them, recorded by autograd."""
        return self._gradient_of_sum(*grads, total, *rest, list(needs))


def _residual_function(op: ResidualOp) -> type[torch.autograd.Function]:
    vectors = op._tensors[2:]
    count = len(op.forward.schema.arguments)

    def forward(ctx: Any, *arguments: Argument) -> Any:
        norm, total = op.forward.overload(*arguments)
        ctx.save_for_backward(total, *[arguments[i] for i in vectors])
        ctx.constants = [None if i in vectors else arguments[i] for i in range(2, count)]
        ctx.dtypes = (arguments[0].dtype, arguments[1].dtype)
        ctx.set_materialize_grads(False)
        return norm, total

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None and grads[1] is None:
            return (None,) * count
        wanted = ctx.needs_input_grad
        normed = grads[0] is not None  # else the vectors have no part in it, and get no gradient, not even zeros
        needs = [wanted[0] or wanted[1], *[wanted[i] and normed for i in vectors]]
        total, *kept = ctx.saved_tensors
        rest = list(ctx.constants)
        for i, tensor in zip(vectors, kept, strict=True):
            rest[i - 2] = tensor
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            found = op.twice_differentiable(grads, total, rest, needs)
        else:
            found = op.backward.overload(*grads, total, *rest, needs)
        return _scatter(found, needs, wanted, vectors, ctx.dtypes, count)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{op.name}_function", (torch.autograd.Function,), members)


def _scatter(
    found: Sequence[Tensor],
    needs: Sequence[bool],
    wanted: Sequence[bool],
    vectors: Sequence[int],
    dtypes: tuple[torch.dtype, torch.dtype],
    count: int,
) -> tuple[Tensor | None, ...]:
    """One entry for each argument. Both summands get the gradient of the sum, in their own dtypes."""
    result: list[Tensor | None] = [None] * count
    rest = list(found)
    if needs[0]:
        dtotal = rest.pop(0)
        for i in (0, 1):
            if wanted[i]:
                result[i] = dtotal if dtotal.dtype is dtypes[i] else dtotal.to(dtypes[i])
    for i, need in zip(vectors, needs[1:], strict=True):
        if need:
            result[i] = rest.pop(0)
    return tuple(result)


def through_scale(g: Tensor, h: Tensor, r: Tensor) -> Tensor:
    """The gradient of ``h`` from ``g``, that of ``h·r`` with r = 1/sqrt(mean(h²) + eps) of each row.

    r³ may overflow for a constant row and a tiny eps; the mean is zero there, and must not make NaN of it.
    """
    along = (g * h).mean(-1, keepdim=True)
    return g * r - h * torch.where(along == 0, 0.0, along * (r * r * r))
