"""A live optimizer is switched to fused or foreach steps, steps as before, and is put back exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from fused_replacements import find, fused_optimizer
from fused_replacements.optimizer._plan import FOREACH_CPU_ELEMENTS, errs_on_cpu
from fused_replacements.optimizer.fused_optimizer import AMP, reference, supports

Make = Callable[[list[Tensor]], Optimizer]
FUSED: dict[str, Make] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "Adam, amsgrad, maximize": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, maximize=True, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, betas=(0.8, 0.95)),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "SGD, maximize": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, maximize=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01, weight_decay=0.1),
    "tensor learning rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
}
FOREACH: dict[str, Make] = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1, weight_decay=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1, maximize=True),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
}
MAKERS = {**FUSED, **FOREACH}
SHAPES = ((3,), (5, 7), (1,), (), (2, 3, 4), (0,))


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Vectors, matrices, a scalar, an empty one, and a transposed one."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    return [torch.nn.Parameter(x) for x in (*drawn, torch.randn(4, 6, generator=generator).to(dtype).t())]


def step(optimizer: Optimizer, seed: int) -> None:
    """One step on random gradients, laid out as the parameters are; one parameter has none every other time."""
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.grad = torch.empty_like(parameter).copy_(drawn)
            if place == 1 and seed % 2:
                parameter.grad = None
    optimizer.step()


def values(optimizer: Optimizer) -> list[Tensor]:
    return [parameter.detach().clone() for group in optimizer.param_groups for parameter in group["params"]]


def snapshot(optimizer: Optimizer) -> dict[str, Any]:
    """All that an optimizer holds: options, defaults, attributes, and every tensor of its state with its place."""
    state = [
        {
            name: (value.clone(), value.dtype, value.device, id(value)) if isinstance(value, Tensor) else value
            for name, value in optimizer.state[parameter].items()
        }
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in optimizer.state
    ]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    plain = {k: v for k, v in vars(optimizer).items() if isinstance(v, (bool, int, float, str)) or v is None}
    hooks = {k: len(v) for k, v in vars(optimizer).items() if k.endswith("_hooks")}
    return {"state": state, "groups": groups, "defaults": dict(optimizer.defaults), "plain": plain, "hooks": hooks}


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return bool(torch.equal(first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def pair(name: str, dtype: torch.dtype = torch.float32) -> tuple[Optimizer, Optimizer]:
    return MAKERS[name](parameters(dtype)), MAKERS[name](parameters(dtype))


@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_those_of_single_tensors(name: str) -> None:
    # GIVEN two equal optimizers, one of which is switched
    mine, its = pair(name)
    reference(its)
    switched = fused_optimizer(mine)
    assert switched.modes == ("fused" if name in FUSED else "foreach",)
    # WHEN both take several steps, THEN the parameters stay together, to the rounding of fp32
    for seed in range(6):
        step(mine, seed)
        step(its, seed)
        for a, b in zip(values(mine), values(its), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
    assert mine.param_groups[0]["fused" if name in FUSED else "foreach"] is True


def wide_parameters(dtype: torch.dtype) -> list[Tensor]:
    """Long enough for the vectorised loops of CPU kernels, with a rest that is not."""
    return [torch.nn.Parameter(x) for x in torch.randn(3, 67, generator=torch.Generator().manual_seed(0)).to(dtype)]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_low_precision_is_no_worse_than_single_tensors(name: str, dtype: torch.dtype) -> None:
    # GIVEN a step in low precision, fused and not, and the same step in fp64 as the truth
    start = wide_parameters(dtype)
    mine, its = (FUSED[name]([torch.nn.Parameter(p.detach().clone()) for p in start]) for _ in range(2))
    true = FUSED[name]([torch.nn.Parameter(p.detach().double()) for p in start])
    for optimizer in (fused_optimizer(mine).optimizer, reference(its).optimizer, reference(true).optimizer):
        for place, parameter in enumerate(optimizer.param_groups[0]["params"]):
            drawn = torch.randn(67, generator=torch.Generator().manual_seed(place))
            parameter.grad = drawn.to(dtype).to(parameter.dtype)
        optimizer.step()
    # THEN the fused one is at most twice as far off (an infinite eager step, where fp16 underflows, bounds nothing)
    error, allowed = (
        max(float((a.double() - b).abs().max()) for a, b in zip(values(one), values(true), strict=True))
        for one in (mine, its)
    )
    assert error <= 2 * allowed + 2 * torch.finfo(dtype).eps
    assert all(value.isfinite().all() for value in values(mine)) or allowed == float("inf")


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a fused kernel that does nothing
    errs_on_cpu.cache_clear()
    monkeypatch.setattr(torch, "_fused_adam_", lambda *_, **__: None)
    optimizer = _optimizer(torch.optim.Adam, SMALL)
    # THEN the trial finds it out, and the step is foreach
    with fused_optimizer(optimizer) as switched:
        assert switched.modes == ("foreach",)
        assert switched.reasons == ("PyTorch's fused CPU kernel for Adam in float32 gives wrong results",)
    errs_on_cpu.cache_clear()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_undo_is_exact(name: str, steps_before: int) -> None:
    # GIVEN an optimizer, new or in the middle of training
    optimizer = MAKERS[name](parameters())
    for seed in range(steps_before):
        step(optimizer, seed)
    before = snapshot(optimizer)
    # WHEN it is switched and put back, THEN nothing of it changed: values, objects, options, attributes and hooks
    with fused_optimizer(optimizer) as switched:
        assert not same(snapshot(optimizer), before)
    assert same(snapshot(optimizer), before)
    assert "add_param_group" not in vars(optimizer)
    switched.restore()
    assert same(snapshot(optimizer), before)


@pytest.mark.parametrize("name", ["Adam", "SGD, nesterov", "Adagrad", "RMSprop"])
def test_training_goes_on_after_undo(name: str) -> None:
    # GIVEN an optimizer that was switched in the middle of training, and one that never was
    mine, its = pair(name)
    step(mine, 0)
    step(its, 0)
    with fused_optimizer(mine):
        step(mine, 1)
    step(its, 1)
    # WHEN both go on, THEN they agree, and their options and counters of steps are of one kind
    step(mine, 2)
    step(its, 2)
    for a, b in zip(values(mine), values(its), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
    kinds = [
        [(s["step"].dtype, s["step"].device, float(s["step"])) for s in o.state.values() if "step" in s]
        for o in (mine, its)
    ]
    assert kinds[0] == kinds[1]
    assert [g.get("fused") for g in mine.param_groups] == [None]


def test_fp64_counters_come_back() -> None:
    # GIVEN counters of steps in fp64, which fused kernels don't take
    optimizer = FUSED["Adam"](parameters())
    step(optimizer, 0)
    for state in optimizer.state.values():
        state["step"] = state["step"].double()
    kept = {parameter: state["step"] for parameter, state in optimizer.state.items()}
    with fused_optimizer(optimizer):
        assert {state["step"].dtype for state in optimizer.state.values()} == {torch.float32}
        step(optimizer, 2)
    assert all(state["step"] is kept[parameter] for parameter, state in optimizer.state.items())
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


def test_gradients_in_another_order_are_not_fused() -> None:
    # GIVEN a transposed gradient, which PyTorch's fused CPU kernels read in the order of memory
    weight = torch.randn(4, 6)
    gradient = torch.randn(6, 4).t()
    results = []
    for switch in (fused_optimizer, reference):
        parameter = torch.nn.Parameter(weight.clone())
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        switch(optimizer)
        parameter.grad = gradient
        optimizer.step()
        results.append(parameter.detach().clone())
        # AND one that lies as the parameter does is fused again
        parameter.grad = gradient.contiguous()
        optimizer.step()
        assert optimizer.param_groups[0]["fused"] is (switch is fused_optimizer)
        results.append(parameter.detach().clone())
    torch.testing.assert_close(results[:2], results[2:])
    torch.testing.assert_close(results[0], weight - 0.5 * gradient)


def test_a_closure_may_make_any_gradient() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4, 6))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    fused_optimizer(optimizer)
    gradient = torch.randn(6, 4).t()

    def closure() -> float:
        parameter.grad = gradient
        return 0.0

    optimizer.step(closure)
    torch.testing.assert_close(parameter.detach(), -gradient)


def test_each_group_is_planned_alone() -> None:
    # GIVEN a group that can be fused, and one with a complex parameter
    plain, turned = torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(3, dtype=torch.complex64))
    optimizer = torch.optim.Adam([{"params": [plain]}, {"params": [turned], "lr": 0.5}])
    switched = fused_optimizer(optimizer)
    assert switched.modes == ("fused", "foreach")
    assert switched.reasons == (None, "a parameter is complex64, and fused steps are for floating dtypes")
    # THEN a scaler must unscale for both, as one of them can't
    assert not hasattr(optimizer, AMP)


def test_added_groups_are_switched_and_put_back() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.randn(3))])
    switched = fused_optimizer(optimizer)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.randn(4))], "lr": 0.5})
    assert switched.modes == ("fused", "fused")
    step(optimizer, 0)
    switched.restore()
    assert [(group["fused"], group["foreach"]) for group in optimizer.param_groups] == [(None, None)] * 2
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.randn(4))]})
    assert optimizer.param_groups[2]["fused"] is None


@pytest.mark.parametrize("name", ["Adam", "SGD, nesterov", "RMSprop"])
def test_checkpoints_keep_the_stock_layout(name: str) -> None:
    # GIVEN a switched and a stock optimizer after the same step
    mine, its = pair(name)
    switched = fused_optimizer(mine)
    step(mine, 0)
    step(its, 0)
    saved, stock = mine.state_dict(), its.state_dict()
    # THEN their checkpoints have the same options, names and kinds of tensors
    assert saved["param_groups"] == stock["param_groups"]
    kinds = [
        {p: {k: (v.dtype, v.shape) for k, v in s.items() if isinstance(v, Tensor)} for p, s in one["state"].items()}
        for one in (saved, stock)
    ]
    assert kinds[0] == kinds[1]
    # AND loading a stock checkpoint leaves the optimizer switched, and what is undone later is what was loaded
    mine.load_state_dict(copy.deepcopy(stock))
    assert switched.modes[0] is not None
    assert mine.param_groups[0][str(switched.modes[0])] is True
    step(mine, 2)
    step(its, 2)
    for a, b in zip(values(mine), values(its), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)
    switched.restore()
    assert mine.state_dict()["param_groups"] == its.state_dict()["param_groups"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_grad_scaler_skips_and_unscales() -> None:
    # GIVEN a scaler, with gradients that are finite once and infinite once
    results = []
    for switch in (fused_optimizer, reference):
        parameter = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.Adam([parameter], lr=0.1)
        switch(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for factor in (1.0, float("inf"), 2.0):
            optimizer.zero_grad()
            scaler.scale((parameter * torch.arange(4.0) * factor).nan_to_num(posinf=float("inf")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(parameter.detach().clone())
    torch.testing.assert_close(*results)
    assert results[0].isfinite().all()


class _Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return super().step(closure)


SMALL = 8


def _optimizer(make: Make, *shape: int, dtype: torch.dtype = torch.float32) -> Optimizer:
    return make([torch.nn.Parameter(torch.randn(*shape, dtype=dtype))])


def _overlapping() -> Optimizer:
    return torch.optim.Adam([torch.nn.Parameter(torch.randn(3, 8)[:, :4])], lr=torch.tensor(0.1))


def _sparse() -> Optimizer:
    parameter = torch.nn.Parameter(torch.randn(4))
    parameter.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([1.0]), (4,), check_invariants=True)
    return torch.optim.SGD([parameter])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: _optimizer(lambda p: torch.optim.Adam(p, fused=True), SMALL), "it is fused already"),
        (lambda: _optimizer(lambda p: torch.optim.Adam(p, differentiable=True), SMALL), "its step is differentiable"),
        (lambda: _optimizer(_Own, SMALL), "the step of _Own is not one of PyTorch's"),
        (
            lambda: _optimizer(torch.optim.LBFGS, SMALL),
            "PyTorch has no fused LBFGS; PyTorch has no foreach LBFGS",
        ),
        (
            lambda: _optimizer(torch.optim.RMSprop, FOREACH_CPU_ELEMENTS + 1),
            f"PyTorch has no fused RMSprop; on a CPU foreach gains nothing for parameters of {FOREACH_CPU_ELEMENTS + 1}"
            " elements",
        ),
        (
            _overlapping,
            "a parameter has gaps or overlaps in memory (strides (8, 1)); its learning rate is a tensor, and it isn't"
            " capturable",
        ),
        (_sparse, "a gradient is sparse"),
        (
            lambda: _optimizer(torch.optim.SparseAdam, SMALL),
            "PyTorch has no fused SparseAdam; PyTorch has no foreach SparseAdam",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_refusals_say_why(make: Callable[[], Optimizer], reason: str) -> None:
    optimizer = make()
    before = snapshot(optimizer)
    assert supports(optimizer) == reason
    # AND switching it anyway changes no group
    with fused_optimizer(optimizer) as switched:
        assert switched.modes == (None,)
        assert same(snapshot(optimizer)["groups"], before["groups"])
    assert same(snapshot(optimizer), before)


def test_a_foreach_group_is_fused_where_it_can_be() -> None:
    optimizer = _optimizer(lambda p: torch.optim.Adam(p, foreach=True), SMALL)
    with fused_optimizer(optimizer) as switched:
        assert switched.modes == ("fused",)
        step(optimizer, 0)
    assert (optimizer.param_groups[0]["foreach"], optimizer.param_groups[0]["fused"]) == (True, None)


def test_the_registry_has_it_without_samples() -> None:
    replacement = find("fused_optimizer")
    assert replacement.function is fused_optimizer
    assert list(replacement.samples(3, 8, torch.float32, torch.device("cpu"))) == []
