"""Attention in blocks of queries, for a CPU: matrix products by the BLAS library, all between them in one kernel.

A block of queries meets all the keys that it may see at once, so the softmax needs no second pass, and keys that are
out of view cost nothing. Memory is one block of scores: linear in the number of keys, whatever the number of queries.

Suffixes of shapes: (batch, heads, rows, channels) outside; inside (batch·kv_heads, groups·rows, channels), so that the
heads that share a k are one product, without a copy of k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from fused_replacements._compiled import Boxed, CompiledKernels, leaves, reason_of
from fused_replacements._dispatched import above_autograd
from fused_replacements._layout import wide
from fused_replacements._paths import Chosen, say_unfused
from fused_replacements.algorithmic import _scores
from fused_replacements.algorithmic._whole import misfit, whole

BLOCK_SCORES: Final = 1 << 20
"""Scores in a block: 4 MB in fp32, about the second-level caches of two cores."""
SMALL_SCORES: Final = 1 << 16
"""At or below it all is one compiled graph: the blocks' slices and views cost 0.1 ms a call."""
LEAST_ROWS: Final = 32
"""Fewer rows would leave the matrix products waiting for k."""


FEW_KEYS: Final = 16
FEW_CHANNELS: Final = 8


class Between(NamedTuple):
    """What lies between the products: its definition, and the kernels that the compiler made of it."""

    definition: Callable[..., Any]
    compiled: CompiledKernels


_WEIGHTS: Final = Between(_scores.weights, CompiledKernels(_scores.weights, 1 + len(_scores.Terms._fields)))
_WHOLE: Final = Between(whole, CompiledKernels(whole, 11, misfit=misfit))
_GRADIENTS: Final = Between(_scores.gradients, CompiledKernels(_scores.gradients, 3 + len(_scores.Terms._fields)))


class Problem(NamedTuple):
    """The arguments of the op."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None
    scale: float
    softcap: float
    window: int
    causal: bool
    lower_right: bool

    @property
    def shift(self) -> int:
        """Position of the first query among the keys."""
        return self.k.size(2) - self.q.size(2) if self.lower_right else 0

    @property
    def groups(self) -> int:
        return self.q.size(1) // self.k.size(1)


class Block(NamedTuple):
    """Some queries of some batches, and the keys that any of them sees."""

    batch: slice
    rows: slice
    columns: slice


def blocks(problem: Problem) -> Iterator[Block]:
    """Every query once, in blocks of nearly equal size: a last block of one row would be a class of its own."""
    batches, heads, q_len = problem.q.shape[:3]
    kv_len = problem.k.size(2)
    together = _mergeable(problem.k) and _mergeable(problem.v)
    per_row = max(1, heads * kv_len)
    step = max(1, min(batches, BLOCK_SCORES // (per_row * min(q_len, LEAST_ROWS)))) if together and q_len else 1
    rows = max(LEAST_ROWS, BLOCK_SCORES // (per_row * step))
    count = -(-q_len // rows)
    for first in range(0, batches, step):
        for i in range(count):
            row = slice(q_len * i // count, q_len * (i + 1) // count)
            columns = _columns(problem, row)
            if columns.stop > columns.start:  # queries before the first key see nothing, and their output is 0
                yield Block(slice(first, min(first + step, batches)), row, columns)


def _columns(problem: Problem, rows: slice) -> slice:
    low, high = 0, problem.k.size(2)
    if problem.causal:
        high = min(high, rows.stop + problem.shift)
    if problem.window:
        low = max(low, rows.start + problem.shift - problem.window + 1)
        high = min(high, rows.stop - 1 + problem.shift + problem.window)
    return slice(low, max(low, high))


def _mergeable(x: Tensor) -> bool:
    """Whether batch and heads can be walked as one dimension, so that a batched product reads ``x`` in place."""
    return x.size(0) == 1 or x.size(1) == 1 or x.stride(0) == x.size(1) * x.stride(1)


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """``out`` like q, and ``lse`` (batch, heads, q_len) in fp32."""
    problem = Problem(*arguments)
    q, k, v = problem.q, problem.k, problem.v
    if q.size(0) * q.size(1) * q.size(2) * k.size(2) <= SMALL_SCORES and (kernel := _compiled(_WHOLE, arguments)):
        out, lse = kernel(leaves(arguments))
        return out, lse
    if (reason := misfit(*arguments)) is not None:
        raise ValueError(reason)
    out = q.new_zeros(q.shape[:3] + v.shape[3:])
    lse = q.new_full(q.shape[:3], float("inf"), dtype=wide(q).dtype)
    for block in blocks(problem):
        keys = (block.batch, slice(None), block.columns)
        q_B, k_B, v_B = _grouped(q, block, problem.groups), k[keys].flatten(0, 1), v[keys].flatten(0, 1)
        products = torch.bmm(q_B, k_B.transpose(1, 2))
        p, lse_B = _between(_WEIGHTS, problem, block, products)
        here = (block.batch, slice(None), block.rows)
        out[here] = torch.bmm(p.view(products.shape), v_B).view(out[here].shape)
        lse[here] = lse_B.view(lse[here].shape)
    return out, lse


def backward(*arguments: Any) -> list[Tensor]:
    """The gradients that ``needs`` asks for, of q, k, v, bias and sinks."""
    if _is_small(arguments[2]):
        return _exact_gradients(arguments)
    dout, problem, (_, lse, needs) = arguments[0], Problem(*arguments[1:12]), arguments[12:]
    q, k, v = problem.q, problem.k, problem.v
    sums = _Sums(problem, needs)
    for block in blocks(problem):
        keys = (block.batch, slice(None), block.columns)
        q_B, dout_B = _grouped(q, block, problem.groups), _grouped(dout, block, problem.groups)
        k_B, v_B = k[keys].flatten(0, 1), v[keys].flatten(0, 1)
        products = torch.bmm(q_B, k_B.transpose(1, 2))
        dweights = torch.bmm(dout_B, v_B.transpose(1, 2))
        shape = _block_shape(problem, block)
        lse_B = lse[block.batch, :, block.rows].reshape(shape[:-1])
        p, dproducts, dscores, mean = _between(_GRADIENTS, problem, block, products, dweights.view(shape), lse_B)
        p, dproducts = p.view(products.shape), dproducts.view(products.shape)
        sums.dq[block.batch, :, block.rows] = torch.bmm(dproducts, k_B).view(sums.dq[block.batch, :, block.rows].shape)
        sums.dk[keys] += torch.bmm(dproducts.transpose(1, 2), q_B).view(sums.dk[keys].shape)
        sums.dv[keys] += torch.bmm(p.transpose(1, 2), dout_B).view(sums.dv[keys].shape)
        sums.add_bias(block, dscores)
        sums.add_sinks(lse_B, mean)
    return sums.wanted(needs)


def _is_small(k: Tensor) -> bool:
    """Few keys or channels in 16 bits: a rounded product is then a large part of a gradient, and fp32 costs little."""
    return k.element_size() == 2 and (k.size(2) < FEW_KEYS or k.size(3) < FEW_CHANNELS)


def _exact_gradients(arguments: Sequence[Any]) -> list[Tensor]:
    """As ``backward``, differentiated from the definition in fp32 and rounded once."""
    dout, problem, needs = arguments[0], Problem(*arguments[1:12]), arguments[-1]
    given = (problem.q, problem.k, problem.v, problem.bias, problem.sinks)

    def widened(x: Any, need: bool) -> Any:
        return x if x is None or x.dtype is torch.bool else x.detach().float().requires_grad_(need)

    with above_autograd(), torch.enable_grad():
        q, k, v, bias, sinks = inputs = [widened(x, need) for x, need in zip(given, needs, strict=True)]
        out, _ = whole(q, k, v, bias, problem.slopes, sinks, *problem[6:])
        wanted = [x for x, need in zip(inputs, needs, strict=True) if need]
        found = torch.autograd.grad(out, wanted, dout.float(), materialize_grads=True)
    dtypes = [x.dtype for x, need in zip(given, needs, strict=True) if need and x is not None]
    return [gradient.to(dtype).contiguous() for gradient, dtype in zip(found, dtypes, strict=True)]


class _Sums:
    """Gradients that grow from block to block, in fp32: a sum in bf16 would stop growing."""

    def __init__(self, problem: Problem, needs: Sequence[bool]) -> None:
        self.problem = problem
        dtype = wide(problem.q).dtype
        self.dq = torch.zeros_like(problem.q, memory_format=torch.contiguous_format)
        self.dk = problem.k.new_zeros(problem.k.shape, dtype=dtype)
        self.dv = problem.v.new_zeros(problem.v.shape, dtype=dtype)
        self.dbias = (
            problem.bias.new_zeros(problem.bias.shape, dtype=dtype) if problem.bias is not None and needs[3] else None
        )
        self.dsinks = (
            problem.sinks.new_zeros(problem.sinks.shape, dtype=dtype)
            if problem.sinks is not None and needs[4]
            else None
        )

    def add_bias(self, block: Block, dscores: Tensor) -> None:
        if self.dbias is not None:
            place = _bias_block(self.dbias, block)
            place += dscores.flatten(1, 2).sum_to_size(place.shape)

    def add_sinks(self, lse: Tensor, mean: Tensor) -> None:
        if self.dsinks is not None and self.problem.sinks is not None:
            sinks = wide(self.problem.sinks).view(1, *lse.shape[1:3], 1)
            self.dsinks -= (torch.exp(sinks - lse) * mean).sum((0, 3)).flatten()

    def wanted(self, needs: Sequence[bool]) -> list[Tensor]:
        given = (self.problem.q, self.problem.k, self.problem.v, self.problem.bias, self.problem.sinks)
        sums = (self.dq, self.dk, self.dv, self.dbias, self.dsinks)
        return [
            total.to(x.dtype)
            for x, total, need in zip(given, sums, needs, strict=True)
            if need and x is not None and total is not None
        ]


def _grouped(x: Tensor, block: Block, groups: int) -> Tensor:
    """(batch, heads, rows, channels) to (batch·kv_heads, groups·rows, channels) of one block."""
    part = x[block.batch, :, block.rows]
    return part.reshape(part.size(0) * part.size(1) // groups, groups * part.size(2), part.size(3))


def _block_shape(problem: Problem, block: Block) -> tuple[int, ...]:
    sizes = [part.stop - part.start for part in block]
    return (sizes[0], problem.k.size(1), problem.groups, sizes[1], sizes[2])


def _bias_block(bias: Tensor, block: Block) -> Tensor:
    """The part of a bias that a block sees; dimensions of size 1 are broadcast."""
    parts = (block.batch, slice(None), block.rows, block.columns)
    return bias[tuple(slice(None) if size == 1 else part for size, part in zip(bias.shape, parts, strict=True))]


def _positions(part: slice, like: Tensor) -> Tensor:
    """In 32 bits: the compiler vectorises no arithmetic in 64, and the kernel would take twenty times as long."""
    return torch.arange(part.start, part.stop, dtype=torch.int32, device=like.device)


def _terms(problem: Problem, block: Block) -> _scores.Terms:
    kv_heads, groups = problem.k.size(1), problem.groups
    bias, slopes, sinks = problem.bias, problem.slopes, problem.sinks
    if bias is not None:
        bias = _bias_block(bias, block)
        bias = bias.unflatten(1, (kv_heads, groups) if bias.size(1) > 1 else (1, 1))
    if slopes is not None:
        slopes = (slopes[block.batch] if slopes.size(0) > 1 else slopes).view(-1, kv_heads, groups, 1, 1)
    return _scores.Terms(
        bias,
        slopes,
        None if sinks is None else sinks.view(kv_heads, groups, 1, 1),
        _positions(block.rows, problem.q)[:, None] + problem.shift,
        _positions(block.columns, problem.q)[None, :],
        problem.scale,
        problem.softcap,
        problem.window,
        problem.causal,
    )


def _between(between: Between, problem: Problem, block: Block, products: Tensor, *more: Tensor) -> Any:
    """Run ``between`` on one block: compiled where it can be, op by op where not."""
    arguments = (products.view(_block_shape(problem, block)), *more, *_terms(problem, block))
    kernel = _compiled(between, arguments)
    return between.definition(*arguments) if kernel is None else kernel(leaves(arguments))


def _compiled(between: Between, arguments: Sequence[Any]) -> Boxed | None:
    """The compiled kernel for ``arguments``, or None where the definition is to run op by op."""
    if Chosen.cpu != "compiled" or arguments[0].device.type != "cpu":
        return None
    try:
        return between.compiled.find(arguments)
    except Exception as error:  # the compiler raises many kinds: no g++, no headers
        say_unfused("flash_attention", f"its softmax could not be compiled ({reason_of(error)})")
        between.compiled.give_up(arguments)
        return None
