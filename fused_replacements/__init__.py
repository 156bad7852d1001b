"""Fused kernels for the operations that PyTorch models run as many small ones.

>>> from fused_replacements import rms_norm
>>> y = rms_norm(x, weight, eps=1e-6)

Each is a differentiable op that runs a Triton kernel on a GPU and a compiled kernel on a CPU, works eagerly and under
``torch.compile``, and never writes to its inputs. ``find(name)`` gives a replacement with its definition in plain
PyTorch and ``supports``, which says what it can't fuse, and why.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from fused_replacements._paths import HAVE_TRITON, Unfused, cpu_path, unfused_reasons
from fused_replacements._registry import HOME, Provider, Replacement, Sample, find, providers, replacements

if TYPE_CHECKING:
    from fused_replacements.algorithmic.attention import attention, sdpa_backend
    from fused_replacements.algorithmic.flash_attention import flash_attention
    from fused_replacements.elementwise.act_mul import act_mul, gelu_mul, silu_mul
    from fused_replacements.elementwise.bias_act import bias_act
    from fused_replacements.elementwise.dropout_add import dropout_add
    from fused_replacements.elementwise.elementwise_chain import Chain, elementwise_chain
    from fused_replacements.elementwise.quick_gelu import quick_gelu
    from fused_replacements.elementwise.relu_squared import relu_squared
    from fused_replacements.elementwise.rope import rope
    from fused_replacements.epilogue.linear_epilogue import linear_epilogue
    from fused_replacements.horizontal.packed_linear import packed_linear
    from fused_replacements.horizontal.packed_linears import PackedLinears
    from fused_replacements.optimizer.fused_optimizer import FusedOptimizer, fused_optimizer
    from fused_replacements.prologue.int4_linear import int4_linear
    from fused_replacements.prologue.int8_linear import int8_linear
    from fused_replacements.prologue.packing import dequantize_int4, dequantize_int8, quantize_int4, quantize_int8
    from fused_replacements.reduction.add_layer_norm import add_layer_norm
    from fused_replacements.reduction.add_rms_norm import add_rms_norm
    from fused_replacements.reduction.cross_entropy import cross_entropy
    from fused_replacements.reduction.layer_norm import layer_norm
    from fused_replacements.reduction.linear_cross_entropy import linear_cross_entropy
    from fused_replacements.reduction.qk_norm_rope import qk_norm_rope
    from fused_replacements.reduction.rms_norm import rms_norm
    from fused_replacements.reduction.softmax import softmax

_BESIDE: Final = {
    "silu_mul": "elementwise.act_mul",
    "gelu_mul": "elementwise.act_mul",
    "Chain": "elementwise.elementwise_chain",
    "FusedOptimizer": "optimizer.fused_optimizer",
    "PackedLinears": "horizontal.packed_linears",
    "dequantize_int4": "prologue.packing",
    "dequantize_int8": "prologue.packing",
    "quantize_int4": "prologue.packing",
    "quantize_int8": "prologue.packing",
    "sdpa_backend": "algorithmic.attention",
}
"""What stands beside the replacements: short forms, and what prepares their arguments."""

__all__ = [
    "HAVE_TRITON",
    "Chain",
    "FusedOptimizer",
    "PackedLinears",
    "Provider",
    "Replacement",
    "Sample",
    "Unfused",
    "act_mul",
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "bias_act",
    "cpu_path",
    "cross_entropy",
    "dequantize_int4",
    "dequantize_int8",
    "dropout_add",
    "elementwise_chain",
    "find",
    "flash_attention",
    "fused_optimizer",
    "gelu_mul",
    "int4_linear",
    "int8_linear",
    "layer_norm",
    "linear_cross_entropy",
    "linear_epilogue",
    "packed_linear",
    "providers",
    "qk_norm_rope",
    "quantize_int4",
    "quantize_int8",
    "quick_gelu",
    "relu_squared",
    "replacements",
    "rms_norm",
    "rope",
    "sdpa_backend",
    "silu_mul",
    "softmax",
    "unfused_reasons",
]


def __getattr__(name: str) -> Any:
    """A replacement is imported when it is asked for: ``import fused_replacements`` costs no compiler and no Triton."""
    if name in HOME:
        return find(name).function
    if name in _BESIDE:
        return getattr(importlib.import_module(f"fused_replacements.{_BESIDE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
