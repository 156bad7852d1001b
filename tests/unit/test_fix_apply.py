"""A plan applied beside a recorder: the outermost model is patched, and what was not applied or called is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from auditor.collect import notes as sentences
from auditor.collect.recording import Recording
from auditor.engine.rules import Rule, load_rules
from auditor.fix.apply import PlanApplied
from auditor.patching.choose import ByMeasuring, Choice, as_plan
from auditor.patching.live import ATTRIBUTE, Patched
from auditor.patching.plan import Plan
from fused_replacements import cpu_path


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.linear = Norm(), Norm(), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.linear(self.first(x)))


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    """Replacements run their definitions: what is fast is not asked here."""
    with cpu_path("reference"):
        yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def rules() -> list[Rule]:
    return load_rules()


@pytest.fixture
def plan(rules: list[Rule]) -> Plan:
    """Both norms of the model, kept."""
    model, chooser = Model(), ByMeasuring(Choice(keep_all=True), timed=False)
    with Patched(model, rules, chooser) as patched:
        run(model)
        made = as_plan(chooser.outcomes, patched.sites, Plan(model="Model"))
    assert [(site.rule, site.module) for site in made.kept] == [("FUS201", "first"), ("FUS201", "second")]
    return made


def run(model: nn.Module, times: int = 1) -> Tensor:
    with torch.no_grad():
        for _ in range(times):
            result: Tensor = model(torch.ones(4, 16))
    return result


def told(applied: PlanApplied) -> list[str]:
    recording = Recording()
    applied.finish(recording)
    return recording.notes


def test_every_living_model_of_the_class_is_patched_and_left_as_it_was(plan: Plan, rules: list[Rule]) -> None:
    # GIVEN two models of the class, before any is called
    model, other = Model(), Model()
    expected = run(model)
    applied = PlanApplied(plan, rules)
    applied.start()

    # WHEN they are called three times each
    run(model)
    assert ATTRIBUTE in model.__dict__
    result = run(model, 2)
    run(other, 3)
    notes = told(applied)

    # THEN both ran with all sites, no hook is left, and the models are as before
    assert notes == ["Patched by a plan: of its 2 sites 2 were applied and 2 were called."]
    torch.testing.assert_close(result, expected)
    assert {id(model), id(other)} <= {id(patched.model) for patched in applied.patched}
    assert not nn_module._global_forward_pre_hooks
    assert ATTRIBUTE not in model.__dict__ | other.__dict__


def test_a_model_within_another_is_not_the_plans(plan: Plan, rules: list[Rule]) -> None:
    applied = PlanApplied(plan, rules)
    applied.start()
    run(Outer(Model()), 2)
    assert told(applied) == [
        "The plan was not applied: the script called no outermost module of class Model."
    ]  # fmt: skip


def test_applied_and_never_called_is_an_error(plan: Plan, rules: list[Rule], monkeypatch: pytest.MonkeyPatch) -> None:
    from auditor.patching.patch_site import PatchSite

    model, applied = Model(), PlanApplied(plan, rules)
    applied.start()
    run(model, 2)
    monkeypatch.setattr(PatchSite, "calls", 0)

    assert told(applied) == [
        "Patched by a plan: of its 2 sites 2 were applied and 0 were called.",
        "Error: applied but never called: FUS201 at first, FUS201 at second.",
    ]


def test_sites_that_are_not_found_are_named(plan: Plan, rules: list[Rule]) -> None:
    plan.sites[0].fingerprint = "of another model"
    model, applied = Model(), PlanApplied(plan, rules)
    applied.start()
    run(model, 2)
    notes = told(applied)
    assert notes[0] == "Patched by a plan: of its 2 sites 1 was applied and 1 was called."
    assert notes[1] == "Not applied: FUS201 at first: it was not found in the model."


def test_a_script_that_compiles_its_model_is_left_alone(plan: Plan, rules: list[Rule]) -> None:
    model = Model()
    model.compile(backend="eager")
    applied = PlanApplied(plan, rules)
    applied.start()
    run(model, 2)
    notes = told(applied)
    assert len(notes) == 1
    assert notes[0].startswith("The plan was not applied: ")


def test_what_the_plan_traced_is_not_taken_for_the_scripts_own_compiler(plan: Plan, rules: list[Rule]) -> None:
    # GIVEN a recording that saw compiled code, of a model that the plan is applied to
    model, applied = Model(), PlanApplied(plan, rules)
    applied.start()
    run(model, 2)
    recording = Recording(notes=["First.", sentences.compiled()])

    applied.finish(recording)

    assert recording.notes[:2] == ["First.", sentences.patched()]
    assert (recording.plan_sites, recording.plan_applied) == (2, 2)


def test_a_plan_that_is_not_applied_leaves_the_scripts_compiler_its_note(plan: Plan, rules: list[Rule]) -> None:
    model = Model()
    model.compile(backend="eager")
    applied = PlanApplied(plan, rules)
    applied.start()
    run(model, 2)
    recording = Recording(notes=[sentences.compiled()])

    applied.finish(recording)

    assert recording.notes[0] == sentences.compiled()
    assert (recording.plan_sites, recording.plan_applied) == (2, 0)


def test_a_plan_is_read_with_the_rules_of_the_project(plan: Plan, tmp_path: Path) -> None:
    from auditor.fix.apply import attach

    plan.save(tmp_path / "plan.yaml")
    applied = attach(tmp_path / "plan.yaml", {"rules": []})
    assert [site.key for site in applied.plan.kept] == [site.key for site in plan.kept]


def test_a_recorder_knows_the_calls_of_a_patched_model_for_its_own() -> None:
    from auditor.collect.listener import STANDS_FOR, CompiledFunction

    def led_through() -> None: ...

    model = Model()
    setattr(led_through, STANDS_FOR, lambda: model)
    known, other = CompiledFunction(led_through), CompiledFunction(run)
    assert (known.name, known.function) == ("Model", model)
    assert (other.name, other.function) == ("torch.compile(run)", run)
