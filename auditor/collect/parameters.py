"""Inputs that hold weights: no op of the step made them, whatever they look like."""

from __future__ import annotations

from auditor.collect.dispatched import bare

_BATCH_NORM = frozenset({1, 2, 3, 4})
_WEIGHTS = {
    "addmm": frozenset({0}), "embedding": frozenset({0}), "native_layer_norm": frozenset({2, 3}),
    "native_group_norm": frozenset({1, 2}), "_fused_rms_norm": frozenset({2}), "prelu": frozenset({1}),
    "convolution": frozenset({1, 2}), "cudnn_convolution": frozenset({1}), "miopen_convolution": frozenset({1, 2}),
    "native_batch_norm": _BATCH_NORM, "cudnn_batch_norm": _BATCH_NORM, "miopen_batch_norm": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM, "_batch_norm_with_update": _BATCH_NORM, "batch_norm": _BATCH_NORM,
}  # fmt: skip
"""Positions of weights and running statistics, by op."""


def is_parameter(name: str, position: int, *, in_linear: bool) -> bool:
    """Whether input ``position`` of op ``name`` is a weight; ``in_linear``: called by ``aten::linear``."""
    if bare(name) in ("t", "transpose"):
        return in_linear
    return position in _WEIGHTS.get(bare(name), ())
