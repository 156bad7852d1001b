"""``fusion-audit fix`` from end to end: a real model audited, patched, audited again, and run with its plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditor.fix.meant import fixable
from auditor.store import Store

Cli = Callable[..., Any]  # gives (code, out, err)

SCRIPT = """
import torch
import torch.nn.functional as F

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(64))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.linear = Norm(), Norm(), torch.nn.Linear(64, 64)

    def forward(self, x):
        x = self.first(x)
        return self.second(F.silu(self.linear(x)) * x)

model = Model().eval()
with torch.no_grad():
    for step in range(16):
        model(torch.rand(256, 64))
"""


@pytest.fixture
def audited(fusion_audit: Cli, folder: Path) -> str:
    """Id of the audit of the script, in the current folder."""
    (folder / "model.py").write_text(SCRIPT)
    done = fusion_audit("run", "--steps", "2", "--stop", "--format", "json", "model.py")
    assert done.code == 0, done.err
    run: str = json.loads(done.out)["run"]["id"]
    return run


@pytest.mark.slow
def test_a_model_is_fixed_audited_again_and_run_with_its_plan(
    fusion_audit: Cli, audited: str, store: Store, folder: Path
) -> None:
    # WHEN every site that is right is kept
    done = fusion_audit("fix", "--keep-all", "--no-compile", "--plan", "plan.yaml", "--format", "json")

    # THEN all three were applied and called, and the second audit finds them fused
    assert done.code == 0, done.err
    fix = json.loads(done.out)
    kept = [site for site in fix["sites"] if site["state"] == "kept"]
    assert [site["rule"] for site in kept] == ["FUS201", "FUS206", "FUS201"]
    assert all(site["calls"] for site in kept)
    assert "Patched by a plan: of its 3 sites 3 were applied and 3 were called." in fix["notes"]
    assert (fix["before"]["unfused_kernels"], fix["after"]["unfused_kernels"]) == (14, 0)
    assert fix["after"]["kernels"] == 4

    # AND the second audit knows where it comes from
    after = store.load(fix["after_run"]).document
    assert (after.run.patched_from, after.run.plan) == (audited, str(folder / "plan.yaml"))
    assert after.totals.already_fused_kernels == 3
    assert audited in fusion_audit("show").out

    # AND the plan alone does the same
    again = fusion_audit("run", "--patch", "plan.yaml", "--steps", "2", "--stop", "--format", "json", "model.py")
    assert json.loads(again.out)["totals"]["already_fused_kernels"] == 3

    # AND that run has a name of its own, leads to the fix, and is not what is fixed next
    run = json.loads(again.out)["run"]
    assert (run["name"], run["patched_from"]) == ("model-patched", audited)
    assert (run["plan_sites"], run["plan_applied"]) == (3, 3)
    assert not [note for note in run["notes"] if "compiled by torch.compile" in note]
    assert json.loads(fusion_audit("show", "--fix", "--format", "json").out)["after_run"] == fix["after_run"]
    assert fixable(store, "latest").id == fixable(store, "model").id == audited


@pytest.mark.slow
def test_rules_that_a_fix_leaves_out_are_still_looked_for_in_the_audit_after(
    fusion_audit: Cli, audited: str, store: Store
) -> None:
    done = fusion_audit("fix", "--select", "FUS206", "--keep-all", "--no-compile", "--format", "json")

    fix = json.loads(done.out)
    assert [site["rule"] for site in fix["sites"] if site["state"] == "kept"] == ["FUS206"]
    before, after = store.load(audited).document, store.load(fix["after_run"]).document
    gone = sum(finding.kernels for finding in before.findings if finding.rule == "FUS206")
    assert after.totals.unfused_kernels == before.totals.unfused_kernels - gone
    assert {finding.rule for finding in after.findings} == {"FUS201"}


@pytest.mark.slow
def test_a_diff_changes_nothing_until_it_is_written(
    fusion_audit: Cli, audited: str, store: Store, folder: Path
) -> None:
    # WHEN a diff is asked for THEN it rewrites what is plain, and neither file nor store changes
    shown = fusion_audit("fix", "--diff", audited)
    assert shown.code == 0, shown.err
    assert "+        return rms_norm" not in shown.out.split("@@")[0]
    assert "+        return rms_norm(x, self.weight, 1e-06)" in shown.out
    assert "+        return self.second(silu_mul(self.linear(x), x))" in shown.out
    assert (folder / "model.py").read_text() == SCRIPT
    assert [run.id for run in store.list_runs()] == [audited]

    # WHEN it is written THEN the script runs, with fused ops in it
    written = fusion_audit("fix", "--diff", "--write", audited)
    assert written.out.splitlines()[-1] == "3 sites would be tried, and nothing was measured; changed: model.py."
    again = fusion_audit("run", "--steps", "2", "--stop", "--format", "json", "model.py")
    assert json.loads(again.out)["totals"]["already_fused_kernels"] == 3
