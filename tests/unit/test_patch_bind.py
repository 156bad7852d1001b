"""A module that is one site is called through that one call, where that is what its forward would do."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from patched_models import WIDTH, First, RMSNorm, Small, patched, rules, step, x_of
from torch import Tensor, nn

from auditor.patching.bind import BoundModule
from auditor.patching.live import Patched
from auditor.patching.plan import Plan, PlanSite

pytestmark = pytest.mark.usefixtures("reference_path")


def bound(module: nn.Module) -> BoundModule:
    made = BoundModule("norm", module, rules(), First())
    made.enable()
    return made


def calls(made: BoundModule) -> int:
    return sum(site.calls for site in made.sites)


def test_every_way_to_call_it_counts() -> None:
    module, x = RMSNorm(), x_of()
    expected, made = step(module, x), bound(module)
    torch.testing.assert_close(step(module, x), expected)
    torch.testing.assert_close(module(x=x), expected[0])
    torch.testing.assert_close(module(x[0]), expected[0][0])
    torch.testing.assert_close(module(x.transpose(0, 1)), expected[0].transpose(0, 1))
    assert calls(made) == 4
    assert [site.key.module for site in made.sites] == ["norm"] * len(made.sites)
    made.undo()
    assert torch.equal(module(x), expected[0])


def test_more_modules_of_one_class_than_dynamo_keeps_graphs_of_one_function() -> None:
    x = x_of()
    for module in [RMSNorm() for _ in range(10)]:
        made = bound(module)
        module(x)
        module(x)
        assert (made.reason, calls(made)) == ("", 2)


def test_what_calls_differ_in_is_looked_at() -> None:
    module, x = RMSNorm(), x_of()
    made = bound(module)
    module(x)
    for eps in (1e-1, 1e-5):
        module.eps = eps
        torch.testing.assert_close(module(x), RMSNorm.forward(module, x))
    module.bfloat16()
    torch.testing.assert_close(module(x.bfloat16()), RMSNorm.forward(module, x.bfloat16()))
    module.float().eval()
    with torch.no_grad():
        torch.testing.assert_close(module(x), RMSNorm.forward(module, x))
    assert calls(made) == 5


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((x_of(), 1), {}), ((x_of(),), {"y": 1}), ((None,), {}), ((x_of(),), {"x": x_of()})]
)
def test_wrong_arguments_raise_what_forward_raises(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    module = RMSNorm()
    with pytest.raises((TypeError, AttributeError)) as expected:
        module(*args, **kwargs)
    made = bound(module)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as found:
            module(*args, **kwargs)
        assert str(found.value) == str(expected.value)
    assert module(x_of()).shape == (2, 6, WIDTH)
    assert calls(made) == 1


class WithWeight(nn.Module):
    """Base of norms that do one thing more."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen, self.count = nn.Parameter(torch.randn(WIDTH)), [], 0

    def norm(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Doubled(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.norm(x).cumsum(-1))


class Listing(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return self.norm(x)


class Counted(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.norm(x)


class Loose(WithWeight):
    def forward(self, *args: Tensor) -> Tensor:
        return self.norm(args[0])


class Deciding(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) if bool(x.sum() > 0) else x


class Short(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) if x.size(1) < 9 else x


class Learning(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return x
        return self.norm(x)


class Config:
    eps = 1e-6


class Configured(WithWeight):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.eps))


EPS = 1e-6


class Global(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


def wrapped(forward: Any) -> Any:
    @functools.wraps(forward)
    def inner(self: Any, x: Tensor) -> Any:
        return forward(self, x * EPS)

    return inner


class Wrapped(WithWeight):
    @wrapped
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class OfClass(WithWeight):
    eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class OfProperty(OfClass):
    @property
    def eps(self) -> float:  # type: ignore[override]
        return EPS


class ByName(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * getattr(self, "count"))  # noqa: B009


class HandedOn(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        own = self
        return self.norm(x * own.count)


class Defaulted(WithWeight):
    def forward(self, x: Tensor, cfg: dict[str, float] = {"eps": 1.0}) -> Tensor:  # noqa: B006
        return self.norm(x * cfg["eps"])


class Toggling(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        self.count: int = 1 - self.count
        return self.norm(x)


ACTIVATION = nn.LeakyReLU(0.1)


class Activated(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(ACTIVATION(x))


class Containing(WithWeight):
    def __init__(self) -> None:
        super().__init__()
        self.inner = RMSNorm()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


class Pair(WithWeight):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(x), x


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Doubled, "it is not one site and nothing else"),
        (Listing, "its forward reads self.seen, which may change inside"),
        (Counted, "its forward changes what it is given"),
        (Loose, "its forward takes any number of arguments"),
        (Deciding, "its forward decides, or does more than compute"),
        (Short, "its forward decides, or does more than compute"),
        (Learning, "its forward decides, or does more than compute"),
        (Configured, "its forward reads self.config, which may change inside"),
        (Global, "its forward reads 'EPS'"),
        (Wrapped, "the source of its forward is not at hand"),
        (OfClass, "its forward reads self.eps, which is no setting of its own"),
        (OfProperty, "its forward reads self.eps, which is no setting of its own"),
        (ByName, "its forward hands itself on"),
        (HandedOn, "its forward hands itself on"),
        (Defaulted, "a default of its forward may change inside"),
        (Toggling, "its forward changes what it is given"),
        (Activated, "its forward reads 'ACTIVATION'"),
        (Containing, "there are modules in it"),
        (Pair, "it is not one site and nothing else"),
    ],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_module_that_is_more_than_the_site_keeps_its_forward(kind: type[WithWeight], reason: str) -> None:
    module, x = kind(), x_of()
    made = bound(module)
    results = [module(x) for _ in range(3)]
    assert made.reason == reason
    assert (module.count, len(module.seen)) == ({Counted: 3, Toggling: 1}.get(kind, 0), 3 * (kind is Listing))
    made.undo()
    for result in results:
        torch.testing.assert_close(result, module(x))
    assert calls(made) == 0


def test_the_forward_that_somebody_else_put_there_stays() -> None:
    module, x = RMSNorm(), x_of()
    theirs = lambda x: x * 2.0  # noqa: E731
    module.forward = theirs  # type: ignore[method-assign]
    made = bound(module)
    assert torch.equal(module(x), x * 2.0)
    assert made.reason == "its forward is replaced already, by somebody else"
    later = RMSNorm()
    made = bound(later)
    later(x)
    later.forward = theirs  # type: ignore[method-assign]
    assert torch.equal(later(x), x * 2.0)
    made.undo()
    assert later.__dict__["forward"] is theirs
    assert torch.equal(later(x), x * 2.0)


def test_compilers_tracers_and_transforms_see_the_ops_of_the_module() -> None:
    module, x = RMSNorm(), x_of()
    expected, made = module(x), bound(module)
    module(x)
    count = calls(made)
    torch.testing.assert_close(torch.compile(module, backend="eager")(x), expected)
    torch.testing.assert_close(torch.vmap(module)(x), expected)
    torch.testing.assert_close(torch.func.functional_call(module, {"weight": torch.ones(WIDTH)}, (x,)).shape, x.shape)
    assert calls(made) == count + 1


def test_bound_modules_in_a_model_that_somebody_compiles() -> None:
    model, x = Small(), x_of()
    expected = step(model, x)
    with patched(model, modules=("norm",), whole=False):
        torch.testing.assert_close(step(torch.compile(model, backend="eager"), x), expected)
        model.norm.register_forward_hook(lambda *_: None)
        torch.testing.assert_close(step(torch.compile(model, backend="eager"), x), expected)


def test_global_hooks_see_a_bound_module() -> None:
    model, x, seen = Small(), x_of(), []
    with patched(model, modules=("norm",), whole=False) as patch:
        handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
        try:
            model(x)
            model(x)
        finally:
            handle.remove()
        assert seen.count(RMSNorm) == 2
        assert [site.calls for site in patch.sites] == [2]
        assert "forward" not in vars(model.norm)


def test_a_gate_without_parameters_is_bound() -> None:
    class Gate(nn.Module):
        def forward(self, gate: Tensor, up: Tensor) -> Tensor:
            return F.silu(gate) * up

    module, (gate, up) = Gate(), (x_of(), x_of(seed=1))
    made = bound(module)
    for found in (module(gate, up), module(gate, up=up), module(up=up, gate=gate)):
        torch.testing.assert_close(found, F.silu(gate) * up)
    assert calls(made) == 3


@pytest.mark.parametrize("kind", [Short, Configured, Global])
def test_a_plan_of_a_module_that_no_form_is_for_is_applied_to_what_is_traced(
    kind: type[WithWeight], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo guards what the forward decides by, and what it reads from elsewhere."""
    # GIVEN a model whose norm depends on more than a form is for, and a plan that was made of it
    model = nn.Sequential(kind(), nn.Linear(WIDTH, WIDTH))
    with Patched(model, rules(), First()) as made:
        model(x_of())
        sites = [
            PlanSite(
                rule=site.key.rule, module=site.key.module, fingerprint=site.key.fingerprint, state="kept", tier=1,
                replacement=site.chosen.replacement, provider=site.chosen.provider, options=dict(site.chosen.options),
            )
            for site in made.sites if site.chosen
        ]  # fmt: skip
    assert sites
    # WHEN it is applied, and what the forward depends on changes
    with Patched.by_plan(model, rules(), Plan(model="Sequential", sites=sites)) as again:
        model(x_of())
        model(x_of())
        assert sum(site.calls for site in again.sites)
        monkeypatch.setattr(Config, "eps", 10.0)
        monkeypatch.setitem(globals(), "EPS", 10.0)
        long = torch.randn(2, 12, WIDTH)
        found = model(long)
    # THEN the results are the model's own
    torch.testing.assert_close(found, model(long))


def test_a_bias_that_comes_later_is_looked_at() -> None:
    module, x = nn.LayerNorm(WIDTH, bias=False), x_of()
    with torch.no_grad():
        made = bound(module)
        module(x)
        module.bias = nn.Parameter(torch.ones(WIDTH))
        found = module(x)
        made.undo()
        torch.testing.assert_close(found, module(x))
