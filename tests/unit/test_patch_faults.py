"""Faulty replacements, planted one by one: each is found before it is used, in the model as a whole, or as it runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from patched_models import Block, RMSNorm, Small, applied, patched, provide, reasons, rules, step, x_of
from torch import Tensor, nn

from auditor.errors import AuditError
from auditor.patching.api import measure
from auditor.patching.calls import SiteCall
from auditor.patching.choose import ByMeasuring, Choice, as_plan
from auditor.patching.culprit import culprits
from auditor.patching.live import Patched
from auditor.patching.plan import Plan
from auditor.patching.step import Step
from auditor.patching.verify import Verification, verify
from fused_replacements import find
from fused_replacements._paths import say_unfused

pytestmark = pytest.mark.usefixtures("reference_path")


def usual(name: str) -> Callable[..., Any]:
    return find(name).reference


def other_cast(x: Tensor, weight: Tensor, *, cast: str, **kwargs: Any) -> Tensor:  # noqa: ARG001
    """Goes back to bf16 in another place than it is told."""
    return usual("rms_norm")(x, weight, cast="gemma", **kwargs)  # type: ignore[no-any-return]


class Swapped(torch.autograd.Function):
    """A norm after an add, whose residual takes the gradient of the norm alone, and the branch that of both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, kwargs: Any) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            ctx.given = [t.detach().requires_grad_() for t in (x, residual, weight)]
            ctx.made = usual("add_rms_norm")(*ctx.given, **kwargs)
        return ctx.made[0].detach(), ctx.made[1].detach()

    @staticmethod
    def backward(ctx: Any, normed: Tensor, total: Tensor) -> Any:
        x, _, weight = torch.autograd.grad(ctx.made[0], ctx.given, normed)
        return x + total, x, weight, None


class Overwriting(torch.autograd.Function):
    """A norm that keeps the gradient of its input where the one of its output was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kwargs: Any) -> Tensor:
        with torch.enable_grad():
            ctx.given = [t.detach().requires_grad_() for t in (x, weight)]
            ctx.made = usual("rms_norm")(*ctx.given, **kwargs)
        return ctx.made.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        found = torch.autograd.grad(ctx.made, ctx.given, grad)
        return grad.copy_(found[0]), found[1], None


def in_place(x: Tensor, weight: Tensor, **kwargs: Any) -> Tensor:
    """Writes the norm over what it is the norm of, as a kernel does: nobody is told."""
    result: Tensor = usual("rms_norm")(x, weight, **kwargs)
    x.data.copy_(result)
    return result


def failing(x: Tensor, weight: Tensor, **kwargs: Any) -> Tensor:
    """Takes shapes, and no numbers."""
    if x.device.type != "meta":
        raise RuntimeError("no kernel image is available")
    return usual("rms_norm")(x, weight, **kwargs)  # type: ignore[no-any-return]


def short(x: Tensor, weight: Tensor, **kwargs: Any) -> Tensor:
    """Works for a length of six."""
    if x.shape[1] != 6:
        raise ValueError(f"a length of {x.shape[1]} was not expected")
    return usual("rms_norm")(x, weight, **kwargs)  # type: ignore[no-any-return]


class Beside(nn.Module):
    """What the norm reads, and the gradient of what it makes, are needed after it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = RMSNorm(), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = torch.tanh(x)
        return y + self.norm(x)


FAULTS: dict[str, tuple[str, Callable[..., Any], torch.dtype, str]] = {
    "cast": ("rms_norm", other_cast, torch.bfloat16, "rms_norm is not exact enough: it rounds elsewhere"),
    "residual": (
        "add_rms_norm", lambda x, r, w, **k: Swapped.apply(x, r, w, k), torch.float32,  # type: ignore[no-untyped-call]
        "add_rms_norm is not exact enough",
    ),
    "in place": ("rms_norm", in_place, torch.float32, "rms_norm is not exact enough: it writes to its input"),
    "gradient": (
        "rms_norm", lambda x, w, **k: Overwriting.apply(x, w, k), torch.float32,  # type: ignore[no-untyped-call]
        "rms_norm is not exact enough: its backward writes to the gradient that comes in",
    ),
    "raises": ("rms_norm", failing, torch.float32, "it fails: RuntimeError: no kernel image is available"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_replacement_is_not_chosen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, function, dtype, reason = FAULTS[fault]
    provide(monkeypatch, name, function)
    model, x = Block().to(dtype), x_of(dtype=dtype)
    expected = step(model, x)
    with Patched(model, rules(), ByMeasuring(Choice(keep_all=True), timed=False)) as patch:
        torch.testing.assert_close(step(model, x), expected, rtol=1e-2, atol=1e-2)
        assert name not in [replacement for _, replacement in applied(patch)]
        assert len(applied(patch)) >= 2, "what is right is used"
        assert any(reason in site.reason for site in patch.sites), reasons(patch)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "raises"])
def test_a_faulty_replacement_that_was_chosen_is_found_in_the_model(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    name, function, dtype, _ = FAULTS[fault]
    provide(monkeypatch, name, function)
    model = (Beside() if fault in ("in place", "gradient") else Block()).to(dtype)
    x = x_of(dtype=dtype)
    with patched(model, only=[name]) as patch:
        verdict = verify(model, patch, Step((x.requires_grad_(),), training=True), perturbations=0, faithful=True)
        assert not verdict.ok, verdict


def test_a_faithful_replacement_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "rms_norm", usual("rms_norm"))
    model, x = Block().bfloat16(), x_of(dtype=torch.bfloat16)
    with Patched(model, rules(), ByMeasuring(Choice(keep_all=True), timed=False)) as patch:
        model(x)
        assert ("norm1", "rms_norm") in applied(patch)
        assert verify(model, patch, Step((x,), training=True), perturbations=1, steps=1).ok


# --- what goes wrong when it runs ----------------------------------------------------------------------


def test_where_a_replacement_raises_the_separate_ops_run_and_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "rms_norm", failing)
    model, x = Small(), x_of()
    expected = step(model, x)
    with patched(model) as patch:
        with pytest.warns(UserWarning, match="it failed when it ran: RuntimeError: no kernel image is available"):
            torch.testing.assert_close(step(model, x), expected)
        torch.testing.assert_close(step(model, x), expected)
        assert [site.calls for site in patch.sites if site.chosen] == [0, 2, 2]
        assert [problem for problem in patch.problems if "rms" in problem or "FUS201" in problem] == [
            "FUS201 at norm: it failed when it ran: RuntimeError: no kernel image is available; the separate ops ran "
            "in its place."
        ]


def test_what_is_tried_is_what_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling: list[bool] = []

    def watching(x: Tensor, weight: Tensor, **kwargs: Any) -> Tensor:
        if x.device.type != "meta":
            compiling.append(torch.compiler.is_compiling())  # then a replacement takes the form that is traced
        return usual("rms_norm")(x, weight, **kwargs)

    provide(monkeypatch, "rms_norm", watching)
    with Patched(Small(), rules(), ByMeasuring(Choice(keep_all=True))) as patch:
        patch.model(x_of())
        assert patch.sites[0].calls == 1
    assert len(compiling) > 2
    assert not any(compiling)


def test_a_replacement_that_runs_its_definition_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfused(x: Tensor, weight: Tensor, **kwargs: Any) -> Tensor:
        if x.device.type != "meta":
            say_unfused("rms_norm", "the planet is in retrograde")
        return usual("rms_norm")(x, weight, **kwargs)

    provide(monkeypatch, "rms_norm", unfused)
    with Patched(Small(), rules(), ByMeasuring(Choice(keep_all=True), timed=False)) as patch:
        for _ in range(2):  # it warns once only
            with warnings.catch_warnings(action="ignore"):
                patch.model(x_of())
    assert "it runs unfused here (rms_norm: the planet is in retrograde)" in patch.sites[0].reason


def test_a_replacement_that_takes_only_the_length_it_was_tried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "rms_norm", short)
    model = Small()
    with Patched(model, rules(), ByMeasuring(Choice(keep_all=True), timed=False)) as patch:
        model(x_of())
        with pytest.warns(UserWarning, match="a length of 7 was not expected"):
            result = model(x_of(2, 7, 16))
        torch.testing.assert_close(result, model.mlp(model.norm(x_of(2, 7, 16))))
        assert patch.compiles == 1
        assert patch.sites[0].calls == 1
        assert any("a length of 7 was not expected" in problem for problem in patch.problems)


def test_one_of_several_results_is_stood_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(x: Tensor, residual: Tensor, weight: Tensor, **kwargs: Any) -> Any:
        if x.device.type != "meta":
            raise RuntimeError("out of shared memory")
        return usual("add_rms_norm")(x, residual, weight, **kwargs)

    provide(monkeypatch, "add_rms_norm", raising)
    model, x = Block(), x_of()
    expected = step(model, x)
    with patched(model) as patch, pytest.warns(UserWarning, match="out of shared memory"):
        torch.testing.assert_close(step(model, x), expected)
    assert "add_rms_norm" in [replacement for _, replacement in applied(patch)]


def test_out_of_memory_and_a_ctrl_c_are_not_stood_in_for() -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt()):

        def raising(*_args: Any, error: BaseException = error) -> Any:
            raise error

        with pytest.raises(type(error)):
            SiteCall("site", raising, lambda *_: None)(())


def test_a_bound_module_whose_replacement_raises_runs_its_own_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "rms_norm", short)
    model = RMSNorm()
    with patched(model, modules=("",), whole=False) as patch:
        model(x_of())
        with pytest.warns(UserWarning, match="a length of 3 was not expected"):
            result = model(x_of(2, 3, 16))
        torch.testing.assert_close(result, RMSNorm.forward(model, x_of(2, 3, 16)))
        assert patch.problems[0].startswith("FUS201 at the model itself: it failed when it ran")


def test_a_site_that_is_applied_and_skipped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from auditor.patching import api, rewrite

    def forgotten(_graph: Any, _captured: Any, _region: Any, proposal: Any, *_: Any) -> SiteCall:
        return SiteCall("site", proposal.function)

    monkeypatch.setattr(rewrite, "exchange", forgotten)
    model, x = Small(), x_of()
    with patched(model) as patch:
        model(x)
        assert applied(patch) == [("norm", "rms_norm"), ("mlp.gate", "packed_linear"), ("mlp", "act_mul")]
        assert patch.problems == ["FUS201 at norm was applied and never called.",
                                  "FUS501 at mlp.gate was applied and never called.",
                                  "FUS206 at mlp was applied and never called."]  # fmt: skip
        plan = as_plan([], patch.sites, Plan(model="Small"))
    monkeypatch.setattr(api, "load_config", lambda: type("Config", (), {"rules": ()}))
    with pytest.raises(AuditError, match="no replacement of the plan ran on these inputs"):
        measure(model, x, plan)


# --- which site it is ----------------------------------------------------------------------------------


def planned(model: nn.Module, x: Tensor) -> Plan:
    with patched(model) as patch:
        step(model, x)
        return as_plan([], patch.sites, Plan(model=type(model).__name__))


def judge(x: Tensor) -> Callable[[Patched], Verification]:
    return lambda patch: verify(
        patch.model, patch, Step((x.clone().requires_grad_(),), training=True), perturbations=0, steps=0
    )


def test_the_bad_site_among_several_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "add_rms_norm", FAULTS["residual"][1])
    model, x = Block(), x_of()
    plan = planned(model, x)
    assert len(plan.kept) >= 4
    found, rest, patch = culprits(model, rules(), plan, judge(x))
    try:
        assert [(site.rule, site.replacement, site.provider) for site in found] == [
            ("FUS202", "add_rms_norm", "planted")
        ]
        assert rest.ok
        model(x)
        assert len(set(applied(patch))) == len(plan.kept) - 1
    finally:
        patch.undo()
    assert patched(model).undo() is None, "no other patch is left"


def test_two_bad_sites_are_named_and_a_good_plan_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Small(), x_of()
    plan = planned(model, x)
    found, rest, patch = culprits(model, rules(), plan, judge(x))
    patch.undo()
    assert (found, rest.ok) == ([], True)
    provide(monkeypatch, "rms_norm", lambda x, w, **k: usual("rms_norm")(x, w, **k) * 1.5)
    provide(monkeypatch, "act_mul", lambda g, u, activation: usual("act_mul")(g, u, activation) * 1.5)
    plan = planned(model, x)
    found, rest, patch = culprits(model, rules(), plan, judge(x))
    patch.undo()
    assert sorted({site.replacement for site in found}) == ["act_mul", "rms_norm"]
    assert rest.ok


def test_the_limit_applies_the_first_sites() -> None:
    for limit, sites in ((0, "0 sites"), (1, "1 site")):
        model = Block()
        with Patched(model, rules(), ByMeasuring(Choice(keep_all=True, limit=limit), timed=False)) as patch:
            model(x_of())
            assert len(applied(patch)) == limit
            assert f"the limit of {sites} is reached" in reasons(patch).values()


def test_only_the_wanted_rules_are_applied() -> None:
    model, choice = Small(), Choice(keep_all=True, wanted="FUS201".__eq__)
    with Patched(model, rules(), ByMeasuring(choice, timed=False)) as patch:
        model(x_of())
        assert applied(patch) == [("norm", "rms_norm")]
        assert reasons(patch)["mlp"] == "its rule is not selected"
