"""Rotary position embedding: turn pairs of q and k by the angle of their position, both in one launch.

Formula
-------
For each pair (a, b) of a head, with the cos and sin of its position: ``(a·cos − b·sin, b·cos + a·sin)``, computed in
fp32. Which elements form a pair is the checkpoint's choice:

* half-split (Llama, Qwen, GPT-NeoX): element i and element i + rotary_dim/2;
* ``interleaved`` (GPT-J, Cohere, GLM): elements 2i and 2i + 1.

Elements from ``rotary_dim`` on are passed through (partial rotary: GPT-NeoX, Phi, GLM). Backward is the rotation by the
opposite angle: it reads the gradients and the tables only, so q and k are not kept.

Shapes and dtypes
-----------------
``q``: (batch, heads, seq, head_dim), or any shape that ends in head_dim; ``k``: the same with heads of its own, or None
for q alone. ``cos`` and ``sin``: (batch or 1, seq, rotary_dim) or (seq, rotary_dim), with a dimension for the heads or
without: then it is put in at ``unsqueeze_dim``, 1 for (batch, heads, seq, …), 2 for (batch, seq, heads, …). Tables of
half the width, one entry for a pair, are told by ``rotary_dim``. Real and imaginary part of complex tables are such.

fp32, bf16 and fp16 fused, fp64 by the reference; tables may have a dtype of their own. The result has the promoted
dtype of q and the tables, as ``q * cos`` has, or ``dtype``. q and k are read at any strides of batch, heads and
positions, and a result lies in memory as its input does: the transposed view of a projection is not copied, and
neither is its gradient. Gradients to q and k. Tables that require a gradient take the reference.

Bytes moved
-----------
q and k read once and written once: 2 accesses an element, in both directions. Written by hand it is five kernels each
for q and k and 10 accesses: a negation, a concatenation, two products and a sum.

When it loses
-------------
In a graph that ``torch.compile`` compiles as a whole, where the rotation fuses with a norm of q and k before it
(``qk_norm_rope``). On a CPU, interleaved pairs gain less than half-split ones: they don't lie as vectors do.

Source
------
Su et al. 2021, "RoFormer". That one program serves all heads of a position is the idea of Liger's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fused_replacements._dispatched import Kernels
from fused_replacements._layout import wide
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import first_reason, floating, same_device


def _halves(x: Tensor, half: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    """First and second element of each pair, (…, half) both."""
    if interleaved:
        pairs = x.narrow(-1, 0, 2 * half).unflatten(-1, (half, 2))
        return pairs[..., 0], pairs[..., 1]
    return x.narrow(-1, 0, half), x.narrow(-1, half, half)


def _turned(
    x: Tensor, cos: Tensor, sin: Tensor, half: int, rest: int, whole: bool, interleaved: bool, dtype: torch.dtype,
    opposite: bool = False,
) -> Tensor:  # fmt: skip
    """The rotation of one tensor. Each half is cast before they are joined: then the compiler writes them in place."""
    x1, x2 = (wide(part) for part in _halves(x, half, interleaved))
    cos1, cos2 = _halves(wide(cos), half, interleaved) if whole else (wide(cos), wide(cos))
    sin1, sin2 = _halves(wide(sin), half, interleaved) if whole else (wide(sin), wide(sin))
    if opposite:
        sin1, sin2 = -sin2, -sin1
    y1, y2 = (x1 * cos1 - x2 * sin1).to(dtype), (x2 * cos2 + x1 * sin2).to(dtype)
    parts = [torch.stack((y1, y2), -1).flatten(-2)] if interleaved else [y1, y2]
    if rest:
        parts.append(x.narrow(-1, 2 * half, rest).to(dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _pair(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, half: int, rest: int, whole: bool, interleaved: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    constants = (half, rest, whole, interleaved, dtype)
    return _turned(q, cos, sin, *constants), _turned(k, cos, sin, *constants)


class _Rotation(FusedOp):
    """An op that is linear in what it turns: its backward reads the gradients and the tables, and shapes."""

    def __init__(self, schema: str, reference: Any, turned: int, forward: Kernels, backward: Kernels) -> None:
        self._turned = turned
        super().__init__(
            schema, reference, forward=forward, backward=backward, gradient=self._opposite, constant=("cos", "sin")
        )
        self.bind(_shapes_only(self))

    def _opposite(self, *arguments: Any) -> list[Tensor]:
        grads, inputs, _, needs = self.split(arguments)
        turned, (cos, sin, half, rest, whole, interleaved, _) = inputs[: self._turned], inputs[self._turned :]
        return [
            torch.zeros_like(x, memory_format=torch.contiguous_format)
            if grad is None
            else _turned(grad, cos, sin, half, rest, whole, interleaved, x.dtype, opposite=True)
            for grad, x, need in zip(grads, turned, needs, strict=True)
            if need
        ]


def _shapes_only(op: _Rotation) -> type[torch.autograd.Function]:
    """The ``autograd.Function`` of an op whose backward does not read the values of the tensors that it turns."""
    turned = op._turned

    def forward(ctx: Any, *arguments: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(arguments[turned], arguments[turned + 1])
        ctx.constants = arguments[turned + 2 :]
        ctx.likes = [(x.shape, x.dtype) for x in arguments[:turned]]
        return op.forward.overload(*arguments)

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given = next((grad for grad in grads if grad is not None), None)
        nothing = (None,) * (2 + len(ctx.constants))
        if given is None:
            return (*(None for _ in grads), *nothing)
        shapes = [
            grad if grad is not None and grad.dtype is dtype else given.new_empty(1, dtype=dtype).expand(shape)
            for grad, (shape, dtype) in zip(grads, ctx.likes, strict=True)
        ]
        wanted = ctx.needs_input_grad[:turned]
        needs = [want and grad is not None for want, grad in zip(wanted, grads, strict=True)]
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        run = op.backward.definition if again else op.backward.overload
        found = iter(run(*grads, *shapes, *ctx.saved_tensors, *ctx.constants, needs))
        return (*(next(found) if need else None for need in needs), *nothing)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{op.name}_function", (torch.autograd.Function,), members)


_CONSTANTS = "Tensor cos, Tensor sin, int half, int rest, bool whole, bool interleaved, ScalarType dtype"
OP = _Rotation(
    f"rope(Tensor q, Tensor k, {_CONSTANTS}) -> (Tensor, Tensor)",
    _pair,
    2,
    forward=Kernels("rope", "forward"),
    backward=Kernels("rope", "backward", "refuses_backward"),
)
OP_ONE = _Rotation(
    f"rope_one(Tensor q, {_CONSTANTS}) -> Tensor",
    _turned,
    1,
    forward=Kernels("rope", "forward_one", "refuses_one"),
    backward=Kernels("rope", "backward", "refuses_backward"),
)


class _Plan(NamedTuple):
    half: int
    rest: int
    whole: bool


def _plan(q: torch.Size, k: torch.Size | None, cos: torch.Size, sin: torch.Size, rotary_dim: int | None) -> _Plan:
    """How heads of these shapes are turned. ValueError where shapes do not fit; compiled kernels don't look."""
    turned = cos[-1] if rotary_dim is None else rotary_dim
    if turned % 2 or not 0 < turned <= q[-1]:
        raise ValueError(f"{turned} elements of a head of {q[-1]} can't be turned: pairs need an even number")
    if cos != sin or cos[-1] not in (turned, turned // 2):
        raise ValueError(f"cos and sin have shapes {tuple(cos)} and {tuple(sin)}, for rotary_dim {turned}")
    for name, x in (("q", q), ("k", k)):
        if x is None:
            continue
        fits = len(cos) <= len(x) and all(a in (1, b) for a, b in zip(cos[-2::-1], x[-2::-1], strict=False))
        if not fits or x[-1] != q[-1] or len(x) != len(q):
            raise ValueError(f"cos of shape {tuple(cos)} and q of {tuple(q)} don't fit {name} of {tuple(x)}")
    return _Plan(turned // 2, q[-1] - turned, cos[-1] == turned)


_known_plan = lru_cache(4096)(_plan)


def _with_heads(table: Tensor, q: Tensor, unsqueeze_dim: int) -> Tensor:
    """A table with a dimension for the heads. ``unsqueeze_dim`` counts the dimensions of q."""
    return table.unsqueeze(unsqueeze_dim - q.dim()) if table.dim() < q.dim() else table


def _lies_transposed(q: Tensor) -> bool:
    """Whether memory holds the heads of a position side by side, as a projection writes them."""
    return q.dim() == 4 and q.stride(1) < q.stride(2) and not q.is_contiguous()


def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """q and k turned by their position, or q alone where ``k`` is None; see the module for shapes.

    Args:
        q: (batch, heads, seq, head_dim).
        k: (batch, its heads, seq, head_dim), or None.
        cos: (batch or 1, seq, rotary_dim), with a dimension for the heads or without.
        sin: as ``cos``.
        unsqueeze_dim: where the heads are in q, for tables without them.
        interleaved: pairs are neighbours, not halves of the head.
        rotary_dim: how many elements of a head are turned; the width of the tables if not given. Twice the width of
            the tables says that they hold one entry for a pair.
        dtype: of the results; the promoted dtype of q and cos if not given.

    Raises:
        ValueError: the shapes don't fit.
    """
    if cos.requires_grad or sin.requires_grad:
        if not torch.compiler.is_compiling():
            say_unfused("rope", "cos or sin requires a gradient")
        return reference(q, k, cos, sin, unsqueeze_dim, interleaved=interleaved, rotary_dim=rotary_dim, dtype=dtype)
    cos, sin = _with_heads(cos, q, unsqueeze_dim), _with_heads(sin, q, unsqueeze_dim)
    find_plan = _plan if torch.compiler.is_compiling() else _known_plan
    plan = find_plan(q.shape, None if k is None else k.shape, cos.shape, sin.shape, rotary_dim)
    dtype = dtype or torch.promote_types(q.dtype, cos.dtype)
    if _lies_transposed(q):
        if cos.dim() == 4:
            cos, sin = cos.transpose(1, 2), sin.transpose(1, 2)
        elif cos.dim() == 3:
            cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
        else:
            cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        if k is None:
            return OP_ONE(q.transpose(1, 2), cos, sin, *plan, interleaved, dtype).transpose(1, 2)
        turned_q, turned_k = OP(q.transpose(1, 2), k.transpose(1, 2), cos, sin, *plan, interleaved, dtype)
        return turned_q.transpose(1, 2), turned_k.transpose(1, 2)
    if k is None:
        return OP_ONE(q, cos, sin, *plan, interleaved, dtype)
    return OP(q, k, cos, sin, *plan, interleaved, dtype)


def reference(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """The definition, op by op."""
    cos, sin = _with_heads(cos, q, unsqueeze_dim), _with_heads(sin, q, unsqueeze_dim)
    plan = _plan(q.shape, None if k is None else k.shape, cos.shape, sin.shape, rotary_dim)
    dtype = dtype or torch.promote_types(q.dtype, cos.dtype)
    turned_q = _turned(q, cos, sin, *plan, interleaved, dtype)
    return turned_q if k is None else (turned_q, _turned(k, cos, sin, *plan, interleaved, dtype))


def supports(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    unsqueeze_dim: int = 1,
    *,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    dtype: torch.dtype | None = None,
) -> str | None:
    """None, or why these arguments would not run fused."""
    if cos.requires_grad or sin.requires_grad:
        return "cos or sin requires a gradient"
    cos, sin = _with_heads(cos, q, unsqueeze_dim), _with_heads(sin, q, unsqueeze_dim)
    try:
        plan = _plan(q.shape, None if k is None else k.shape, cos.shape, sin.shape, rotary_dim)
    except ValueError as error:
        return str(error)
    constants = (*plan, interleaved, dtype or torch.promote_types(q.dtype, cos.dtype))
    op, turned = (OP_ONE, (q,)) if k is None else (OP, (q, k))
    return first_reason(
        floating(q=q, k=k, cos=cos, sin=sin),
        same_device(q=q, k=k, cos=cos, sin=sin),
        op.refuses(*turned, cos, sin, *constants),
    )


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """Both pairings, partial, grouped heads, q alone, half-width and fp32 tables; q as a projection leaves it."""
    heads = -(-width // 96) if width % 64 else width // 64
    dim = 2 * -(-width // (2 * heads))
    batch = 2 if rows and rows % 2 == 0 else 1
    seq = rows // batch

    def heads_of(count: int, size: int = dim) -> Tensor:
        return torch.randn(batch, seq, count, size, dtype=dtype, device=device).transpose(1, 2)

    def tables(size: int, of: torch.dtype = dtype, copies: int = 1) -> tuple[Tensor, Tensor]:
        angle = torch.randn(copies, seq, size, device=device, dtype=torch.float64 if dtype is torch.float64 else None)
        return angle.cos().to(of), angle.sin().to(of)

    grouped = max(1, heads // 4)
    yield Sample("half-split, grouped heads", (heads_of(heads), heads_of(grouped), *tables(dim, copies=batch)))
    yield Sample("interleaved", (heads_of(heads), heads_of(heads), *tables(dim)), {"interleaved": True})
    partial = heads_of(heads, 2 * dim), heads_of(grouped, 2 * dim)
    yield Sample("partial", (*partial, *tables(dim)))
    yield Sample("partial, interleaved", (*partial, *tables(dim)), {"interleaved": True})
    low = dtype in (torch.bfloat16, torch.float16)
    precise = tables(dim // 2, torch.float32 if low else dtype)
    by_pair = {"rotary_dim": dim, "dtype": dtype}
    yield Sample("half-width fp32 tables", (heads_of(heads), heads_of(heads), *precise), by_pair)
    yield Sample("q alone", (heads_of(heads), None, *tables(dim)))
    inner = heads_of(heads).transpose(1, 2), heads_of(grouped).transpose(1, 2)
    yield Sample("heads inside", (*inner, *tables(dim)), {"unsqueeze_dim": 2})


REPLACEMENT = Replacement(
    name="rope",
    family="elementwise",
    function=rope,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP, OP_ONE),
)
