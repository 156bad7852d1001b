"""How the kernels of flash attention are launched: tiles by head_dim and dtype, and the layouts that they can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._attention_kernels import (
    flash_backward_bias,
    flash_backward_kv,
    flash_backward_q,
    flash_forward,
)
from fused_replacements.kernels._attention_scores import ADDED_BIAS, BOOLEAN_BIAS, NO_BIAS
from fused_replacements.kernels._launch import KernelCase, on

WIDEST_HEAD: Final = 256
"""Channels of a head: above it no tile fits in registers and shared memory of every GPU here."""
WIDEST_FP32_BACKWARD: Final = 64
"""Products in full fp32 hold whole rows in registers: above it backward spills on NVIDIA GPUs, whatever the tile."""


class Tile(NamedTuple):
    """Queries and keys of one program, its warps of 32 threads, and the depth of its load pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int

    @property
    def waves(self) -> int:
        """Warps of 64 threads: never under 4, one for each scheduler of a processor."""
        return min(self.warps, 4)


class Tiles(NamedTuple):
    forward: Tile
    backward_q: Tile
    backward_kv: Tile
    backward_bias: Tile


TILES: Final[Mapping[tuple[int, int], Tiles]] = {
    # (channels padded to a power of two, bytes of an element)
    (32, 2): Tiles(Tile(128, 64, 8, 2), Tile(64, 32, 4, 1), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1)),
    (64, 2): Tiles(Tile(128, 64, 8, 2), Tile(64, 32, 4, 1), Tile(32, 64, 4, 1), Tile(64, 32, 4, 1)),
    (128, 2): Tiles(Tile(64, 64, 8, 2), Tile(64, 32, 8, 1), Tile(32, 64, 8, 1), Tile(64, 32, 8, 1)),
    (256, 2): Tiles(Tile(64, 16, 8, 1), Tile(32, 32, 8, 1), Tile(32, 32, 8, 1), Tile(32, 16, 8, 1)),
    (32, 4): Tiles(Tile(32, 32, 4, 1), Tile(16, 32, 4, 1), Tile(16, 32, 4, 1), Tile(32, 32, 4, 1)),
    (64, 4): Tiles(Tile(32, 32, 4, 1), Tile(16, 32, 4, 1), Tile(16, 64, 8, 1), Tile(32, 32, 8, 1)),
    (128, 4): Tiles(Tile(32, 32, 8, 1), Tile(16, 16, 4, 1), Tile(16, 32, 8, 1), Tile(32, 16, 8, 1)),
    (256, 4): Tiles(Tile(32, 16, 8, 1), Tile(16, 16, 8, 1), Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}
"""The largest tiles at which no kernel spills on sm_80, sm_90, sm_100 and gfx942. A tile of more queries reads k and v
less often; fp32 takes twice the room, and its products no tensor cores."""


def padded(head_dim: int) -> int:
    """Channels of a tile: a power of two, and at least 32, so that tensor cores and 16-byte loads fit."""
    return max(32, int(triton.next_power_of_2(head_dim)))


def tiles(head_dim: int, element_bytes: int) -> Tiles:
    return TILES[padded(head_dim), element_bytes]


def refuses(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None,
    scale: float, softcap: float, window: int, causal: bool, lower_right: bool,
) -> str | None:  # fmt: skip
    """Why the kernels can't take these, or None."""
    head_dim = q.size(-1)
    if head_dim > WIDEST_HEAD:
        return f"a head has {head_dim} channels, and the kernels hold {WIDEST_HEAD}"
    if v.size(-1) != head_dim:
        return f"v has {v.size(-1)} channels, and q and k {head_dim}"
    if not q.dtype == k.dtype == v.dtype:
        return f"q, k and v have different dtypes ({q.dtype}, {k.dtype}, {v.dtype})"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.stride(-1) != 1 and x.size(-1) > 1:
            return f"the channels of {name} lie at stride {x.stride(-1)}, not 1"
    if q.size(0) * q.size(1) > 65535:
        return f"{q.size(0)} × {q.size(1)} heads are more than a grid holds"
    return None


def refuses_backward(dout: Tensor | None, *arguments: Any) -> str | None:
    """Why the backward kernels can't take these, or None."""
    bias, needs = arguments[3], arguments[-1]
    if (
        bias is not None
        and needs[3]
        and (bias.size(-2), bias.size(-1)) != (arguments[0].size(-2), arguments[1].size(-2))
    ):
        return "a bias that is broadcast over queries or keys takes a gradient"
    if arguments[0].dtype is torch.float32 and padded(arguments[0].size(-1)) > WIDEST_FP32_BACKWARD:
        return f"in fp32 the gradients of heads of over {WIDEST_FP32_BACKWARD} channels do not fit in registers"
    return refuses(*arguments[:11])


def _strides(x: Tensor, dims: int = 3) -> tuple[int, ...]:
    """Elements to the next batch, head, row (and column); 0 where a dimension is broadcast."""
    return tuple(0 if size == 1 else step for size, step in zip(x.shape[:dims], x.stride()[:dims], strict=True))


class _Call(NamedTuple):
    """What every kernel gets for one call of the op."""

    bias: Tensor | None
    numbers: tuple[Any, ...]
    bias_strides: tuple[int, ...]
    constants: dict[str, Any]


def _call(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None,
    scale: float, softcap: float, window: int, causal: bool, lower_right: bool,
) -> _Call:  # fmt: skip
    heads, q_len, kv_len = q.size(1), q.size(2), k.size(2)
    shift = kv_len - q_len if lower_right else 0
    kind = NO_BIAS if bias is None else BOOLEAN_BIAS if bias.dtype is torch.bool else ADDED_BIAS
    bias_strides = (0, 0, 0, 0) if bias is None else _strides(bias, 4)
    slopes_batch = 0 if slopes is None or slopes.size(0) == 1 else slopes.stride(0)
    constants = {
        "CAUSAL": causal, "WINDOW": window > 0, "BIAS": kind, "SLOPES": slopes is not None, "SOFTCAP": softcap > 0.0,
        "HEAD_DIM": q.size(3), "D": padded(q.size(3)),
    }  # fmt: skip
    return _Call(
        bias.view(torch.uint8) if bias is not None and kind == BOOLEAN_BIAS else bias,
        (heads, heads // k.size(1), q_len, kv_len, shift, window, scale, softcap),
        (*bias_strides, slopes_batch),
        constants,
    )


def _sizes(tile: Tile) -> dict[str, int]:
    warps = tile.waves if torch.version.hip else tile.warps
    return {"BLOCK_M": tile.queries, "BLOCK_N": tile.keys, "num_warps": warps, "num_stages": tile.stages}


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None,
    scale: float, softcap: float, window: int, causal: bool, lower_right: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``out`` like q, and ``lse`` (batch, heads, q_len) in fp32."""
    out, lse = _layout.new(q), _layout.new(q, q.shape[:3], torch.float32)
    if not q.numel():
        return out, lse
    call = _call(q, k, v, bias, slopes, sinks, scale, softcap, window, causal, lower_right)
    tile = tiles(q.size(3), q.element_size()).forward
    with on(q):
        flash_forward[(triton.cdiv(q.size(2), tile.queries), q.size(0) * q.size(1))](
            q, k, v, call.bias, slopes, sinks, out, lse, *call.numbers, *_strides(q), *_strides(k), *_strides(v),
            *call.bias_strides, SINKS=sinks is not None, **call.constants, **_sizes(tile),
        )  # fmt: skip
    return out, lse


def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None,
    scale: float, softcap: float, window: int, causal: bool, lower_right: bool, out: Tensor, lse: Tensor,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of q, k, v, bias and sinks."""
    if not q.numel() or not k.numel():
        learned = [x for x, need in zip((q, k, v, bias, sinks), needs, strict=True) if need and x is not None]
        return [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in learned]
    if dout.stride(-1) != 1:  # the gradient of a sum is one number, expanded
        dout = dout.contiguous()
    call = _call(q, k, v, bias, slopes, sinks, scale, softcap, window, causal, lower_right)
    choice = tiles(q.size(3), q.element_size())
    delta = _layout.new(lse)
    strides = (*_strides(dout), *_strides(q), *_strides(k), *_strides(v), *call.bias_strides)
    dq, dk, dv = _layout.new(q), _layout.new(k), _layout.new(v)
    dbias = _layout.new(bias) if bias is not None and needs[3] else None
    with on(q):
        flash_backward_q[(triton.cdiv(q.size(2), choice.backward_q.queries), q.size(0) * q.size(1))](
            dout, q, k, v, call.bias, slopes, sinks, out, lse, dq, delta, *call.numbers, *strides,
            SINKS=sinks is not None, **call.constants, **_sizes(choice.backward_q),
        )  # fmt: skip
        if needs[1] or needs[2]:
            flash_backward_kv[(triton.cdiv(k.size(2), choice.backward_kv.keys), k.size(0) * k.size(1))](
                dout, q, k, v, call.bias, slopes, lse, delta, dk, dv, *call.numbers, *strides,
                **call.constants, **_sizes(choice.backward_kv),
            )  # fmt: skip
        if dbias is not None:
            tile = choice.backward_bias
            grid = (
                triton.cdiv(q.size(2), tile.queries),
                triton.cdiv(k.size(2), tile.keys),
                dbias.size(0) * dbias.size(1),
            )
            flash_backward_bias[grid](
                dout, q, k, v, call.bias, slopes, lse, delta, dbias, q.size(0) // dbias.size(0), dbias.size(1),
                *call.numbers, *strides, **call.constants, **_sizes(tile),
            )  # fmt: skip
    dsinks = None if sinks is None else sink_gradient(sinks, lse, delta)
    gradients = (dq, dk, dv, dbias, dsinks)
    return [grad for grad, need in zip(gradients, needs, strict=True) if need and grad is not None]


def sink_gradient(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """A sink takes the weight exp(sink - lse) and gives nothing: its gradient is -weight·δ, summed over queries."""
    weight = torch.exp(sinks.float()[:, None] - lse)
    return -(weight * delta).sum((0, 2)).to(sinks.dtype)


VARIANTS: Final[Mapping[str, dict[str, Any]]] = {
    "causal": {"CAUSAL": True},
    "soft-cap, window": {"CAUSAL": True, "WINDOW": True, "SOFTCAP": True},
    "bias": {"BIAS": ADDED_BIAS},
    "ALiBi": {"CAUSAL": True, "SLOPES": True},
}
HEAD_DIMS: Final[Mapping[int, int]] = {1024: 64, 2048: 96, 4096: 128, 8192: 32, 16384: 256}
"""The kernels know no width of a model, only head_dim: each width of the gates stands for one, others for a head that
is padded: of 80 channels, or in fp32 of 40, where backward is fused."""


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward at one head_dim, for what SDPA can't express."""
    head_dim = HEAD_DIMS.get(width, 40 if dtype == "fp32" else 80)
    choice = tiles(head_dim, 4 if dtype == "fp32" else 2)
    for label, variant in VARIANTS.items():
        flags = {"CAUSAL": False, "WINDOW": False, "BIAS": NO_BIAS, "SLOPES": False, "SOFTCAP": False, **variant}
        yield _case(flash_forward, f"forward, {label}", choice.forward, head_dim, dtype, flags)
        if dtype == "fp32" and padded(head_dim) > WIDEST_FP32_BACKWARD:
            continue
        yield _case(flash_backward_q, f"backward q, {label}", choice.backward_q, head_dim, dtype, flags)
        yield _case(flash_backward_kv, f"backward k v, {label}", choice.backward_kv, head_dim, dtype, flags)
        if label == "bias":
            yield _case(flash_backward_bias, f"backward {label}", choice.backward_bias, head_dim, dtype, flags)


_FP32 = {"lse", "delta", "slopes", "scale", "softcap"}
_LENGTHS = {"heads", "groups", "q_len", "kv_len", "shift", "window", "batches", "bias_heads"}
_UNALIGNED = {"slopes_batch", "bias_column"}


def _case(kernel: Any, label: str, tile: Tile, head_dim: int, dtype: str, flags: dict[str, Any]) -> KernelCase:
    constants = {
        **flags, "SINKS": False, "HEAD_DIM": head_dim, "D": padded(head_dim),
        "BLOCK_M": tile.queries, "BLOCK_N": tile.keys,
    }  # fmt: skip
    names = kernel.arg_names
    arguments: dict[str, str | int | float | bool | None] = {}
    for name in names:
        if name in constants:
            arguments[name] = constants[name]
        elif (
            (name in ("bias", "dbias") and not flags["BIAS"])
            or (name == "slopes" and not flags["SLOPES"])
            or name == "sinks"
        ):
            arguments[name] = None
        elif name in ("scale", "softcap"):
            arguments[name] = "fp32"
        elif name in _LENGTHS:
            arguments[name] = "i32"
        elif name.rpartition("_")[2] in ("batch", "head", "row", "column"):
            arguments[name] = 1 if name == "bias_column" else "i64"
        else:
            arguments[name] = "*fp32" if name in _FP32 else f"*{dtype}"
    aligned = frozenset(n for n in names if arguments[n] == "i64" and n not in _UNALIGNED)
    return KernelCase(
        kernel, label, arguments, tile.warps, loads=None, stores=None, stages=tile.stages, waves=tile.waves,
        aligned=aligned,
        tensor_cores=dtype != "fp32",
        narrow=frozenset({"bias", "dbias"}),  # a row of them ends at kv_len, which is a multiple of nothing
    )  # fmt: skip
