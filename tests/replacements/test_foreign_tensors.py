"""What is no strided tensor of floating numbers on one device: one sentence, and never a result."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from calls import labels, mapped, sample_of, tensors
from torch import Tensor

import fused_replacements as fused
from fused_replacements import Sample, cpu_path, find, quick_gelu, rms_norm

FLOATING = [
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "add_layer_norm",
    "cross_entropy",
    "linear_cross_entropy",
    "qk_norm_rope",
    "act_mul",
    "relu_squared",
    "quick_gelu",
    "bias_act",
    "dropout_add",
    "rope",
    "linear_epilogue",
    "int8_linear",
    "int4_linear",
]
"""What takes floating tensors only, but for those that a sample has of another dtype."""


def spoiled(sample: Sample, place: int, dtype: torch.dtype) -> Sample:
    """``sample`` with its tensor at ``place`` in ``dtype``."""
    count = iter(range(1000))
    return mapped(sample, lambda t: (t * 9).to(dtype) if next(count) == place else t)


@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("path", ["compiled", "reference"])
def test_numbers_that_are_not_floating_raise(name: str, dtype: torch.dtype, path: Any) -> None:
    replacement, sample = find(name), sample_of(name, labels(name)[0], 3, 16, torch.float32)
    for place, tensor in enumerate(tensors(sample)):
        if tensor.is_floating_point():
            wrong = spoiled(sample, place, dtype)
            with cpu_path(path), pytest.raises(TypeError) as raised:
                replacement.function(*wrong.args, **wrong.kwargs)
            # THEN it is said as supports says it
            assert str(raised.value) == replacement.supports(*wrong.args, **wrong.kwargs)


def test_softmax_of_integers_and_in_integers() -> None:
    with pytest.raises(TypeError, match="x is int64"):
        fused.softmax(torch.arange(8))
    with pytest.raises(ValueError, match=re.escape("a softmax in torch.int32 is all zeros")):
        fused.softmax(torch.randn(3, 8), dtype=torch.int32)
    # A mask may choose, and then needs no floating numbers
    keep = torch.tensor([True, False, True])
    assert fused.softmax(torch.randn(2, 3), keep)[:, 1].eq(0).all()


def test_a_learning_call_is_told_too() -> None:
    with pytest.raises(TypeError, match="x is int64"):
        rms_norm(torch.arange(8), torch.randn(8, requires_grad=True))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("layout", "make"),
    [
        ("sparse_coo", Tensor.to_sparse),
        ("sparse_csr", Tensor.to_sparse_csr),
        ("mkldnn", Tensor.to_mkldnn),
        ("nested", lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)),
        ("nested", lambda x: torch.nested.nested_tensor([x, x[:2]])),
    ],
)
def test_a_tensor_that_is_not_strided(layout: str, make: Callable[[Tensor], Tensor]) -> None:
    x = make(torch.randn(4, 8))
    sentence = f"x is {layout}, and only strided tensors are taken"
    assert find("rms_norm").supports(x) == sentence
    for weight in (None, torch.randn(8, requires_grad=True)):
        with pytest.raises(TypeError, match=f"^{sentence}$"):
            rms_norm(x, weight)


@pytest.mark.parametrize("weight_on", ["cpu", "meta"])
def test_tensors_on_two_devices(weight_on: str) -> None:
    x, weight = torch.randn(4, 8, device="cpu" if weight_on == "meta" else "meta"), torch.randn(8, device=weight_on)
    sentence = f"weight is on {weight_on}, and another tensor on {x.device}"
    assert find("rms_norm").supports(x, weight) == sentence
    for mine in (weight, weight.requires_grad_()):
        with pytest.raises(TypeError, match=f"^{sentence}$"):
            rms_norm(x, mine)


@pytest.mark.parametrize(("wrong", "kind"), [(None, "None"), (np.ones(8), "of type ndarray"), ([1.0], "of type list")])
def test_no_tensor_at_all(wrong: Any, kind: str) -> None:
    for function in (rms_norm, quick_gelu):
        with pytest.raises(TypeError, match=f"^x is {kind}, not a tensor$"):
            function(wrong)
