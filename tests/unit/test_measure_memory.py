"""Peak memory of a call against what it is known to allocate."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch

from auditor.measuring import peak_bytes

X = torch.randn(1000, 64)
SIZE = X.nbytes
ROOM = 2048
"""For a scalar or two."""


@pytest.mark.parametrize(
    ("call", "times"),
    [
        (lambda: X, 0),
        (lambda: X.t().view(64, 10, 100), 0),
        (lambda: X + 1, 1),
        (lambda: ((X + 1) * 2) - 3, 2),  # one is read, one is written
        (lambda: [X + 1, X + 2, X + 3], 3),
        (lambda: (X + 1).add_(2).mul_(3), 1),
        (lambda: torch.cat([X, X, X]).sum(), 3),
        (lambda: X.double(), 2),
        (lambda: X.to(torch.bfloat16), 0.5),
    ],
)
def test_peak_is_that_of_the_allocations(call: Any, times: float) -> None:
    assert times * SIZE <= peak_bytes(call) < times * SIZE + ROOM


def test_what_is_kept_for_backward_counts_and_is_given_back() -> None:
    x = X.clone().requires_grad_()
    forward = peak_bytes(lambda: x.exp().sin().cos())  # the inputs of sin and cos, and exp's output, are kept
    with torch.no_grad():
        alone = peak_bytes(lambda: x.exp().sin().cos())
    assert 3 * SIZE <= forward < 3 * SIZE + ROOM
    assert 2 * SIZE <= alone < 2 * SIZE + ROOM
    assert peak_bytes(lambda: torch.autograd.grad(x.exp().sum(), x)) >= 2 * SIZE


def test_memory_that_was_there_before_and_is_released_is_no_gain_elsewhere() -> None:
    kept = [X + 1, X + 2]

    def swaps() -> None:
        kept[:] = []
        kept.extend([X + 1, X + 2])

    assert peak_bytes(swaps) < ROOM
    assert peak_bytes(kept.clear) == 0


def test_allocations_of_a_custom_op_are_seen() -> None:
    @torch.library.custom_op("measured::hungry", mutates_args=())
    def hungry(x: torch.Tensor) -> torch.Tensor:
        scratch = torch.empty(5 * x.numel())
        return x + scratch.zero_()[: x.numel()].view_as(x)

    assert 6 * SIZE <= peak_bytes(lambda: hungry(X)) < 6 * SIZE + ROOM


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own insides
def test_allocations_of_compiled_code_are_seen() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return ((x.exp() + 1).log() @ x.t()).softmax(-1)

    torch._dynamo.reset()
    compiled = torch.compile(fn, dynamic=False)
    product = 4 * len(X) ** 2
    with torch.no_grad():
        found = peak_bytes(lambda: compiled(X))
        eager = peak_bytes(lambda: fn(X))
    assert 2 * product <= eager < 2 * product + ROOM  # the product and its softmax
    assert 2 * product <= found < 2 * product + SIZE  # and the sum and the maximum of each row


def test_the_same_in_every_run() -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    x = torch.randn(2, 16, 64)
    first = peak_bytes(lambda: layer(x))
    assert first > x.nbytes
    assert peak_bytes(lambda: layer(x)) == first


def test_an_exception_is_the_calls_own() -> None:
    def breaks() -> None:
        raise RuntimeError("no such shape")

    with pytest.raises(RuntimeError, match="no such shape"):
        peak_bytes(breaks)
    assert gc.isenabled()


def test_a_gpus_peak_is_its_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        """Holds 100 bytes, has held 999, and its one call takes 50 more."""

        now, peak = 100, 999

        def synchronize(self) -> None: ...

        def memory_allocated(self, _: torch.device) -> int:
            return self.now

        def reset_peak_memory_stats(self, _: torch.device) -> None:
            self.peak = self.now

        def max_memory_allocated(self, _: torch.device) -> int:
            return self.peak

        def call(self) -> None:
            self.peak = max(self.peak, self.now + 50)

    runtime = Runtime()
    monkeypatch.setattr(torch, "xpu", runtime)
    assert peak_bytes(runtime.call, "xpu") == 50


def test_a_device_that_keeps_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match="meta: its runtime keeps no record"):
        peak_bytes(lambda: None, "meta")


def test_measuring_is_imported_without_torch() -> None:
    import subprocess

    code = "import sys, auditor.measuring; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
