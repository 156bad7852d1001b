"""A patched model computes the same, is handled like any other model, and is undone to the bit."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from patched_models import RMSNorm, Small, applied, patched, rules, step, x_of
from torch import Tensor, nn

from auditor.config import Config, Suppression
from auditor.errors import AuditError
from auditor.selection import Selection

SITES = [("norm", "rms_norm"), ("mlp.gate", "packed_linear"), ("mlp", "act_mul")]


pytestmark = pytest.mark.usefixtures("reference_path")


def everything_of(model: nn.Module) -> list[Any]:
    """What a patch could leave behind: attributes and hooks of every module, and the state's keys, by identity."""
    found: list[Any] = [list(model.state_dict())]
    for name, module in model.named_modules():
        found.append((name, type(module), [(key, id(value)) for key, value in vars(module).items()]))
        found.append([(key, list(value)) for key, value in vars(module).items() if "hooks" in key and value])
    return found


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_an_undone_model_is_the_model_to_the_bit(modules: tuple[str, ...]) -> None:
    model, x = Small(), x_of()
    before, expected = everything_of(model), step(model, x)
    patch = patched(model, modules=modules)
    torch.testing.assert_close(step(model, x), expected)
    assert [site.calls for site in patch.sites if site.chosen] == [1, 1, 1]
    patch.undo()
    assert everything_of(model) == before
    assert same(step(model, x), expected)
    patch.undo()
    assert everything_of(model) == before


def test_a_model_is_undone_at_the_end_of_a_block_whatever_ends_it() -> None:
    model, x = Small(), x_of()
    before = everything_of(model)

    class Interrupting(nn.Module):
        def forward(self, _x: Tensor) -> Tensor:
            raise error

    model.mlp.gate, whole = Interrupting(), model.mlp.gate
    for error in (RuntimeError("in the model"), KeyboardInterrupt()):
        with pytest.raises(type(error)), patched(model, modules=("norm",)):
            model(x)
    model.mlp.gate = whole
    assert everything_of(model) == before


def test_a_ctrl_c_while_it_is_patched_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from auditor.patching.bind import BoundModule

    model = nn.ModuleDict({"first": RMSNorm(), "second": RMSNorm()})
    before, enable = everything_of(model), BoundModule.enable

    def interrupted(module: BoundModule) -> None:
        enable(module)
        if module.path == "second":
            raise KeyboardInterrupt

    monkeypatch.setattr(BoundModule, "enable", interrupted)
    with pytest.raises(KeyboardInterrupt):
        patched(model, modules=("first", "second"))
    assert everything_of(model) == before


def test_a_model_is_not_patched_twice() -> None:
    model = Small()
    patch = patched(model)
    for twice in (model, model.norm, nn.Sequential(model)):
        with pytest.raises(AuditError, match="is patched already, or a part of it"):
            patched(twice)
    patch.undo()
    again = patched(model)
    with pytest.raises(AuditError, match="is patched already"):
        patch.enable()
    again.undo()
    with pytest.raises(AuditError, match="is compiled already; patch the model before"):
        patched(torch.compile(Small(), backend="eager"))
    model.norm.compile(backend="eager")
    with pytest.raises(AuditError, match="'norm' is compiled already"):
        patched(model)


def test_what_the_settings_suppress_is_left_alone_and_so_are_its_kernels() -> None:
    model, x = Small(), x_of()
    suppression = Suppression(rule="FUS201", modules="n*", reason="frozen")
    with patched(model, keep=Selection(Config(suppress=[suppression]), rules()).keep) as patch:
        model(x)
        assert applied(patch) == SITES[1:]
        assert not any(site.key.module == "norm" for site in patch.sites)


def test_an_undone_model_is_patched_again() -> None:
    model, x = Small(), x_of()
    for _ in range(2):
        with patched(model) as patch:
            model(x)
            assert applied(patch) == SITES
            assert all(site.calls for site in patch.sites if site.chosen)


def test_more_models_are_patched_than_dynamo_keeps_graphs_of_one_function() -> None:
    x = x_of()
    for _ in range(10):
        model = RMSNorm()
        with patched(model) as patch:
            model(x)
            assert [site.calls for site in patch.sites] == [1]
            assert patch.problems == []


def test_what_was_patched_is_freed() -> None:
    model = RMSNorm()
    patch = patched(model)
    model(x_of())
    patch.undo()
    gone = weakref.ref(model)
    del model, patch
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_a_copy_and_a_pickle_are_the_model_without_its_patch(modules: tuple[str, ...]) -> None:
    def saved(model: nn.Module) -> nn.Module:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        return torch.load(file, weights_only=False)  # type: ignore[no-any-return]

    ways: list[Callable[[nn.Module], nn.Module]] = [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved]
    model, x = Small(), x_of()
    keys, expected = [list(vars(m)) for m in model.modules()], step(model, x)
    with patched(model, modules=modules) as patch:
        for called in (False, True):
            others = [way(model) for way in ways]
            calls = [site.calls for site in patch.sites]
            for other in others:
                assert [list(vars(m)) for m in other.modules()] == keys
                assert same(step(other, x), expected)
            assert [site.calls for site in patch.sites] == calls
            if not called:
                model(x)
    with patched(others[0]) as patch:
        others[0](x)
        assert applied(patch) == SITES


def test_a_module_that_pickles_everything_it_has_is_pickled_too() -> None:
    class Greedy(RMSNorm):
        def __getstate__(self) -> dict[str, Any]:
            return dict(self.__dict__)

    model, x = Greedy(), x_of()
    expected = model(x)
    with patched(model):
        model(x)
        assert torch.equal(copy.deepcopy(model)(x), expected)


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_new_weights_are_used(modules: tuple[str, ...]) -> None:
    model, other, x = Small(), Small(), x_of()
    expected = step(other, x)
    with patched(model, modules=modules):
        model(x)
        keys = list(model.state_dict())
        model.load_state_dict(other.state_dict())
        assert keys == list(other.state_dict())
        torch.testing.assert_close(step(model, x), expected)
        model.load_state_dict({k: v.clone() for k, v in Small().state_dict().items()})
        model.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
        torch.testing.assert_close(step(model, x), expected)


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_a_model_that_changes_dtype_runs_in_it(modules: tuple[str, ...]) -> None:
    model, x = Small(), x_of()
    with patched(model, modules=modules) as patch:
        model(x)
        model.to(torch.float64)
        result = model(x.double())
        assert result.dtype is torch.float64
        with patch.disabled():
            torch.testing.assert_close(result, model(x.double()))


def test_modes_and_frozen_parameters_are_followed() -> None:
    class Dropping(Small):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x), 0.5, self.training)

    model, x = Dropping(), x_of()
    with patched(model) as patch:
        for training in (True, False, True):
            model.train(training)
            torch.manual_seed(3)
            result = model(x)
            with patch.disabled():
                torch.manual_seed(3)
                torch.testing.assert_close(result, model(x))
        model.eval()
        model.norm.weight.requires_grad_(False)
        grads = step(model, x)
        assert len(grads) == 2 + 3
        model.requires_grad_(False)
        assert not model(x).requires_grad
        assert applied(patch)[:3] == SITES


def test_a_second_instance_of_the_class_is_not_patched() -> None:
    model, other, x = Small(), Small(), x_of()
    attributes, expected = everything_of(other), other(x)
    with patched(model, modules=("norm",)) as patch:
        model(x)
        calls = [site.calls for site in patch.sites]
        assert torch.equal(other(x), expected)
        assert torch.equal(Small.forward(other, x), expected)
        assert [site.calls for site in patch.sites] == calls
        assert everything_of(other) == attributes


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_threads_call_one_model(modules: tuple[str, ...]) -> None:
    model, xs = Small(), [x_of(2, 3 + i, 16, seed=i) for i in range(4)]
    expected = [model(x) for x in xs]
    found: dict[int, list[Tensor]] = {}

    def called(i: int) -> None:
        found[i] = [model(xs[i]) for _ in range(5)]

    with patched(model, modules=modules) as patch:
        threads = [threading.Thread(target=called, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert patch.compiles <= 2
    for i, results in found.items():
        assert len(results) == 5
        for result in results:
            torch.testing.assert_close(result, expected[i])


def test_dynamos_configuration_is_as_it_was() -> None:
    from torch._dynamo import config

    before = {name: getattr(config, name) for name in ("specialize_float", "skip_nnmodule_hook_guards", "optimize_ddp")}
    model = Small()
    with patched(model):
        model(x_of())
        assert {name: getattr(config, name) for name in before} == before
        with pytest.raises(RuntimeError):
            model(x_of(2, 3))
    assert {name: getattr(config, name) for name in before} == before


def test_a_patch_that_nobody_keeps_stays_with_its_model() -> None:
    model, calls = Small(), []

    def planted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return usual(*args, **kwargs)  # type: ignore[no-any-return]

    patch = patched(model)
    model(x_of())
    site = patch.sites[0]
    assert site.call is not None
    usual, site.call.function = site.call.function, planted
    del patch, site
    gc.collect()
    model(x_of(seed=1))
    assert calls == [1]
