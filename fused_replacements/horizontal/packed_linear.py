"""Several linear layers on one input in one product: q, k and v, or gate and up, from separate weights.

Formula
-------
``yᵢ = x @ Wᵢᵀ + bᵢ`` for two to four weights, as one product over the rows of all: ``x @ [W₀; W₁; …]ᵀ``. Each result is
a part of one tensor, and each weight keeps its name, its gradient and its place in ``state_dict``: ``PackedLinears``
moves the parameters of live ``nn.Linear`` modules into one buffer, of which they are views from then on.

Shapes and dtypes
-----------------
``x``: (…, K), fp32, bf16 or fp16, fp64 by the reference; ``weights``: two to four of (Nᵢ, K) in the dtype of ``x``;
``biases``: as many of (Nᵢ,) or None (of Whisper's three projections one has no bias); results: (…, Nᵢ), rows
Σ Nᵢ apart. Under autocast ``x`` is cast, and the buffer of weights as one. Gradients to ``x``, each weight and each
bias. Results share one storage, and no element of it: each can be written into in place, as a result of its own. In a
graph of ``torch.compile`` they are views of one tensor: there PyTorch raises if backward needs a sibling of one that is
written into.

Bytes moved
-----------
``x`` is read once instead of once for each weight, and one launch replaces two to four. Backward has one product for
``x`` instead of one each and the sums between them, and one for all weights; it reads the gradients once more to join
them.

When it loses
-------------
Where the weights do not lie one behind the other: a copy on each call would cost more than it saves, so then there are
as many products as weights, into one result, and nothing is gained; ``supports`` says so. On a CPU a large product
gains nothing: ``x`` stays in the cache. A weight buffer is saved whole by ``torch.save`` of one of its parameters.

Source
------
One projection for q, k and v as in GPT-2 and Megatron-LM (Shoeybi et al. 2019); views of one buffer as in PyTorch's
flattened parameters of recurrent layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch.autograd import forward_ad

from fused_replacements import _layout
from fused_replacements._autocast import product_dtype
from fused_replacements._dispatched import Composed
from fused_replacements._op import FusedOp
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import first_reason, floating, same_device
from fused_replacements.horizontal._adjacent import adjacent, joined

MOST: Final = 4
"""Weights that one call takes: q, k, v and a gate."""


def _present(
    weights: Sequence[Tensor | None], biases: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The weights that are there, and the bias of each."""
    pairs = [(weight, bias) for weight, bias in zip(weights, biases, strict=True) if weight is not None]
    return [weight for weight, _ in pairs], [bias for _, bias in pairs]


def _joined_bias(weights: Sequence[Tensor], biases: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor | None:
    """One bias for all rows, with zeros where a weight has none; None where none has one."""
    if all(bias is None for bias in biases):
        return None
    given = [w.new_zeros(w.size(0)) if bias is None else bias for w, bias in zip(weights, biases, strict=True)]
    return (joined(given) if adjacent(given) else torch.cat(given)).to(dtype)


def _definition(x: Tensor, *slots: Tensor | None) -> Tensor:
    weights, biases = _present(slots[:MOST], slots[MOST:])
    parts = [
        F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(parts, -1)


def _forward(x: Tensor, *slots: Tensor | None) -> Tensor:
    """One product where the weights are one buffer, else one each, into the columns of one result."""
    weights, biases = _present(slots[:MOST], slots[MOST:])
    bias = _joined_bias(weights, biases, x.dtype)
    if adjacent(weights):
        return F.linear(x, joined(weights).to(x.dtype), bias).contiguous()
    rows = x.reshape(-1, x.size(-1))
    y = _layout.new(x, (rows.size(0), sum(weight.size(0) for weight in weights)))
    for weight, part in zip(weights, y.split([weight.size(0) for weight in weights], -1), strict=True):
        torch.mm(rows, weight.to(x.dtype).t(), out=part)
    y = y if bias is None else y.add_(bias)
    return y.view(*x.shape[:-1], y.size(-1))


def _backward(grad: Tensor, x: Tensor, *rest: Any) -> list[Tensor]:
    """The gradients of ``x``, of all weights as one (Σ Nᵢ, K), and of all biases as one (Σ Nᵢ,), as needed."""
    weights, _ = _present(rest[:MOST], rest[MOST : 2 * MOST])
    needs_x, needs_weights, needs_biases = _wanted(rest[-1])
    flat, rows = grad.reshape(-1, grad.size(-1)), x.reshape(-1, x.size(-1))
    found = []
    if needs_x:
        found.append(_input_gradient(flat, weights).view(x.shape))
    if needs_weights:
        found.append((flat.t() @ rows).to(weights[0].dtype))
    if needs_biases:
        found.append(_layout.wide(flat).sum(0))
    return found


def _input_gradient(grad: Tensor, weights: Sequence[Tensor]) -> Tensor:
    if adjacent(weights):
        return grad @ joined(weights).to(grad.dtype)
    sizes = [weight.size(0) for weight in weights]
    parts = [part @ weight.to(grad.dtype) for part, weight in zip(grad.split(sizes, -1), weights, strict=True)]
    return torch.stack(parts).sum(0)


def _wanted(needs: Sequence[bool]) -> tuple[bool, bool, bool]:
    return needs[0], any(needs[1 : 1 + MOST]), any(needs[1 + MOST :])


def _op_misfit(x: Tensor, *slots: Tensor | None) -> str | None:
    return _fits(x, *_present(slots[:MOST], slots[MOST:]))


class PackedLinearOp(FusedOp):
    """Its backward op returns one gradient for all weights and one for all biases: they are split outside of it.

    The parts are views of one tensor, and the outputs of an op must not share a storage.
    """

    def __init__(self) -> None:
        names = [f"Tensor? {kind}{i}" for kind in ("weight", "bias") for i in range(MOST)]
        super().__init__(
            f"packed_linear(Tensor x, {', '.join(names)}) -> Tensor",
            _definition,
            forward=Composed(_forward),
            backward=Composed(_backward),
            gradient=_backward,
            misfit=_op_misfit,
        )
        self.bind(_function(self))

    def _fake_gradient(self, *arguments: Any) -> list[Tensor]:
        _, (x, *slots), _, needs = self.split(arguments)
        weights, _ = _present(slots[:MOST], slots[MOST:])
        total = sum(weight.size(0) for weight in weights)
        like_x, like_weight, like_bias = _wanted(needs)
        bias_dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
        found = [x.new_empty(x.shape)] if like_x else []
        found += [weights[0].new_empty((total, x.size(-1)))] if like_weight else []
        return found + ([x.new_empty((total,), dtype=bias_dtype)] if like_bias else [])


def _function(op: FusedOp) -> type[torch.autograd.Function]:
    """As the one of every ``FusedOp``, with the split behind the backward op."""

    def forward(ctx: Any, x: Tensor, *slots: Tensor | None) -> Any:
        ctx.save_for_backward(x, *slots)
        ctx.set_materialize_grads(False)
        y = op.forward.overload(x, *slots)
        return y if torch.compiler.is_compiling() else _separate(y, [len(w) for w in slots[:MOST] if w is not None])

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, inputs = list(ctx.needs_input_grad), list(ctx.saved_tensors)
        if all(grad is None for grad in grads):
            return (None,) * len(needs)
        if len(grads) > 1:  # what nobody read has no gradient, and gives its weight none: optimizers pass over that
            needs = [need and used for need, used in zip(needs, _used(grads, inputs), strict=True)]
        grad = _whole(grads, inputs[0], inputs[1 : 1 + MOST])
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph: to be differentiated again
            return op.scatter(op.gradients([grad], inputs, needs, create_graph=True), needs)
        found = iter(op.backward.overload(grad, *inputs, needs))
        needs_x, needs_weights, needs_biases = _wanted(needs)
        weights, biases = inputs[1 : 1 + MOST], inputs[1 + MOST :]
        of_x = next(found) if needs_x else None
        of_weights = _parts(next(found), weights, weights) if needs_weights else [None] * MOST
        of_biases = _parts(next(found), weights, biases) if needs_biases else [None] * MOST
        given = [of_x, *of_weights, *of_biases]
        return tuple(part if need else None for part, need in zip(given, needs, strict=True))

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("packed_linear_function", (torch.autograd.Function,), members)


def _used(grads: Sequence[Tensor | None], inputs: Sequence[Tensor | None]) -> list[bool]:
    """For x, each weight and each bias whether the result that it is for has a gradient."""
    given = iter(grads)
    used = [weight is not None and next(given) is not None for weight in inputs[1 : 1 + MOST]]
    return [True, *used, *used]


def _whole(grads: Sequence[Tensor | None], x: Tensor, weights: Sequence[Tensor | None]) -> Tensor:
    """The gradient of all results side by side, zeros where one has none."""
    if len(grads) == 1 and grads[0] is not None:
        return grads[0]
    like = next(grad for grad in grads if grad is not None)
    sizes = [weight.size(0) for weight in weights if weight is not None]
    parts = zip(grads, sizes, strict=True)
    return torch.cat([like.new_zeros((*x.shape[:-1], n)) if grad is None else grad for grad, n in parts], -1)


def _separate(y: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """``y`` in parts of its storage that autograd takes for tensors of their own, as they have no element in common.

    Of views it would say that one can't be written into in place, and that a sibling's write changed the other.
    """
    with torch._C._AutoDispatchBelowADInplaceOrView():
        parts: tuple[Tensor, ...] = y.split(sizes, -1)
    return parts


def _views(y: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """The same for who can't look below autograd: one view each, as those of one ``split`` can't be written into."""
    starts = accumulate(sizes, initial=0)
    return tuple(y.narrow(-1, start, size) for start, size in zip(starts, sizes, strict=False))


def _parts(whole: Tensor, weights: Sequence[Tensor | None], like: Sequence[Tensor | None]) -> list[Tensor | None]:
    """``whole`` by the rows of each weight, in the dtypes of ``like``; None where there is no weight or no bias."""
    parts = iter(whole.split([weight.size(0) for weight in weights if weight is not None]))
    rows = [None if weight is None else next(parts) for weight in weights]
    return [None if t is None or row is None else row.to(t.dtype) for row, t in zip(rows, like, strict=True)]


OP = PackedLinearOp()


def packed_linear(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    """``x`` (…, K) times each of ``weights`` (Nᵢ, K): as many results (…, Nᵢ), parts of one storage.

    Raises:
        ValueError: not two to four weights, not as many biases, or shapes or dtypes that ``F.linear`` would not take.
    """
    count = len(weights)
    given = [None] * count if biases is None else biases
    if not 2 <= count <= MOST or len(given) != count:
        raise ValueError(_count_reason(count, len(given)))
    dtype = product_dtype(x)
    if dtype is not None:
        x = x.to(dtype)
    elif x.dtype is not weights[0].dtype:
        raise ValueError(f"x is {x.dtype}, and the weights are {weights[0].dtype}")
    empty = [None] * (MOST - count)
    sizes = [weight.size(0) for weight in weights]
    if torch.compiler.is_compiling() or transforms_active() or forward_ad._current_level >= 0:
        return _views(OP(x, *weights, *empty, *given, *empty), sizes)
    if type(x) is Tensor and not torch.is_grad_enabled() and not _modes():
        return _separate(_forward(x, *weights, *empty, *given, *empty), sizes)  # the op would cost 40 µs a call
    y: Tensor | tuple[Tensor, ...] = OP(x, *weights, *empty, *given, *empty)
    if isinstance(y, tuple):
        return y
    return _views(y, sizes) if y.requires_grad else _separate(y, sizes)


def _modes() -> int:
    """How many modes look at the ops that are called: to them it has to be one."""
    return int(torch._C._len_torch_dispatch_stack())


def _count_reason(weights: int, biases: int) -> str | None:
    if not 2 <= weights <= MOST:
        return f"{weights} weights were given; one call takes 2 to {MOST}"
    return None if biases == weights else f"{biases} biases were given for {weights} weights"


def reference(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None
) -> tuple[Tensor, ...]:
    """The definition, op by op: a linear layer for each weight."""
    given = [None] * len(weights) if biases is None else biases
    return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, given, strict=True))


def supports(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None) -> str | None:
    """None, or why these arguments would not run as one product."""
    given = [None] * len(weights) if biases is None else list(biases)
    reason = _count_reason(len(weights), len(given))
    if reason is not None:
        return reason
    named: dict[str, Tensor | None] = {f"weight {i}": weight for i, weight in enumerate(weights)}
    named |= {f"bias {i}": bias for i, bias in enumerate(given)}
    return first_reason(floating(x=x, **named), same_device(x=x, **named), _fits(x, weights, given), _apart(weights))


def _fits(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> str | None:
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if weight.dim() != 2 or x.dim() == 0 or weight.size(1) != x.size(-1):
            return f"weight {i} has shape {tuple(weight.shape)}, and x {tuple(x.shape)}"
        if bias is not None and tuple(bias.shape) != (weight.size(0),):
            return f"bias {i} has shape {tuple(bias.shape)}, and its weight {weight.size(0)} output features"
        if weight.dtype is not weights[0].dtype:
            return f"weight {i} is {weight.dtype}, and weight 0 {weights[0].dtype}"
    if x.dtype is not weights[0].dtype and product_dtype(x) is None:
        return f"x is {x.dtype}, and the weights are {weights[0].dtype}"
    return None


def _apart(weights: Sequence[Tensor]) -> str | None:
    return None if adjacent(weights) else "the weights do not lie one behind the other: PackedLinears puts them there"


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """q, k, v of grouped heads with and without biases (Qwen2, Whisper, Llama), and gate and up; in one buffer each."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def buffer(*sizes: int) -> list[Tensor]:
        return list((random(sum(sizes), width) / max(1, width) ** 0.5).split(sizes))

    narrow = max(1, width // 4)
    yield Sample("q, k and v", (random(rows, width), buffer(width, narrow, narrow)))
    biases = list(random(width + 2 * narrow).split((width, narrow, narrow)))
    yield Sample("q, k and v with biases", (random(rows, width), buffer(width, narrow, narrow), biases))
    some = [random(width), None, random(width)]
    yield Sample("q, k and v, k without bias", (random(rows, width), buffer(width, width, width), some))
    yield Sample("gate and up, two dimensions of rows", (random(rows, 2, width), buffer(2 * width + 1, 2 * width + 1)))


REPLACEMENT = Replacement(
    name="packed_linear",
    family="horizontal",
    function=packed_linear,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
