"""The calls of flash attention that models make."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fused_replacements._registry import Sample
from fused_replacements.algorithmic._samples import Make


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """``rows`` queries of ``width`` channels in a batch of 1; a head has at most 64 channels."""
    make = Make(rows, width, dtype, device)
    window = max(2, rows // 4)  # a window of one key has no gradient to speak of
    yield Sample("soft-cap, causal (Gemma 2, full)", make.qkv(groups=2), {"softcap": 50.0, "causal": "upper_left"})
    yield Sample(
        "soft-cap, window (Gemma 2, local)",
        make.qkv(groups=2),
        {"softcap": 50.0, "causal": "upper_left", "window": window},
    )
    yield Sample("window over a cache (Mistral)", make.qkv(past=7), {"causal": "lower_right", "window": window})
    yield Sample("window on both sides (ModernBERT)", make.qkv(transposed=True), {"window": window})
    yield Sample("ALiBi (BLOOM)", make.qkv(), {"causal": "upper_left", "alibi_slopes": make.slopes()})
    yield Sample("relative bias, scale 1.0 (T5)", (*make.qkv(scale=0.1), make.bias()), {"scale": 1.0})
    yield Sample("padding mask, soft-cap", (*make.qkv(), ~make.padding()), {"softcap": 30.0})
    yield Sample(
        "attention sinks (gpt-oss)",
        make.qkv(groups=2),
        {"causal": "upper_left", "window": window, "sinks": make.randn(make.heads)},
    )
