"""A model under repair: what is written down of it, and that nothing is made up where nothing was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from patched_models import WIDTH, RMSNorm
from torch import Tensor, nn

from auditor.engine.rules import load_rules
from auditor.fix.inputs import CapturedCall, CapturedStep
from auditor.fix.options import Options
from auditor.fix.pipeline import fixed
from auditor.fix.repair import Repair
from auditor.fix_document import FixDocument, FixMemory, RatioInfo
from auditor.patching.live import ATTRIBUTE
from auditor.patching.rewrite import Rewriter
from auditor.patching.step import Step
from auditor.report.fix_facts import timing_rows, verdict

pytestmark = pytest.mark.usefixtures("reference_path")


class Plain(nn.Module):
    """Nothing to fuse."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ x.t()


def step() -> Step:
    return Step(
        args=(torch.ones(4, WIDTH),), kwargs={}, grad_enabled=False, inference_mode=False, autocast=None, training=False
    )


def repaired(model: nn.Module, said: list[str] | None = None, **asked: Any) -> FixDocument:
    document, say = FixDocument(), [].append if said is None else said.append
    Repair(CapturedCall("M", model, step()), load_rules(), Options(cap_s=0.2, **asked), document, say).run()
    assert ATTRIBUTE not in model.__dict__
    return document


def test_a_look_makes_up_no_figures() -> None:
    (site,) = repaired(RMSNorm(), dry=True, compile=False).sites
    assert (site.rule, site.state, site.replacement) == ("FUS201", "kept", "rms_norm")
    assert site.gain == RatioInfo()
    assert (site.calls, site.error, site.eager_error, site.before_us, site.after_us) == (0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of the compiler's own
@pytest.mark.parametrize(("model", "limit"), [(RMSNorm, 0), (Plain, None)], ids=["limit", "no site"])
def test_where_nothing_is_applied_no_patched_step_is_timed(model: type[nn.Module], limit: int | None) -> None:
    # WHEN nothing can be kept
    fix = repaired(model(), limit=limit, compile=True)

    # THEN eager and the compiler are timed for what is recommended, and nothing is said of a patched step
    assert [row[0] for row in timing_rows(fix)] == ["eager", "torch.compile"]
    assert fix.timing.patched_vs_eager == RatioInfo()
    assert (fix.measured_us, fix.timing.patched_first_us) == (0.0, 0.0)
    assert fix.memory == FixMemory(eager_bytes=fix.memory.eager_bytes, compile_bytes=fix.memory.compile_bytes)
    assert verdict(fix).startswith("Nothing was kept")


def test_what_is_kept_has_all_figures_and_each_stage_is_told() -> None:
    said: list[str] = []
    fix = repaired(RMSNorm(), said, keep_all=True, compile=False)
    assert list(dict.fromkeys(said)) == ["trying sites: 1 of 1", "verifying the patched model", "measuring the step"]
    (site,) = fix.sites
    assert (site.state, site.calls) == ("kept", 1)
    assert min(site.before_us, site.after_us, site.gain.ratio, fix.timing.patched_us, fix.timing.patched_first_us) > 0


def test_of_several_models_the_largest_is_patched_and_the_others_are_named() -> None:
    calls = [CapturedCall("Plain", Plain(), step()), CapturedCall("RMSNorm", RMSNorm(), step())]
    document, _ = fixed(CapturedStep("inference", calls), Options(dry=True))
    assert document.model == "RMSNorm"
    assert document.notes[0] == (
        "Only RMSNorm, the largest, was patched; the step calls Plain too. To fix another, run and fix a script that "
        "calls it alone."
    )


class Siblings(nn.Module):
    """Three products of one input, whose weights a graph shows as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.q(x) * self.k(x) + self.v(x)


def test_weights_of_a_model_that_trains_are_packed() -> None:
    model, document = Siblings(), FixDocument()
    training = replace(step(), grad_enabled=True, training=True, cotangents=(torch.ones(4, WIDTH),))
    options = Options(cap_s=0.2, keep_all=True, compile=False, select=["FUS501"])
    Repair(CapturedCall("M", model, training), load_rules(), options, document).run()
    assert [(site.rule, site.state) for site in document.sites if site.rule == "FUS501"] == [("FUS501", "kept")]


def test_a_mistake_of_ours_is_not_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Rewriter, "_rewrite", fails)
    fix = repaired(RMSNorm(), compile=False)
    assert fix.failure == "A graph could not be looked at: KeyError: 'ours'."
    assert verdict(fix).endswith(fix.failure)
