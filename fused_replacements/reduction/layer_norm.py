"""Layer norm: centre each row, divide it by its standard deviation, scale and shift it by a weight and a bias.

Formula
-------
``y = (x − mean(x)) / sqrt(var(x) + eps) · (offset + weight) + bias`` over the last dimension, with the biased variance
``mean((x − mean(x))²)``, computed in fp32.

``cast`` says where the model goes back to the dtype of ``x``, which changes results in bf16:

* ``torch``: once, at the end (``F.layer_norm``, Cohere, ESM; Nemotron with ``offset=1``);
* ``deberta``: before the weight, so that weight and bias act on low-precision numbers (DeBERTa). Norms that are written
  without any cast have the same dtypes, and less exact statistics.

Shapes and dtypes
-----------------
``x``: (…, N); ``weight`` and ``bias``: (N,) or None; result: (…, N), contiguous. fp32, bf16 and fp16 fused, fp64 by the
reference. With ``torch`` the result has the dtype of ``x``, but fp32 under autocast on a GPU, as ``F.layer_norm`` has;
with ``deberta`` the promoted dtype of ``x``, ``weight`` and ``bias``. The rows of ``x`` may lie at any one stride.
Gradients to ``x``, ``weight`` and ``bias``.

Bytes moved
-----------
Forward: ``x`` read and ``y`` written once, 2 accesses an element instead of 12 to 20 for the seven to eleven kernels
that a norm by hand is. Backward: ``x`` and the gradient read, one gradient written: 3. Row statistics are recomputed
from the row in registers, so nothing but ``x`` is kept. Above 8,192 columns, where weight or bias learn, ``x`` and the
gradient are read once more: 5. Their gradients are summed in fp32.

When it loses
-------------
Against ``F.layer_norm`` itself, which is one kernel already: there is nothing to gain but the backward's smaller
traffic. Next to a residual add: ``add_layer_norm`` saves one more pass.

Source
------
Ba, Kiros and Hinton 2016, "Layer Normalization". The backward in terms of the normalised row is the usual one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements import _layout
from fused_replacements._dispatched import Kernels
from fused_replacements._op import FusedOp
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import first_reason, floating, one_of, row_width, same_device
from fused_replacements.reduction._residual import through_scale

Cast = Literal["torch", "deberta"]
CASTS: Final = get_args(Cast)
"""Where the norm is rounded: at the end, or before the weight."""


def _centred(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Rows of mean 0 in fp32, and the factors that give them variance 1."""
    h = _layout.wide(x)
    centred = h - h.mean(-1, keepdim=True)
    return centred, torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)


def definition(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, cast: str, wide: bool = False
) -> Tensor:
    """Layer norm in plain PyTorch. ``wide``: the result is fp32 whatever ``x`` is."""
    centred, r = _centred(x, eps)
    n = centred * r
    if cast == "deberta":
        n = n.to(x.dtype)
        n = n if weight is None else n * (weight + offset if offset else weight)
        return n if bias is None else n + bias
    n = n if weight is None else n * (_layout.wide(weight) + offset)
    n = n if bias is None else n + _layout.wide(bias)
    return n if wide else n.to(x.dtype)


def gradient(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, cast: str,
    wide: bool, needs: list[bool],
) -> list[Tensor]:  # fmt: skip
    """Of ``x``, ``weight`` and ``bias``, where ``needs`` says so."""
    centred, r = _centred(x, eps)
    dy = _layout.wide(dy)
    found = []
    if needs[0]:
        g = dy if weight is None else dy * (_layout.wide(weight) + offset)
        dh = through_scale(g, centred, r)
        found.append((dh - dh.mean(-1, keepdim=True)).to(x.dtype))
    rows = list(range(x.dim() - 1))
    if needs[1] and weight is not None:
        n = centred * r
        found.append(((dy * n).sum(rows) if rows else dy * n).to(weight.dtype))
    if needs[2] and bias is not None:
        found.append((dy.sum(rows) if rows else dy.clone()).to(bias.dtype))
    return found


def _misfit(x: Tensor, weight: Tensor | None, bias: Tensor | None, *_: object) -> str | None:
    return row_width(x, weight=weight, bias=bias)


OP = FusedOp(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, float offset, str cast, bool wide) -> Tensor",
    definition,
    forward=Kernels("layer_norm", "forward"),
    backward=Kernels("layer_norm", "backward", "refuses_backward"),
    gradient=gradient,
    misfit=_misfit,
)


def widened_by_autocast(x: Tensor, cast: str) -> bool:
    """Whether ``F.layer_norm`` of ``x`` would be cast to fp32: by autocast of a GPU, not by that of a CPU."""
    device = x.device.type
    return cast == "torch" and device in ("cuda", "xpu") and torch.is_autocast_enabled(device)


def check_cast(cast: str) -> None:
    """Raise ValueError where ``cast`` is none of the two."""
    if cast not in CASTS:
        raise ValueError(one_of("cast", cast, CASTS))


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> Tensor:
    """Layer norm of the rows of ``x`` (…, N), in one kernel; see the module for the formula.

    Raises:
        ValueError: ``cast`` is none of the two, or the shapes don't fit.
    """
    check_cast(cast)
    return OP(x, weight, bias, eps, offset, cast, widened_by_autocast(x, cast))  # type: ignore[no-any-return]


def reference(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> Tensor:
    """The definition, op by op."""
    return definition(x, weight, bias, eps, offset, cast, widened_by_autocast(x, cast))


def supports(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        one_of("cast", cast, CASTS),
        floating(x=x, weight=weight, bias=bias),
        row_width(x, weight=weight, bias=bias),
        same_device(x=x, weight=weight, bias=bias),
        OP.refuses(x, weight, bias, eps, offset, cast, widened_by_autocast(x, cast)),
    )


def _torch_supports(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> str | None:
    reason = first_reason(
        floating(x=x, weight=weight, bias=bias),
        row_width(x, weight=weight, bias=bias),
        same_device(x=x, weight=weight, bias=bias),
    )
    low = any(tensor is not None and tensor.dtype is not torch.float32 for tensor in (x, weight, bias))
    if reason is None and offset:
        return "F.layer_norm has no offset"
    if reason is None and cast == "deberta" and low:
        return "F.layer_norm rounds after the weight"
    if reason is None and any(vector is not None and vector.dtype is not x.dtype for vector in (weight, bias)):
        return "F.layer_norm takes one dtype"
    return reason


def _torch(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> Tensor:
    return F.layer_norm(x, (x.size(-1),), weight, bias, eps)


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use: with and without weight and bias, both casts, and Nemotron's offset."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    yield Sample("weight and bias", (random(rows, width), random(width), random(width), 1e-5))
    yield Sample("no bias", (random(rows, width), random(width), None, 1e-5))
    yield Sample("no weight", (random(rows, width), None, None, 1e-6))
    yield Sample("deberta", (random(rows, width), random(width), random(width), 1e-7), {"cast": "deberta"})
    yield Sample("1 + weight", (random(rows, width), random(width), random(width), 1e-5), {"offset": 1.0})


REPLACEMENT = Replacement(
    name="layer_norm",
    family="reduction",
    function=layer_norm,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
    alternatives=(Provider("pytorch", _torch, _torch_supports),),
)
