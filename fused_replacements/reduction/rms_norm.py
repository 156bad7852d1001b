"""RMS norm: divide each row by its root mean square, and scale by a weight.

Formula
-------
``y = x / sqrt(mean(x²) + eps) · (offset + weight)`` over the last dimension, computed in fp32, and where there is a
gate ``y · silu(gate)``, or with ``gate_first`` the norm of ``x · silu(gate)``.

``cast`` says where the model goes back to the dtype of ``x``, which changes results in bf16:

* ``llama``: before the weight, so that the product is one of low-precision numbers (Llama, Mistral, Qwen, T5);
* ``gemma``: after it, so that only the result is rounded (Gemma, with ``offset=1``; ``F.rms_norm`` with ``offset=0``).

Shapes and dtypes
-----------------
``x``: (…, N); ``weight``: (N,) or None; ``gate``: like ``x`` or None; result: (…, N), contiguous. fp32, bf16 and fp16
fused, fp64 by the reference. On a GPU rows have up to 65,536 elements, and with a gate that learns up to 2,048; on a
CPU any number. With ``llama`` the result has the promoted dtype of ``x`` and ``weight``, with ``gemma`` that of ``x``.
The rows of ``x`` and ``gate`` may lie at any one stride. Gradients to ``x``, ``weight`` and ``gate``.

Bytes moved
-----------
Forward: ``x`` read and ``y`` written once, 2 accesses an element instead of 7 to 11 for the six to eight kernels that
models write. Backward: ``x`` and the gradient read, one gradient written: 3. Row statistics are recomputed from the
row in registers, so nothing but ``x`` is kept. The gradient of ``weight`` is summed in fp32.

When it loses
-------------
Next to a residual add: ``add_rms_norm`` saves one more pass. Inside a graph that ``torch.compile`` compiles as a whole
the compiler fuses the norm too, and an op of its own is a wall to it.

Source
------
Zhang and Sennrich 2019, "Root Mean Square Layer Normalization". The gated form is that of Mamba-2 (``gate_first``) and
of Qwen3-Next.
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
from fused_replacements._paths import note_unfused
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import first_reason, floating, one_of, row_width, same_shape

Cast = Literal["llama", "gemma"]
CASTS: Final = get_args(Cast)
"""Where the norm is rounded: before the weight, or after it."""


def _definition(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, eps: float, offset: float, cast: str, gate_first: bool
) -> Tensor:
    h = _layout.wide(x)
    if gate is not None and gate_first:
        h = h * F.silu(_layout.wide(gate))
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if cast == "llama":
        y = h.to(x.dtype)
        y = y if weight is None else y * (weight + offset if offset else weight)
    else:
        h = h if weight is None else h * (_layout.wide(weight) + offset)
        y = h.to(x.dtype)
    if gate is not None and not gate_first:
        y = (_layout.wide(y) * F.silu(_layout.wide(gate))).to(y.dtype)
    return y


def _misfit(x: Tensor, weight: Tensor | None, gate: Tensor | None, *_: object) -> str | None:
    return row_width(x, weight=weight) or same_shape(x=x, gate=gate)


OP = FusedOp(
    "rms_norm(Tensor x, Tensor? weight, Tensor? gate, float eps, float offset, str cast, bool gate_first) -> Tensor",
    _definition,
    forward=Kernels("rms_norm", "forward"),
    backward=Kernels("rms_norm", "backward", "refuses_backward"),
    misfit=_misfit,
)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
    gate: Tensor | None = None,
    gate_first: bool = False,
) -> Tensor:
    """RMS norm of the rows of ``x`` (…, N), in one kernel; see the module for the formula.

    Raises:
        ValueError: ``cast`` is none of the two, or the shapes don't fit.
    """
    if cast not in CASTS:
        raise ValueError(one_of("cast", cast, CASTS))
    return OP(x, weight, gate, eps, offset, cast, gate_first)  # type: ignore[no-any-return]


def reference(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
    gate: Tensor | None = None,
    gate_first: bool = False,
) -> Tensor:
    """The definition, op by op."""
    return _definition(x, weight, gate, eps, offset, cast, gate_first)


def supports(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
    gate: Tensor | None = None,
    gate_first: bool = False,
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        one_of("cast", cast, CASTS),
        floating(x=x, weight=weight, gate=gate),
        _misfit(x, weight, gate),
        OP.refuses(x, weight, gate, eps, offset, cast, gate_first),
    )


def _torch_supports(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
    gate: Tensor | None = None,
    gate_first: bool = False,
) -> str | None:
    reason = supports(x, weight, eps, offset=offset, cast=cast, gate=gate, gate_first=gate_first)
    if reason is None and gate is not None:
        return "F.rms_norm has no gate"
    if reason is None and offset:
        return "F.rms_norm has no offset"
    if reason is None and cast == "llama" and weight is not None and x.dtype is not torch.float32:
        return "F.rms_norm rounds after the weight"
    return BY_OPS if reason is None and x.device.type == "cpu" else reason


BY_OPS: Final = "F.rms_norm computes op by op on a CPU"


def _torch(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, **_: object) -> Tensor:
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        note_unfused("rms_norm", BY_OPS)  # a tensor of the meta device, which `supports` may get, does not tell
    return F.rms_norm(x, (x.size(-1),), weight, eps)


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use: both casts, Gemma's offset, no weight, and both gated forms."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    yield Sample("llama", (random(rows, width), random(width), 1e-6))
    yield Sample("gemma, 1 + weight", (random(rows, width), random(width), 1e-6), {"offset": 1.0, "cast": "gemma"})
    yield Sample("no weight", (random(rows, width), None, 1e-5))
    yield Sample("gate after", (random(rows, width), random(width), 1e-6), {"gate": random(rows, width)})
    yield Sample(
        "gate first", (random(rows, width), random(width), 1e-5), {"gate": random(rows, width), "gate_first": True}
    )


REPLACEMENT = Replacement(
    name="rms_norm",
    family="reduction",
    function=rms_norm,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
    alternatives=(Provider("pytorch", _torch, _torch_supports),),
)
