"""Dropout and residual add: ``residual + dropout(x)``, in one kernel that keeps no mask.

Formula
-------
``y = residual + x · keep / (1 − p)``, computed in fp32 and rounded once. ``keep`` is a function of the seed, the row
(all dimensions but the last, counted through) and the column, and of nothing else: not of strides, block sizes or the
device. Each row has two keys, the first two words of Philox-4x32-10 for the counter ``row`` and the key ``seed``;
an element has the 32 bits ``mix(mix(column ^ key0) ^ key1)``, ``mix`` being a bijection with good avalanche, and is
dropped where they are below ``p · 2³²``. Philox for each element would be five times the arithmetic on a CPU, where it
is what limits dropout, and on a GPU more than its memory traffic hides.

Shapes and dtypes
-----------------
``x`` and ``residual``: (…, N), rows at any one stride; result (…, N), contiguous, in the promoted dtype. fp32, bf16 and
fp16 fused, fp64 by the reference. A residual that broadcasts is expanded (fused on a CPU only). ``seed``: an int64
tensor of one element on the device of ``x``. Without one it is drawn from the device's default generator, so that
``torch.manual_seed`` governs it and activation checkpointing repeats it. Gradients to ``x`` and ``residual``.

The elements dropped are others than those of ``F.dropout`` under the same ``torch.manual_seed``: the same distribution,
not the same draw. ``p=1``, ``p=0`` and ``training=False`` need no draw and are plain PyTorch.

Bytes moved
-----------
Forward: ``x`` and the residual read, ``y`` written: 3 accesses an element instead of 5 and a mask of 1 byte. Backward:
2 (one gradient read, one written) instead of 2 and the mask; the residual's gradient is the incoming one, uncopied.
Kept for backward: the seed, 8 bytes, instead of a mask.

When it loses
-------------
At tiny shapes, where a seed costs a launch of its own on a GPU. In evaluation there is nothing to fuse.

Source
------
Philox: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". The multipliers of ``mix`` are of the
hash-prospector project's search for low bias. Dropout recomputed from a seed: Triton's low-memory dropout tutorial.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from fused_replacements._dispatched import Kernels
from fused_replacements._layout import wide
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import broadcastable, first_reason, floating, same_device

_WORD: Final = 0xFFFFFFFF
_PHILOX_ROUNDS: Final = 10


def _product(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a 64-bit product, without an overflow of int64 on the way."""
    low = multiplier * (word & 0xFFFF)
    high = multiplier * (word >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(counter: Tensor, seed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10 of the 64-bit ``counter`` under the 64-bit ``seed``: four words, each in an int64 tensor."""
    c0, c1 = counter & _WORD, (counter >> 32) & _WORD
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(_PHILOX_ROUNDS):
        high0, low0 = _product(0xD2511F53, c0)
        high2, low2 = _product(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def _mix(h: Tensor) -> Tensor:
    """A bijection of 32-bit words held in int64: multipliers below 2³¹ keep each product below 2⁶³."""
    h = ((h ^ (h >> 16)) * 0x21F0AAAD) & _WORD
    h = ((h ^ (h >> 15)) * 0x735A2D97) & _WORD
    return h ^ (h >> 15)


def random_bits(x: Tensor, seed: Tensor) -> Tensor:
    """32 random bits for each element of ``x`` (…, N), in int64."""
    lead, width = (x.shape[:-1], x.size(-1)) if x.dim() else ((), 1)
    row = torch.arange(prod(lead), device=x.device)
    column = torch.arange(width, device=x.device)
    key0, key1, _, _ = (word.view(*lead, 1) for word in philox(row, seed.reshape(())))
    return _mix(_mix((column & _WORD) ^ key0) ^ key1).view(x.shape)


def _factor(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """What each element of ``x`` is multiplied by: 1 / (1 − p), or 0 with probability ``p``."""
    kept = random_bits(x, seed) >= min(round(p * 2**32), _WORD)
    return kept.to(wide(x).dtype) * (1.0 / (1.0 - p))


def _definition(x: Tensor, residual: Tensor, seed: Tensor, p: float) -> Tensor:
    y = wide(residual) + wide(x) * _factor(x, seed, p)
    return y.to(torch.promote_types(x.dtype, residual.dtype))


def _gradient(grad: Tensor, seed: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    return (wide(grad) * _factor(grad, seed, p)).to(dtype)


class _DropoutAdd(FusedOp):
    """An op whose backward needs only the seed and the incoming gradient, which is that of the residual as it is.

    ``FusedOp`` would keep ``x`` and the residual, and write the residual's gradient anew.
    """

    def __init__(self) -> None:
        super().__init__(
            "dropout_add(Tensor x, Tensor residual, Tensor seed, float p) -> Tensor",
            _definition,
            forward=Kernels("dropout_add", "forward"),
            backward=Kernels("dropout_add", "backward", "refuses_backward"),
            gradient=_gradient,
            constant=("seed",),
            discrete=("seed",),
        )
        self.bind(_Function)

    def _backward_schema(self) -> str:
        return "dropout_add_backward(Tensor grad, Tensor seed, float p, ScalarType dtype) -> Tensor"

    def _fake_gradient(self, *arguments: Any) -> Any:
        grad, _, _, dtype = arguments
        return torch.empty(grad.shape, dtype=dtype, device=grad.device)

    def refuses(self, *arguments: Any) -> str | None:
        """Why the Triton kernel can't take these arguments: backward reads no tensor that forward doesn't."""
        with torch.no_grad():
            return super().refuses(*[a.detach() if isinstance(a, Tensor) else a for a in arguments])


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, seed: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.set_materialize_grads(False)
        ctx.p, ctx.dtype, ctx.residual_dtype = p, x.dtype, residual.dtype
        y: Tensor = OP.forward.overload(x, residual, seed, p)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (seed,), (grad,) = ctx.saved_tensors, grads
        if grad is None:
            return None, None, None, None
        dx = None
        if ctx.needs_input_grad[0]:
            again = torch.is_grad_enabled() and not torch.compiler.is_compiling()  # to be differentiated once more
            dx = (_gradient if again else OP.backward.overload)(grad, seed, ctx.p, ctx.dtype)
        return dx, grad.to(ctx.residual_dtype) if ctx.needs_input_grad[1] else None, None, None


OP = _DropoutAdd()


def dropout_add(
    x: Tensor, residual: Tensor, p: float = 0.5, training: bool = True, *, seed: Tensor | None = None
) -> Tensor:
    """``residual + dropout(x, p)`` of (…, N), in one kernel.

    Raises:
        ValueError: ``p`` is no probability, ``seed`` no tensor of one integer, or the shapes can't be broadcast.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(_option_reason(p, seed))
    if x.shape != residual.shape and (reason := broadcastable(x=x, residual=residual)) is not None:
        raise ValueError(reason)
    if not training or p == 0.0:
        return residual + x
    if p == 1.0:
        return residual + x * 0.0
    if seed is None:
        seed = torch.randint(2**63 - 1, (), device=x.device)
    elif not isinstance(seed, Tensor) or seed.dtype is not torch.int64 or (seed.dim() and seed.numel() != 1):
        raise ValueError(_option_reason(p, seed))
    if x.shape != residual.shape:
        if _is_wider(residual, x):  # the mask is that of x, which then has fewer elements than the result
            y = _definition(x, residual, seed, p)
            if not torch.compiler.is_compiling():
                say_unfused("dropout_add", "x is broadcast to the shape of the residual")
            return y
        residual = residual.expand(x.shape)
    return OP(x, residual, seed, float(p))  # type: ignore[no-any-return]


def _option_reason(p: float, seed: Tensor | None) -> str | None:
    if not 0.0 <= p <= 1.0:
        return f"p is {p}; a probability lies between 0 and 1"
    if seed is None or (isinstance(seed, Tensor) and seed.dtype is torch.int64 and seed.numel() == 1):
        return None
    what = f"{seed.dtype}{tuple(seed.shape)}" if isinstance(seed, Tensor) else repr(seed)
    return f"seed is {what}; it is an int64 tensor of one element, or None"


def _is_wider(residual: Tensor, x: Tensor) -> bool:
    """Whether ``x`` would be broadcast to the shape of the residual."""
    pairs = zip(reversed(x.shape), reversed(residual.shape), strict=False)
    return residual.dim() > x.dim() or any(mine != its and mine == 1 for mine, its in pairs)


def reference(
    x: Tensor, residual: Tensor, p: float = 0.5, training: bool = True, *, seed: Tensor | None = None
) -> Tensor:
    """The definition, op by op."""
    if not training or p == 0.0:
        return residual + x
    if p == 1.0:
        return residual + x * 0.0
    seed = torch.randint(2**63 - 1, (), device=x.device) if seed is None else seed
    return _definition(x, residual, seed, p)


def supports(
    x: Tensor, residual: Tensor, p: float = 0.5, training: bool = True, *, seed: Tensor | None = None
) -> str | None:
    """None, or why these arguments would not run fused."""
    reason = _option_reason(p, seed)
    if reason is not None:
        return reason
    return first_reason(
        broadcastable(x=x, residual=residual),
        "nothing is drawn: it is one addition" if not training or p in (0.0, 1.0) else None,
        "x is broadcast to the shape of the residual" if _is_wider(residual, x) else None,
        floating(x=x, residual=residual),
        same_device(x=x, residual=residual, seed=seed),
        OP.refuses(x, residual, seed, p),
    )


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The rates that models train with, with seeds of their own so that results can be compared."""
    for label, p in (("p=0.1", 0.1), ("p=0.5", 0.5)):
        x, residual = (torch.randn(rows, width, dtype=dtype, device=device) for _ in range(2))
        yield Sample(label, (x, residual, p), {"seed": torch.randint(2**63 - 1, (), device=device)})
    x, residual = (torch.randn(2, rows, width, dtype=dtype, device=device) for _ in range(2))
    yield Sample("batch of rows", (x, residual, 0.1), {"seed": torch.randint(2**63 - 1, (), device=device)})


REPLACEMENT = Replacement(
    name="dropout_add",
    family="elementwise",
    function=dropout_add,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
