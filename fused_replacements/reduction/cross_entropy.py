"""Cross entropy of logits and target classes, with its gradient, without a copy of the logits in a wider dtype.

Formula
-------
With ``z = logits``, or ``z = softcap · tanh(logits / softcap)``, in fp32, the loss of a row is ``−log softmax(z)[t]``
for its target ``t``, weighted and smoothed as in ``F.cross_entropy``::

    loss = (1 − ε) · w[t] · (lse − z[t]) + ε / classes · Σ w[c] · (lse − z[c])        ε: label_smoothing

``reduction`` is ``mean`` (over the rows that are not ignored, by their weights), ``sum`` or ``none``. With
``none`` each row has its own gradient. Rows whose target is ``ignore_index`` have loss and gradient 0, whatever their
logits; where every row is ignored the mean is NaN, and the gradient 0. A target that is no class makes the loss and the
gradient of its row NaN, and reads nothing out of bounds; PyTorch raises on a CPU, and stops the process on a GPU.

Shapes and dtypes
-----------------
``logits``: (rows, classes); ``target``: (rows,) of int64; ``weight``: (classes,) or None, without gradient; result: a
scalar, or (rows,). fp32, bf16 and fp16 fused, fp64 by the reference. The result has the dtype of ``logits``, fp32
under autocast, or ``dtype``: models that write ``cross_entropy(logits.float(), …)`` say ``dtype=torch.float32``, and
the fp32 copy is gone. The gradient has the dtype of ``logits`` and is a new tensor: the logits are never written to.
Any number of classes; rows at any one stride. Target probabilities and further dimensions run as the reference.

Bytes moved
-----------
Forward: the logits read once, 1 access an element instead of 3 to 5. Backward: the logits read, their gradient
written: 2 instead of 4 to 7. Two fp32 statistics a row are kept, and the logits; PyTorch keeps the log-probabilities
besides, in fp32 where models upcast. On a GPU the logits of ignored rows are not read.

When it loses
-------------
On a GPU with fewer rows than processors: one program reads a row. Where the logits come from a linear layer and memory
is short, ``linear_cross_entropy`` never holds them all. A call of a few thousand elements costs some 15 µs more than
PyTorch's on a CPU.

Source
------
Online softmax: Milakov and Gimelshein 2018. Soft-capped logits: Gemma 2 (2024). Label smoothing: Szegedy et al. 2016.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements._autocast import product_dtype
from fused_replacements._dispatched import Kernels, Op
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import first_reason, floating, one_of, same_device
from fused_replacements.reduction import _logits

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: Final = ("mean", "sum", "none")


def _definition(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    softcap: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and what backward needs: ``top`` and ``logsum`` of each row, and the total that the mean divides by."""
    z = _logits.capped(logits, softcap)
    weight = weight if weight is None else weight.to(z.dtype)
    top, logsum = _logits.statistics(z)
    losses = _logits.row_losses(z, target, weight, top, logsum, label_smoothing)
    losses = losses.masked_fill(target == ignore_index, 0.0)
    total = _logits.row_shares(target, weight, ignore_index, logits.size(1), z.dtype).sum()
    loss = losses if reduction == "none" else losses.sum()
    return (loss / total if reduction == "mean" else loss).to(dtype), top, logsum, total


def _gradient(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
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
    classes = logits.size(1)
    row_grad = _logits.row_gradients(grad, target, total, ignore_index, reduction, classes)
    weight = weight if weight is None else weight.to(top.dtype)
    share = label_smoothing / classes if label_smoothing else 0.0
    return [
        _logits.logits_gradient(row_grad, logits, target, weight, top, logsum, softcap, label_smoothing, share),
    ]


OP = FusedOp(
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight, int ignore_index, str reduction,"
    " float label_smoothing, float softcap, ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    _definition,
    forward=Kernels("cross_entropy", "forward"),
    backward=Kernels("cross_entropy", "backward", "refuses_backward"),
    saved=3,
    gradient=_gradient,
    constant=("target", "weight"),
    discrete=("target",),
)


def _columns_gradient(
    row_grad: Tensor,
    logits: Tensor,
    target: Tensor,
    top: Tensor,
    logsum: Tensor,
    softcap: float,
    label_smoothing: float,
    smooth_share: float,
) -> Tensor:
    return _logits.logits_gradient(row_grad, logits, target, None, top, logsum, softcap, label_smoothing, smooth_share)


COLUMNS_GRADIENT = Op(
    "cross_entropy_columns_gradient(Tensor row_grad, Tensor logits, Tensor target, Tensor top, Tensor logsum,"
    " float softcap, float label_smoothing, float smooth_share) -> Tensor",
    _columns_gradient,
    Kernels("cross_entropy", "columns_gradient", "refuses_columns"),
)
"""The gradient of some columns of the logits, whose rows' statistics are known, for ``linear_cross_entropy``."""


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Cross entropy of ``logits`` (rows, classes) and ``target`` (rows,), in one kernel each way.

    Raises:
        ValueError: sizes don't fit, or ``reduction``, ``label_smoothing`` or ``softcap`` is none that there is.
    """
    if logits.dim() != 2 or target.dtype is not torch.int64:
        loss = reference(
            logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing,
            softcap=softcap, dtype=dtype,
        )  # fmt: skip
        say_unfused("cross_entropy", "it fuses logits of (rows, classes) with int64 targets")
        return loss
    check_options(reduction, label_smoothing, softcap)
    if target.shape != logits.shape[:1] or (weight is not None and weight.shape != logits.shape[1:]):
        raise ValueError(_misfit(logits, target, weight))
    if dtype is None:
        dtype = loss_dtype(logits)
    return OP(  # type: ignore[no-any-return]
        logits, target, weight, ignore_index, reduction, label_smoothing, softcap or 0.0, dtype
    )


def option_reason(reduction: str, label_smoothing: float, softcap: float | None) -> str | None:
    """Why an option has no meaning, or None."""
    if reduction not in REDUCTIONS:
        return one_of("reduction", reduction, REDUCTIONS)
    if not 0.0 <= label_smoothing <= 1.0:
        return f"label_smoothing is {label_smoothing}; it is a share between 0 and 1"
    if softcap is not None and not softcap > 0.0:
        return f"softcap is {softcap}; it is a positive bound, or None"
    return None


def check_options(reduction: str, label_smoothing: float, softcap: float | None) -> None:
    """ValueError where an option has no meaning."""
    reason = option_reason(reduction, label_smoothing, softcap)
    if reason is not None:
        raise ValueError(reason)


def loss_dtype(logits: Tensor) -> torch.dtype:
    """The dtype of the loss of ``F.cross_entropy``: that of the logits, and fp32 under autocast."""
    if product_dtype(logits) is not None:
        return torch.float32
    return logits.dtype


def reference(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The definition: PyTorch's own loss, of logits in fp32."""
    z = _logits.capped(logits, softcap or 0.0)
    loss = F.cross_entropy(
        z, target, weight if weight is None else weight.to(z.dtype), ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    return loss.to(dtype or loss_dtype(logits))


def supports(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    dtype: torch.dtype | None = None,
) -> str | None:
    """None, or why these arguments would not run fused."""
    reason = first_reason(
        option_reason(reduction, label_smoothing, softcap),
        floating(logits=logits, weight=weight),
        f"logits has {logits.dim()} dimensions, and (rows, classes) are fused" if logits.dim() != 2 else None,
        None if target.dtype is torch.int64 else f"target is {target.dtype}, and classes are int64",
        _misfit(logits, target, weight) if logits.dim() == 2 else None,
        same_device(logits=logits, target=target, weight=weight),
    )
    if reason is not None:
        return reason
    return OP.refuses(
        logits, target, weight, ignore_index, reduction, label_smoothing, softcap or 0.0, dtype or logits.dtype
    )


def _misfit(logits: Tensor, target: Tensor, weight: Tensor | None) -> str | None:
    if target.shape != logits.shape[:1]:
        return f"target has shape {tuple(target.shape)}, and there are {logits.size(0)} rows of logits"
    if weight is not None and weight.shape != logits.shape[1:]:
        return f"weight has shape {tuple(weight.shape)}, and there are {logits.size(1)} classes"
    return None


def _torch_supports(logits: Tensor, target: Tensor, weight: Tensor | None = None, **options: object) -> str | None:
    reason = floating(logits=logits)
    if reason is None and options.get("softcap") is not None:
        return "F.cross_entropy has no soft-cap"
    if reason is None and options.get("dtype") not in (None, logits.dtype):
        return "F.cross_entropy gives the dtype of the logits"
    if reason is None and weight is not None and weight.dtype is not logits.dtype:
        return "F.cross_entropy wants weights in the dtype of the logits"
    return reason


def _torch(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    **_: object,
) -> Tensor:
    return F.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use; a fifth of the rows is ignored, as prompts and padding are."""

    def logits() -> Tensor:
        return torch.randn(rows, width, dtype=dtype, device=device) * 3

    def target() -> Tensor:
        classes = torch.randint(width, (rows,), device=device)
        return torch.where(torch.arange(rows, device=device) % 5 == 1, -100, classes)

    yield Sample("mean", (logits(), target()))
    yield Sample("fp32 loss", (logits(), target()), {"dtype": torch.promote_types(dtype, torch.float32)})
    yield Sample(
        "soft-cap", (logits(), target()), {"softcap": 30.0, "dtype": torch.promote_types(dtype, torch.float32)}
    )
    yield Sample("label smoothing, sum", (logits(), target()), {"label_smoothing": 0.1, "reduction": "sum"})
    yield Sample("no reduction", (logits(), target()), {"reduction": "none"})


REPLACEMENT = Replacement(
    name="cross_entropy",
    family="reduction",
    function=cross_entropy,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
    alternatives=(Provider("pytorch", _torch, _torch_supports),),
)
