"""``auditor.patch`` and ``auditor.measure``, as a user calls them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import auditor
from auditor.patching.plan import Plan
from fused_replacements import cpu_path


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate = Norm(32), nn.Linear(32, 64), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return nn.functional.silu(self.gate(h)) * self.up(h)


@pytest.fixture(scope="module")
def audit() -> auditor.Audit:
    model, x = Block(), torch.randn(4, 32)
    with torch.no_grad(), auditor.record(steps=1) as rec:
        for _ in range(5):
            model(x)
    return rec.audit()


def test_an_audit_patches_the_live_model_until_the_block_ends(audit: auditor.Audit) -> None:
    model, x = Block(), torch.randn(4, 32)
    with torch.no_grad(), cpu_path("reference"):
        before = model(x)
        with auditor.patch(model, audit) as patched:
            during = model(x)
            assert {site.key.rule for site in patched.sites if site.calls} == {"FUS201", "FUS206", "FUS501"}
        assert torch.allclose(before, during, atol=1e-5)
        assert torch.equal(before, model(x))


def test_a_model_is_measured_with_a_plan_eager_and_compiled(audit: auditor.Audit) -> None:
    model, x = Block(), torch.randn(4, 32)
    with torch.no_grad(), cpu_path("reference"):
        measured = auditor.measure(model, x, audit, compile=False, cap_s=0.1)
    assert measured.calls == 3
    assert set(measured.threeway.timings.median_us) == {"eager", "patched"}
    assert "patched" in str(measured)
    assert "µs" in str(measured)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (3, "int 3 is neither a plan, nor the file of one, nor an audit."),
        (Plan(model="Llama"), "the plan is for a Llama, this model is a Block."),
    ],
)
def test_what_is_no_plan_for_the_model_is_told(plan: object, sentence: str) -> None:
    with pytest.raises(auditor.AuditError, match=sentence):
        auditor.patch(Block(), plan)


def test_a_plan_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(auditor.AuditError, match="cannot read the plan"):
        auditor.patch(Block(), tmp_path / "no.yaml")


def test_a_plan_that_reaches_nothing_is_an_error() -> None:
    with pytest.raises(auditor.AuditError, match="no replacement of the plan ran"):
        auditor.measure(Block(), torch.randn(4, 32), Plan(model="Block"), compile=False)
