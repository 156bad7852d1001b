"""A plan is written whole, read strictly, reviewed by people, and applied to the model that it was made for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
import torch
from patched_models import Block, RMSNorm, Small, applied, patched, rules, x_of
from torch import nn

from auditor.errors import AuditError
from auditor.patching.api import patch as patch_by
from auditor.patching.choose import as_plan
from auditor.patching.live import Patched
from auditor.patching.plan import HEADER, Evidence, Gain, Plan, PlanSite, load_plan
from fused_replacements import cpu_path

pytestmark = pytest.mark.usefixtures("reference_path")


SITE = PlanSite(
    rule="FUS201", module="layers.0.norm", fingerprint="0123456789ab", replacement="rms_norm", provider="triton",
    options={"eps": 1e-6, "cast": "llama"}, evidence=Evidence(gain=Gain(ratio=1.5, low=1.4, high=1.6), before_us=30.0),
)  # fmt: skip
PLAN = Plan(run="abc", model="Small", torch="2.13.0", device="cpu", sites=[SITE])


def plan_of(model: nn.Module) -> Plan:
    with patched(model) as made:
        model(x_of())
        return as_plan([], made.sites, Plan(model=type(model).__name__))


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == PLAN
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_a_plan_can_be_reviewed(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").read_text() == HEADER + (
        "schema: fusion-plan/1\n"
        "run: abc\n"
        "model: Small\n"
        "torch: 2.13.0\n"
        "device: cpu\n"
        "sites:\n"
        "- rule: FUS201\n"
        "  module: layers.0.norm\n"
        "  fingerprint: 0123456789ab\n"
        "  replacement: rms_norm\n"
        "  provider: triton\n"
        "  options:\n"
        "    eps: 1.0e-06\n"
        "    cast: llama\n"
        "  evidence:\n"
        "    gain:\n"
        "      ratio: 1.5\n"
        "      low: 1.4\n"
        "      high: 1.6\n"
        "    before_us: 30.0\n"
    )


@pytest.mark.parametrize(
    "name",
    ["a: b", "# no comment", "'\"", "{x}", "- a", "yes", "1e3", "null", "a\nkept: b", "été.norm", "%d", "&a", "*a",
     "!!b", "../../etc", "\t", "a\u2028b", "x" * 500, ""],
)  # fmt: skip
def test_no_name_of_a_module_breaks_a_plan(name: str, tmp_path: Path) -> None:
    plan = Plan(model=name, sites=[msgspec.structs.replace(SITE, module=name, reason=name, options={name: name})])
    plan.save(tmp_path / "plan.yaml")
    assert load_plan(tmp_path / "plan.yaml") == plan
    with pytest.raises(AuditError, match="the plan names the module") if name else cpu_path("reference"):
        Patched.by_plan(Small(), rules(), plan).undo()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("schema: fusion-plan/1\nsite: []\n", "not a plan: Object contains unknown field `site`"),
        ("schema: fusion-plan/9\n", "is of schema 'fusion-plan/9', this version reads fusion-plan/1; make it again"),
        ("sites:\n- rule: FUS201\n", "not a plan: Object missing required field `module`"),
        ("sites:\n- {rule: a, module: b, fingerprint: c, state: keep}\n", "not a plan: Invalid enum value 'keep'"),
        ("sites:\n- {rule: a, module: b, fingerprint: c, tier: two}\n", "not a plan: Expected `int`, got `str`"),
        ("- a\n", "not a plan: Expected `object`, got `array`"),
        ("", "not a plan: Expected `object`, got `null`"),
        ("a: [\n", "not a plan: "),
        ("a: !!python/object/apply:os.system ['true']\n", "not a plan: "),
        ("&a [*a]\n", "not a plan: "),
        ("sites: &a [*a]\n", "not a plan: "),
        ("\0\1", "not a plan: "),
        ("schema: fusion-plan/1\nsites: [{rule: FUS201, module: norm, fingerprint: x, tier: 9}]\n", "not a plan: "),
        ("model: !!timestamp x\n", "not a plan: a value can't be read"),
        ("[" * 20000, "not a plan: "),
    ],
)
def test_what_is_no_plan_is_refused_in_one_sentence(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(AuditError) as refusal:
        load_plan(path)
    assert re.match(rf"{re.escape(str(path))}(:\d+)?: {re.escape(reason)}", str(refusal.value))
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_or_not_to_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(AuditError, match="cannot read the plan"):
            load_plan(path)
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe9\n")
    with pytest.raises(AuditError, match="not a plan"):
        load_plan(tmp_path / "latin.yaml")


def test_a_plan_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.yaml"
    PLAN.save(path)
    before = path.read_bytes()

    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Plan(model="Other").save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.yaml"]


# --- on a model ----------------------------------------------------------------------------------------


def test_a_plan_applies_what_it_keeps_and_nothing_else(tmp_path: Path) -> None:
    model, x = Small(), x_of()
    plan = plan_of(model)
    assert [(site.module, site.replacement) for site in plan.kept] == [
        ("norm", "rms_norm"),
        ("mlp.gate", "packed_linear"),
        ("mlp", "act_mul"),
    ]
    plan.save(tmp_path / "plan.yaml")
    with patch_by(model, tmp_path / "plan.yaml") as applying:
        torch.testing.assert_close(model(x), model.mlp(model.norm(x)))
        assert applied(applying) == [("norm", "rms_norm"), ("mlp.gate", "packed_linear"), ("mlp", "act_mul")]
        assert applying.problems == []
    text = (tmp_path / "plan.yaml").read_text()
    (tmp_path / "plan.yaml").write_text(text.replace("module: norm\n", "module: norm\n  state: refused\n"))
    with patch_by(model, str(tmp_path / "plan.yaml")) as applying:
        model(x)
        assert applied(applying) == [("mlp.gate", "packed_linear"), ("mlp", "act_mul")]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo's own, which it hides by itself
def test_a_plan_of_modules_needs_no_tracing_of_the_model() -> None:
    model, x = nn.Sequential(RMSNorm(), nn.Linear(16, 16), RMSNorm()), x_of()
    plan = plan_of(model)
    for site in plan.sites:
        site.tier = 1
    expected = model(x)
    with patch_by(model, plan) as applying:
        torch.testing.assert_close(model(x), expected)
        model(x)
        assert applying.compiles == 0
        assert [(site.key.module, site.calls) for site in applying.sites] == [("0", 2), ("2", 2)]
    assert torch.equal(model(x), expected)


def test_a_plan_of_another_model_is_refused() -> None:
    plan = plan_of(Small())
    with pytest.raises(AuditError, match=r"the plan is for a Small, this model is a Block\."):
        patch_by(Block(), plan)
    with pytest.raises(AuditError, match=r"dict \{\} is neither a plan, nor the file of one, nor an audit"):
        patch_by(Small(), {})
    other = Small()
    del other.mlp
    with pytest.raises(AuditError, match="the plan names the module 'mlp', which this Small lacks"):
        patch_by(other, plan)


def test_what_a_plan_keeps_and_the_model_has_not_is_told() -> None:
    plan, model = plan_of(Small()), Small()
    plan.kept[0].fingerprint = "0" * 12
    plan.kept[1].provider = "a package that is gone"
    with patch_by(model, plan) as applying:
        assert applying.problems == []
        model(x_of())
        assert applying.problems == [
            "FUS201 at norm, which the plan keeps, is not applied: it was not found in the model.",
            "FUS501 at mlp.gate, which the plan keeps, is not applied: packed_linear by a package that is gone is not "
            "to be had here.",
        ]


def test_layers_alike_are_told_apart() -> None:
    model, x = nn.Sequential(Small(), Small()), x_of()
    plan = plan_of(model)
    chosen = plan.only(site.key for site in plan.kept if site.module.startswith("1."))
    with patch_by(model, chosen) as applying:
        model(x)
        assert applied(applying) == [("1.norm", "rms_norm"), ("1.mlp.gate", "packed_linear"), ("1.mlp", "act_mul")]
