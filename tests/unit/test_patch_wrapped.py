"""Models that are wrapped, hooked or hold tensors of their own kind: patched inside, or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from patched_models import WIDTH, Block, First, RMSNorm, Small, applied, patched, reasons, rules, step, x_of
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree

from auditor.errors import AuditError
from auditor.patching.live import Patched

pytestmark = pytest.mark.usefixtures("reference_path")


class Adapted(nn.Module):
    """A low-rank adapter around a linear layer, in place of it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * 2.0


class Saved(nn.Module):
    """A module to save: the original beside a copy that is trained, of which one is called."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original, self.active = original, RMSNorm()
        self.use = True

    def forward(self, x: Tensor) -> Tensor:
        return self.active(x) if self.use else self.original(x)  # type: ignore[no-any-return]


def test_an_adapter_around_a_linear_layer_is_kept() -> None:
    model, x = Small(), x_of()
    model.mlp.gate = Adapted(model.mlp.gate)
    model.requires_grad_(False)
    for name in ("down", "up"):
        getattr(model.mlp.gate, name).weight.requires_grad_(True)
    expected = step(model, x)
    with patched(model) as patch:
        torch.testing.assert_close(step(model, x), expected)
        assert {("norm", "rms_norm"), ("mlp", "act_mul")} <= set(applied(patch))


def test_of_a_module_to_save_what_is_called_is_patched() -> None:
    model, x = Small(), x_of()
    model.norm = Saved(model.norm)
    with patched(model) as patch:
        torch.testing.assert_close(model(x), model.mlp(model.norm.active(x)))
        assert ("norm.active", "rms_norm") in applied(patch)
        model.norm.use = False
        torch.testing.assert_close(model(x), model.mlp(model.norm.original(x)))
        assert ("norm.original", "rms_norm") in applied(patch)


def test_a_parametrised_weight_is_computed_anew() -> None:
    class Positive(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.exp()

    model, x = Small(), x_of()
    parametrize.register_parametrization(model.norm, "weight", Positive())
    expected = step(model, x)
    keys = list(model.state_dict())
    for modules in ((), ("norm",)):
        with patched(model, modules=modules) as patch:
            torch.testing.assert_close(step(model, x), expected)
            assert ("mlp", "act_mul") in applied(patch)
            with torch.no_grad():
                model.norm.parametrizations.weight.original.mul_(2.0)
            now = model(x)
            with patch.disabled():
                torch.testing.assert_close(now, model(x))
            with torch.no_grad():
                model.norm.parametrizations.weight.original.div_(2.0)
        assert list(model.state_dict()) == keys
    torch.testing.assert_close(step(model, x), expected)


def test_a_module_that_is_used_twice_and_a_tied_weight() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Small()
            self.second = self.first
            self.norm = RMSNorm()
            self.norm.weight = self.first.norm.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.second(self.first(x)))  # type: ignore[no-any-return]

    model, x = Tied(), x_of()
    expected, keys = step(model, x), list(model.state_dict())
    for modules in ((), ("norm", "first.norm")):
        with patched(model, modules=modules) as patch:
            torch.testing.assert_close(step(model, x), expected)
            assert [replacement for _, replacement in applied(patch)].count("rms_norm") >= 3
            assert list(model.state_dict()) == keys
            assert model.norm.weight is model.first.norm.weight


# --- hooks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo's own, at a backward hook
def test_sites_in_and_across_a_hooked_module_are_refused(kind: str) -> None:
    model, x, seen = Block(), x_of(), []
    expected = step(model, x)
    register = getattr(model.norm2, f"register_{kind}_hook")
    register(lambda *args: seen.append(len(args)))
    hooks = {name: list(value) for name, value in vars(model.norm2).items() if "hooks" in name}
    with patched(model) as patch:
        torch.testing.assert_close(step(model, x), expected)
        count = len(seen)
        assert count >= 1
        torch.testing.assert_close(step(model, x), expected)
        assert len(seen) == 2 * count if kind != "full_backward" else len(seen) > count
        hooked = "backward hook" if kind == "full_backward" else kind.replace("_", " ") + " hook"
        refused = [site.reason for site in patch.sites if "hook" in site.reason]
        assert f"norm2 has a {hooked}, which may read or change what is computed there" in refused, reasons(patch)
        assert ("norm1", "rms_norm") in applied(patch)
        assert "add_rms_norm" not in [replacement for _, replacement in applied(patch)]
    assert {name: list(value) for name, value in vars(model.norm2).items() if "hooks" in name} == hooks


def test_a_hook_that_changes_a_result_is_obeyed() -> None:
    model, x = Small(), x_of()
    model.norm.register_forward_hook(lambda _module, _args, output: output * 3.0)
    expected = step(model, x)
    with patched(model) as patch:
        torch.testing.assert_close(step(model, x), expected)
        assert "norm has a forward hook" in reasons(patch)["norm"]


def test_a_hook_around_modules_with_sites_of_their_own_lets_them_be() -> None:
    model, x, seen = nn.Sequential(Small(), Small()), x_of(), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model.register_forward_hook(lambda *_: seen.append(2))
    with patched(model) as patch:
        model(x)
        assert sorted(seen) == [1, 2]
        assert {("0.norm", "rms_norm"), ("0.mlp", "act_mul"), ("1.norm", "rms_norm")} <= set(applied(patch))


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_a_hook_that_is_added_later_fires(modules: tuple[str, ...]) -> None:
    model, x = Small(), x_of()
    with patched(model, modules=modules) as patch:
        result = model(x)
        handle = model.norm.register_forward_hook(lambda _module, _args, output: output * 0.0)
        assert model(x).abs().max() == 0.0
        handle.remove()
        torch.testing.assert_close(model(x), result)
        assert patch.unpatched_calls == 0


def test_a_hooked_module_is_not_bound() -> None:
    model, x = Small(), x_of()
    model.norm.register_forward_hook(lambda *_: None)
    with patched(model, modules=("norm",), whole=False) as patch:
        model(x)
        assert patch.problems == ["norm keeps its own forward: it has a forward hook."]


# --- wrappers of parallel training ---------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
def test_what_a_data_parallel_wrapper_wraps_is_patched() -> None:
    model, x = Small(), x_of()
    expected = step(model, x)
    wrapper = nn.parallel.DistributedDataParallel(model)
    before = list(vars(wrapper))
    with patched(wrapper) as patch:
        assert patch.model is model
        output = wrapper(x)
        output.float().pow(2).mean().backward()
        torch.testing.assert_close(output, expected[0])
        torch.testing.assert_close([p.grad for p in model.parameters()], expected[2:])
        assert patch.compiles == 1
        assert len(applied(patch)) == 3
        assert all(site.calls for site in patch.sites if site.chosen)
    assert list(vars(wrapper)) == before
    model.zero_grad()


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore")
def test_a_sharded_model_is_refused() -> None:
    from torch.distributed.fsdp import fully_shard

    model = Small()
    fully_shard(model.mlp, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    with pytest.raises(AuditError, match=r"'mlp' is sharded \(FSDP\): patch the model before it is sharded"):
        patched(model)


def test_a_wrapper_that_copies_the_model_for_several_devices_is_refused() -> None:
    wrapper, x = nn.DataParallel(Small()), x_of()
    with patched(wrapper) as patch:
        torch.testing.assert_close(wrapper(x), wrapper.module.mlp(wrapper.module.norm(x)))
        assert len(applied(patch)) == 3
    wrapper.device_ids = [0, 1]
    with pytest.raises(AuditError, match="DataParallel copies its model for every call"):
        patched(wrapper)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(AuditError, match=r"a function cannot be patched; give the torch\.nn\.Module itself"):
        Patched(lambda x: x, rules(), First())  # type: ignore[arg-type]


# --- tensors of other kinds ----------------------------------------------------------------------------


class Halves(Tensor):
    """A weight kept as two summands: a kernel that reads its memory would read nothing."""

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Halves:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, first.shape, strides=first.stride(), dtype=first.dtype, device=first.device,
            requires_grad=first.requires_grad,
        )  # fmt: skip

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], _meta: Any, _size: Any, _stride: Any) -> Halves:
        return Halves(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Halves(*(func(part) for part in (args[0].first, args[0].second)))
        args, kwargs = _pytree.tree_map_only(Halves, lambda t: t.first + t.second, (args, kwargs or {}))
        return func(*args, **kwargs)


def test_sites_that_read_a_tensor_subclass_are_refused() -> None:
    model, x = Small(), x_of()
    weight = model.norm.weight.detach()
    model.norm.weight = nn.Parameter(Halves(weight * 0.5, weight * 0.5), requires_grad=False)
    with torch.no_grad(), patched(model) as patch:
        result = model(x)
        norms = [site.chosen for site in patch.sites if site.chosen and site.chosen.replacement == "rms_norm"]
        assert [norm.args[1] for norm in norms] == [None]  # the norm alone; the product with the weight is apart
        assert "Halves" in reasons(patch)["norm"]
        with patch.disabled():
            assert torch.equal(result, model(x))


@pytest.mark.filterwarnings("ignore")
def test_quantised_layers_stay_as_they_are() -> None:
    torch.backends.quantized.engine = "qnnpack" if "qnnpack" in torch.backends.quantized.supported_engines else "fbgemm"
    model = torch.ao.quantization.quantize_dynamic(Small().eval(), {nn.Linear}, dtype=torch.qint8)
    x = x_of(2, 6, WIDTH)
    with torch.no_grad():
        expected = model(x)
        with patched(model) as patch:
            torch.testing.assert_close(model(x), expected)
            assert all(replacement not in ("linear_epilogue", "packed_linear") for _, replacement in applied(patch))
        assert torch.equal(model(x), expected)
