"""RMS norm of every head of q and k, then the rotary embedding: both norms and both rotations in one kernel.

Formula
-------
For each head ``h`` of q, with q's weight, and of k, with k's: ``n = h / sqrt(mean(h²) + eps) · (offset + weight)`` (see
``rms_norm`` for the two orders of casts), and of the first R columns of n, in halves ``a`` and ``b``:
``(a·cos₁ − b·sin₁, b·cos₂ + a·sin₂)``. Columns after R pass through. This is the half-split rotation of GPT-NeoX and
Llama; cos and sin are given for both halves, as models make them.

Shapes and dtypes
-----------------
``q``: (B, Hq, S, D); ``k``: (B, Hk, S, D), Hk may differ from Hq; weights: (D,) or None; ``cos`` and ``sin``: (B or
1, S, R), R even and at most D. Results: (B, Hq, S, D) and (B, Hk, S, D), contiguous. fp32, bf16 and fp16 fused, fp64
by the reference. They have the dtype that norm and rotation promote to: cos in fp32 makes fp32 of bf16 heads, as it
does in eager code. Batch, head and place may lie at any strides, so the transposed view of a (B, S, H, D) projection is
read where it lies; columns must lie side by side. Gradients to ``q``, ``k`` and the weights; where ``cos`` or ``sin``
need one, the reference runs.

Bytes moved
-----------
Forward: each head read and written once, 2 accesses an element instead of 7 to 11 for the norm and 10 for the rotation
of separate kernels. cos and sin are read once for all heads of a place. Backward: head and gradient read, one gradient
written: 3. Nothing but q and k is kept.

When it loses
-------------
Where heads are few and the grid is small (decoding one token): there it saves launches, and no traffic to speak of.
Where the attention kernel that follows rotates by itself.

Source
------
Su et al. 2021, "RoFormer"; Henry et al. 2020, "Query-Key Normalization for Transformers", with RMS norm as in Qwen3,
Gemma 3 and GLM-4.5. The fusion is known from vLLM and TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fused_replacements import _layout
from fused_replacements._dispatched import Kernels
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import first_reason, floating, one_of, same_device
from fused_replacements.reduction.add_rms_norm import definition as rms_norm
from fused_replacements.reduction.rms_norm import CASTS, Cast


def _parts(x: Tensor, half: int, rest: int) -> list[Tensor]:
    """First and second half of the rotated columns, and the ``rest`` that pass.

    Both numbers are constants of the op: sizes are symbols to the compiler, which vectorises no loop over a symbolic
    half, and builds one kernel for heads that are rotated whole and in part.
    """
    parts = [x[..., :half], x[..., half : 2 * half]]
    return [*parts, x[..., 2 * half :]] if rest else parts


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, half: int, rest: int) -> Tensor:
    """``x`` (B, H, S, D) with its first columns rotated: ``x·cos + (−second, first)·sin``, as models write it."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second, *passing = _parts(x, half, rest)
    turned = first * cos[..., :half] - second * sin[..., :half]
    return torch.cat((turned, second * cos[..., half:] + first * sin[..., half:], *passing), -1)


def _rotated_back(dy: Tensor, cos: Tensor, sin: Tensor, half: int, rest: int) -> list[Tensor]:
    """The gradient of what ``_rotated`` was given, in fp32, part by part."""
    cos, sin = _layout.wide(cos).unsqueeze(1), _layout.wide(sin).unsqueeze(1)
    first, second, *passing = _parts(_layout.wide(dy), half, rest)
    back = first * cos[..., :half] + second * sin[..., half:]
    return [back, second * cos[..., half:] - first * sin[..., :half], *passing]


def _definition(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float,
    offset: float, cast: str, half: int, rest: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q = _rotated(rms_norm(q, q_weight, eps, offset, cast), cos, sin, half, rest)
    return q, _rotated(rms_norm(k, k_weight, eps, offset, cast), cos, sin, half, rest)


def _gradient(
    dq: Tensor | None, dk: Tensor | None, q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None,
    cos: Tensor, sin: Tensor, eps: float, offset: float, cast: str, half: int, rest: int, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Of q, k and their weights, where ``needs`` says so; zeros of one whose result was not used."""
    q_found = _one_gradient(dq, q, q_weight, cos, sin, eps, offset, half, rest, [needs[0], needs[2]])
    k_found = _one_gradient(dk, k, k_weight, cos, sin, eps, offset, half, rest, [needs[1], needs[3]])
    return [*q_found[: needs[0]], *k_found[: needs[1]], *q_found[needs[0] :], *k_found[needs[1] :]]


def _one_gradient(
    dy: Tensor | None, x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, offset: float,
    half: int, rest: int, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    if dy is None:
        wanted = zip((x, weight), needs, strict=True)
        return [torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t, need in wanted if need and t is not None]
    h = _layout.wide(x)
    r = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    dn, parts = _rotated_back(dy, cos, sin, half, rest), _parts(h, half, rest)
    found = []
    if needs[0]:
        scales = None if weight is None else _parts(_layout.wide(weight) + offset, half, rest)
        g = dn if scales is None else [one * scale for one, scale in zip(dn, scales, strict=True)]
        found.append(_through_norm(g, parts, r, 2 * half + rest).to(x.dtype))
    if needs[1] and weight is not None:
        sums = [(one * (part * r)).sum((0, 1, 2)) for one, part in zip(dn, parts, strict=True)]
        found.append(torch.cat(sums).to(weight.dtype))
    return found


def _through_norm(g: list[Tensor], parts: list[Tensor], r: Tensor, size: int) -> Tensor:
    """``g·r − h·mean(g·h)·r³`` of heads of ``size`` in ``parts`` h, in the order of eager code."""
    along = sum((one * part).sum(-1, keepdim=True) for one, part in zip(g, parts, strict=True)) / size
    bound = along * (r * r * r)
    return torch.cat([one * r - part * bound for one, part in zip(g, parts, strict=True)], -1)


def _misfit(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> str | None:
    """What about the shapes is not as the module says, or None. A kernel would read out of bounds."""
    if q.dim() != 4 or k.dim() != 4 or cos.dim() != 3:
        return f"q and k have {q.dim()} and {k.dim()} dimensions, and cos {cos.dim()}; they need 4, 4 and 3"
    batch, _, length, head = q.shape
    if k.size(0) != batch or k.size(2) != length or k.size(3) != head:
        return f"q has shape {tuple(q.shape)}, and k {tuple(k.shape)}: only the number of heads may differ"
    if cos.shape != sin.shape or cos.size(0) not in (1, batch) or cos.size(1) != length:
        return f"cos has shape {tuple(cos.shape)} and sin {tuple(sin.shape)}, and q {tuple(q.shape)}"
    if cos.size(-1) % 2 or cos.size(-1) > head:
        return f"{cos.size(-1)} columns can't be rotated in pairs within heads of {head}"
    return None


def _weight_misfit(head: int, **weights: Tensor | None) -> str | None:
    for name, weight in weights.items():
        if weight is not None and tuple(weight.shape) != (head,):
            return f"{name} has shape {tuple(weight.shape)}, and heads have {head} elements"
    return None


def _op_misfit(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor, *_: object
) -> str | None:
    return _misfit(q, k, cos, sin) or _weight_misfit(q.size(-1), q_weight=q_weight, k_weight=k_weight)


OP = FusedOp(
    "qk_norm_rope(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor cos, Tensor sin, float eps, "
    "float offset, str cast, int half, int rest) -> (Tensor, Tensor)",
    _definition,
    forward=Kernels("qk_norm_rope", "forward"),
    backward=Kernels("qk_norm_rope", "backward", "refuses_backward"),
    gradient=_gradient,
    constant=("cos", "sin"),
    misfit=_op_misfit,
)


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
) -> tuple[Tensor, Tensor]:
    """q (B, Hq, S, D) and k (B, Hk, S, D), each head normed and rotated, in one kernel; see the module for the formula.

    Raises:
        ValueError: ``cast`` is none of the two, or the shapes don't fit.
    """
    if cast not in CASTS:
        raise ValueError(one_of("cast", cast, CASTS))
    wrong = _misfit(q, k, cos, sin)
    if wrong is not None:
        raise ValueError(wrong)
    if cos.requires_grad or sin.requires_grad:
        reason = _weight_misfit(q.size(-1), q_weight=q_weight, k_weight=k_weight)
        if reason is not None:
            raise ValueError(reason)
        if not torch.compiler.is_compiling():
            say_unfused("qk_norm_rope", "cos or sin needs a gradient")
        return _definition(q, k, q_weight, k_weight, cos, sin, eps, offset, cast, *_sizes(q, cos))
    q_out, k_out = OP(q, k, q_weight, k_weight, cos, sin, eps, offset, cast, *_sizes(q, cos))
    return q_out, k_out


def reference(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
) -> tuple[Tensor, Tensor]:
    """The definition, op by op."""
    return _definition(q, k, q_weight, k_weight, cos, sin, eps, offset, cast, *_sizes(q, cos))


def _sizes(q: Tensor, cos: Tensor) -> tuple[int, int]:
    """Half of the rotated columns of a head, and how many pass."""
    rotary = cos.size(-1)
    return rotary // 2, q.size(-1) - rotary


def supports(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        one_of("cast", cast, CASTS),
        floating(q=q, k=k, q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin),
        _op_misfit(q, k, q_weight, k_weight, cos, sin),
        "cos or sin needs a gradient" if cos.requires_grad or sin.requires_grad else None,
        same_device(q=q, k=k, q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin),
    ) or OP.refuses(q, k, q_weight, k_weight, cos, sin, eps, offset, cast, *_sizes(q, cos))


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use. ``rows`` are places of one sequence or two; ``width`` is that of all heads of q."""
    head = min(128, max(2, width // 4 // 2 * 2))
    k_heads = max(1, width // head // 4)
    q_heads = k_heads * min(4, max(1, width // head))
    batch = 2 if rows % 2 == 0 else 1
    length = rows // batch

    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def heads() -> tuple[Tensor, Tensor]:
        """As projections make them: the transposed view of (B, S, H, D)."""
        q, k = (random(batch, length, count, head) for count in (q_heads, k_heads))
        return q.transpose(1, 2), k.transpose(1, 2)

    def angles(rotary: int, batch: int = 1, dtype: torch.dtype = dtype) -> tuple[Tensor, Tensor]:
        angle = random(batch, length, rotary, dtype=torch.promote_types(dtype, torch.float32))
        return angle.cos().to(dtype), angle.sin().to(dtype)

    yield Sample("qwen3", (*heads(), random(head), random(head), *angles(head), 1e-6))
    yield Sample(
        "gemma3, 1 + weight",
        (*heads(), random(head), random(head), *angles(head), 1e-6),
        {"offset": 1.0, "cast": "gemma"},
    )
    partial = max(2, head // 2 // 2 * 2)
    yield Sample("partial, glm4", (*heads(), random(head), random(head), *angles(partial, batch), 1e-5))
    wide = torch.promote_types(dtype, torch.float32)
    yield Sample("no weight, cos in fp32", (*heads(), None, None, *angles(head, 1, wide), 1e-6))


REPLACEMENT = Replacement(
    name="qk_norm_rope",
    family="reduction",
    function=qk_norm_rope,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
