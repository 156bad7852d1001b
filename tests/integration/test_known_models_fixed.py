"""Real models with every right replacement in them: what is unfused goes, results stay, and the undo is exact.

The models are built by ``../shared/traces/tiny_models.py``; where that is not, these tests are skipped.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_known_models import pytestmark as needs_shared
from test_known_models import tiny_models

import auditor

pytestmark = [needs_shared, pytest.mark.slow]

Batch = dict[str, Any]


def stepped(model: torch.nn.Module, batch: Batch, train: bool) -> list[torch.Tensor]:
    """The output, or the loss and every gradient, of one step with the same random numbers."""
    torch.manual_seed(0)
    model.zero_grad()
    with torch.set_grad_enabled(train):
        output = model(**batch)
    if not train:
        return [next(value for value in output.values() if isinstance(value, torch.Tensor))]
    output.loss.backward()
    return [output.loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def audited(model: torch.nn.Module, batch: Batch, train: bool) -> auditor.Audit:
    with auditor.record(steps=1, warmup=1) as rec:
        for _ in range(4):
            stepped(model, batch, train)
    return rec.audit()


@pytest.mark.parametrize(
    ("arch", "train", "left"),
    [
        pytest.param("llama", False, 0.1, marks=pytest.mark.thorough),  # integers of the mask
        pytest.param("mixtral", False, 0.15, marks=pytest.mark.thorough),  # and the router's
        ("bert", True, 0.35),  # and backward chains
    ],
)
def test_what_is_unfused_goes_and_results_stay(arch: str, train: bool, left: float) -> None:
    model, kind = tiny_models().build(arch, torch.float32, "sdpa", train)
    batch = tiny_models().inputs(kind, torch.float32, train)
    before, expected = audited(model, batch, train), stepped(model, batch, train)
    with auditor.patch(model, before) as patch:
        stepped(model, batch, train)  # compiles
        found = stepped(model, batch, train)
        after = audited(model, batch, train)
        chosen = [site for site in patch.sites if site.chosen]
        assert chosen
        assert all(site.calls and not site.failure for site in chosen)
    assert after.document.totals.unfused_kernels <= left * before.document.totals.unfused_kernels
    for now, then in zip(found, expected, strict=True):
        torch.testing.assert_close(now, then, rtol=1e-3, atol=1e-5)
    assert all(map(torch.equal, stepped(model, batch, train), expected))
