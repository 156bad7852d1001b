"""Every Triton kernel in Triton's interpreter, forward and backward, with NaN around every buffer.

The interpreter has no bf16 arithmetic: fp32 and fp16 are what it can say something about.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from calls import called, described, doubled, mapped, sample_of, strided, variants, worse_than_eager
from guarded import GUARD, Guards, guarded

from fused_replacements import Unfused, cpu_path, find

WITH_KERNELS = [
    (name, label) for name, label in variants() if any(op.forward.kernels is not None for op in find(name).ops)
]
SIZES = [(0, 16), (1, 1), (1, 33), (3, 1), (5, 64), (6, 257)]


def in_the_interpreter(
    name: str, label: str, dtype: torch.dtype, rows: int, width: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What is wrong with the Triton kernels' results for one call."""
    replacement = find(name)
    sample = sample_of(name, label, rows, width, dtype)
    if how != "contiguous":
        sample = mapped(sample, lambda tensor: strided(tensor, how))
    with guarded(monkeypatch) as guards, cpu_path("triton"), warnings.catch_warnings():
        warnings.simplefilter("error", Unfused)
        fused = called(replacement, replacement.function, mapped(sample, guards.place))
    eager = called(replacement, replacement.reference, sample)
    exact = called(replacement, replacement.reference, doubled(sample))
    return guards.broken() + worse_than_eager(fused, eager, exact, floor=1.0 if width == 1 else 0.0)


@pytest.mark.parametrize(("name", "label"), WITH_KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_kernels_are_right_and_stay_inside(
    name: str, label: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN no rows, one row, one column, powers of two and odd widths
    for rows, width in SIZES:
        # THEN results are as good as eager's, and nothing outside a tensor was read or written
        wrong = in_the_interpreter(name, label, dtype, rows, width, "contiguous", monkeypatch)
        assert not wrong, f"rows {rows}, width {width}: {described(wrong)}"


@pytest.mark.parametrize(("name", "label"), WITH_KERNELS)
def test_rows_of_a_wider_tensor_are_read_in_place(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN tensors that are slices of wider ones, each at a row stride of its own
    # THEN the kernel honours them, or refuses with its reason; it never copies
    try:
        wrong = in_the_interpreter(name, label, torch.float32, 5, 48, "sliced", monkeypatch)
    except Unfused as refusal:
        wrong = [] if "stride" in str(refusal) else [f"it refuses for another reason: {refusal}"]
    assert not described(wrong)


def test_a_write_outside_shows() -> None:
    guards = Guards()
    view = guards.place(torch.zeros(2, 3))
    assert guards.broken() == []
    torch.as_strided(view, (1,), (1,), GUARD + 6).fill_(0)  # one past the end
    assert guards.broken() == ["buffer 0: 1 elements outside of it were written"]


def test_a_read_outside_shows() -> None:
    view = Guards().place(torch.zeros(2, 3))
    assert torch.as_strided(view, (7,), (1,), GUARD).isnan().any()
