"""Cross entropy of a linear layer's outputs that never holds all of them: memory before speed.

Formula
-------
``cross_entropy(hidden @ weightᵀ + bias, target)``, with the soft-cap, ``ignore_index``, label smoothing and reductions
of ``cross_entropy``. Forward walks over chunks of rows: it multiplies, takes the loss of the chunk and keeps two fp32
statistics of each row. Backward multiplies again, in chunks of classes: with the statistics known, the gradient of
some columns of the logits needs no other columns. So the gradients of ``weight`` and ``bias`` are finished chunk by
chunk, each in one product over all rows that is summed in fp32, and need no buffer of ``weight``'s size in fp32; that
of ``hidden`` is the sum over the chunks, in fp32.

Shapes and dtypes
-----------------
``hidden``: (rows, dim); ``weight``: (classes, dim), ``bias``: (classes,) or None; ``target``: (rows,) of int64; result:
a scalar, or (rows,) without reduction. All three in one dtype: fp32, bf16, fp16, or fp64 by the reference. Under
autocast they are cast as a linear layer casts them, and the result is fp32; else it has the dtype of ``hidden``, or
``dtype`` (``torch.float32`` where a model writes ``cross_entropy(logits.float(), …)``). Logits are rounded to the dtype
of ``hidden``, as a linear layer does. Any strides. Gradients to what requires one: a frozen ``weight`` (an adapter on
the head) still trains ``hidden``, and costs no product for its own gradient.

Bytes moved
-----------
Logits in memory at once: a chunk of at most 128 MiB and an eighth of all, instead of all of them two to five times
(the logits, their fp32 copy, log-probabilities and gradients). Beside it one fp32 array of the size of ``hidden``.
Peak of a training step on a CPU, gradients included, for 512 dimensions and 32,000 classes, where the model writes
``cross_entropy(linear(hidden, weight).float(), target)``:

* 4,096 rows in fp32: 125 MiB instead of 1,500 (eager) or 500 (``torch.compile``);
* 2,048 rows in bf16: 33 MiB instead of 750 (eager) or 131 (``torch.compile``).

When it loses
-------------
In time, nearly always: it multiplies four times where PyTorch multiplies three times. The same two steps on a CPU ran
at 0.72 and 1.13 times the speed of eager (which spends more on the fp32 copies in bf16), and at 0.58 and 0.72 times
that of ``torch.compile``. Use it where the logits don't fit, or where the memory buys a larger batch.

Source
------
Chunked losses with recomputed logits: "Cut Your Losses in Large-Vocabulary Language Models" (Wijmans et al. 2024);
chunks of rows as in Liger Kernel (Hsu et al. 2024), which instead keeps gradients from forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements import _layout
from fused_replacements._autocast import product_dtype
from fused_replacements._dispatched import Composed
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import first_reason, floating, same_device
from fused_replacements.reduction import _logits
from fused_replacements.reduction import cross_entropy as whole

CHUNK_BYTES: Final = 128 << 20
"""Logits in memory at once: 512 rows of 131,072 classes in bf16, enough for a GPU's matrix units to be the limit."""
CHUNKS: Final = 8
"""At least so many chunks, so that small problems save memory too,"""
LEAST: Final = 256
"""but none of fewer rows or classes than this: a product this thin still runs at full speed."""


def chunk(extent: int, other: int, itemsize: int) -> int:
    """How many of ``extent`` rows (or classes) to take at once, beside ``other`` classes (or rows)."""
    fitting = CHUNK_BYTES // max(1, other * itemsize)
    return max(LEAST, min(fitting, -(-extent // CHUNKS)))


def _product(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return hidden @ weight.t() if bias is None else torch.addmm(bias, hidden, weight.t())


def _definition(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    softcap: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits = _product(hidden, weight, bias)
    loss, top, logsum, total = whole.OP.reference(
        logits, target, None, ignore_index, reduction, label_smoothing, softcap, dtype
    )
    return loss, top, logsum, total


def _forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    softcap: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, then ``top`` and ``logsum`` of each row and the total that the mean divides by; over chunks of rows."""
    rows, statistics = hidden.size(0), _statistics_dtype(hidden)
    losses, top, logsum = (_layout.new(hidden, (rows,), statistics) for _ in range(3))
    step = chunk(rows, weight.size(0), hidden.element_size())
    for start in range(0, rows, step):
        part = slice(start, start + step)
        logits = _product(hidden[part], weight, bias)
        losses[part], top[part], logsum[part], _ = whole.OP.forward.overload(
            logits, target[part], None, ignore_index, "none", label_smoothing, softcap, statistics
        )
        del logits  # or the next chunk would be made while this one is held
    total = (target != ignore_index).sum().to(statistics)
    if reduction == "none":
        return losses.to(dtype), top, logsum, total
    loss = losses.sum()
    return (loss / total if reduction == "mean" else loss).to(dtype), top, logsum, total


def _statistics_dtype(hidden: Tensor) -> torch.dtype:
    return torch.float64 if hidden.dtype is torch.float64 else torch.float32


def _backward(
    grad: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    softcap: float,
    dtype: torch.dtype,
    top: Tensor,
    logsum: Tensor,
    total: Tensor,
    needs: list[bool],
) -> list[Tensor]:
    """The gradients that ``needs`` asks for, of ``hidden``, ``weight`` and ``bias``; over chunks of classes."""
    (rows, _), classes = hidden.shape, weight.size(0)
    row_grad = _logits.row_gradients(grad, target, total, ignore_index, reduction, classes).contiguous()
    dhidden = torch.zeros(hidden.shape, dtype=_statistics_dtype(hidden), device=hidden.device) if needs[0] else None
    dweight = _layout.new(weight) if needs[1] else None
    dbias = _layout.new(bias) if bias is not None and needs[2] else None
    step = chunk(classes, rows, hidden.element_size())
    share = label_smoothing / classes if label_smoothing else 0.0
    for start in range(0, classes, step):
        part = slice(start, start + step)
        logits = _product(hidden, weight[part], bias if bias is None else bias[part])
        dlogits = whole.COLUMNS_GRADIENT.overload(
            row_grad, logits, target - start, top, logsum, softcap, label_smoothing, share
        )
        del logits
        if dhidden is not None:
            _add_product(dhidden, dlogits, weight[part])
        if dweight is not None:
            torch.mm(dlogits.t(), hidden, out=dweight[part])
        if dbias is not None:
            dbias[part] = dlogits.sum(0)
        del dlogits
    found = (dhidden if dhidden is None else dhidden.to(hidden.dtype), dweight, dbias)
    return [gradient for gradient, need in zip(found, needs, strict=True) if need and gradient is not None]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype is left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right  # rounded once a chunk, as PyTorch rounds it once; summed in fp32


def _several_dtypes(hidden: Tensor, weight: Tensor, bias: Tensor | None, *_: object) -> str | None:
    dtypes = {tensor.dtype for tensor in (hidden, weight, bias) if tensor is not None}
    return None if len(dtypes) == 1 else "hidden, weight and bias have several dtypes"


OP = FusedOp(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor target, int ignore_index, str reduction,"
    " float label_smoothing, float softcap, ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    _definition,
    forward=Composed(_forward),
    backward=Composed(_backward),
    saved=3,
    constant=("target",),
    discrete=("target",),
    misfit=_several_dtypes,
)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: whole.Reduction = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Cross entropy of ``hidden @ weightᵀ + bias`` (rows, classes) and ``target`` (rows,), in chunks.

    Raises:
        ValueError: sizes don't fit, or ``reduction``, ``label_smoothing`` or ``softcap`` is none that there is.
    """
    if hidden.dim() != 2 or target.dtype is not torch.int64:
        loss = reference(
            hidden, weight, target, bias, ignore_index=ignore_index, reduction=reduction,
            label_smoothing=label_smoothing, softcap=softcap, dtype=dtype,
        )  # fmt: skip
        say_unfused("linear_cross_entropy", "it takes hidden states of (rows, dim) with int64 targets")
        return loss
    whole.check_options(reduction, label_smoothing, softcap)
    _check_sizes(hidden, weight, target, bias)
    dtype = dtype or whole.loss_dtype(hidden)
    low = product_dtype(hidden)
    if low is not None:
        hidden, weight, bias = hidden.to(low), weight.to(low), bias if bias is None else bias.to(low)
    return OP(  # type: ignore[no-any-return]
        hidden, weight, bias, target, ignore_index, reduction, label_smoothing, softcap or 0.0, dtype
    )


def _misfit(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> str | None:
    if weight.dim() != 2 or weight.size(1) != hidden.size(1):
        return f"weight has shape {tuple(weight.shape)}, and hidden {tuple(hidden.shape)}"
    if target.shape != hidden.shape[:1]:
        return f"target has shape {tuple(target.shape)}, and hidden {hidden.size(0)} rows"
    if bias is not None and bias.shape != weight.shape[:1]:
        return f"bias has shape {tuple(bias.shape)}, and there are {weight.size(0)} classes"
    return None


def _check_sizes(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    reason = _misfit(hidden, weight, target, bias)
    if reason is not None:
        raise ValueError(reason)


def reference(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: whole.Reduction = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The definition: a linear layer, then the definition of ``cross_entropy``."""
    return whole.reference(
        F.linear(hidden, weight, bias), target, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, softcap=softcap, dtype=dtype or whole.loss_dtype(hidden),
    )  # fmt: skip


def supports(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: whole.Reduction = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
) -> str | None:
    """None, or why these arguments would not run in chunks."""
    autocast = product_dtype(hidden) is not None
    return first_reason(
        whole.option_reason(reduction, label_smoothing, softcap),
        floating(hidden=hidden, weight=weight, bias=bias),
        f"hidden has {hidden.dim()} dimensions, and it has to be (rows, dim)" if hidden.dim() != 2 else None,
        None if target.dtype is torch.int64 else f"target is {target.dtype}, and classes are int64",
        None if autocast else _several_dtypes(hidden, weight, bias),
        same_device(hidden=hidden, weight=weight, bias=bias, target=target),
        _misfit(hidden, weight, target, bias) if hidden.dim() == 2 else None,
    )


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use, for ``width`` classes."""
    dim = max(8, min(512, width // 8))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def head() -> tuple[Tensor, Tensor, Tensor]:
        classes = torch.randint(width, (rows,), device=device)
        target = torch.where(torch.arange(rows, device=device) % 5 == 1, -100, classes)
        return random(rows, dim), random(width, dim) * (3 / dim**0.5), target

    yield Sample("mean", head())
    yield Sample("fp32 loss, soft-cap", head(), {"dtype": torch.promote_types(dtype, torch.float32), "softcap": 30.0})
    yield Sample("bias, label smoothing, sum", (*head(), random(width)), {"label_smoothing": 0.1, "reduction": "sum"})
    yield Sample("no reduction", head(), {"reduction": "none"})


REPLACEMENT = Replacement(
    name="linear_cross_entropy",
    family="reduction",
    function=linear_cross_entropy,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
