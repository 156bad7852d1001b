"""packed_linear: parameters stay live under their names, whatever is done to their modules."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fused_replacements import packed_linear
from fused_replacements.horizontal.packed_linear import OP, reference, supports
from fused_replacements.horizontal.packed_linears import PackedLinears, packing_refusal


class Attention(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q_proj = nn.Linear(12, 16, bias=bias)
        self.k_proj = nn.Linear(12, 8, bias=bias)
        self.v_proj = nn.Linear(12, 8, bias=bias)

    def linears(self) -> list[nn.Linear]:
        return [self.q_proj, self.k_proj, self.v_proj]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(linear(x) for linear in self.linears())


def attention(bias: bool = True) -> Attention:
    torch.manual_seed(3)
    return Attention(bias)


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def agree(model: Attention, packed: PackedLinears) -> None:
    """The packed call gives what the modules give, in outputs and all gradients."""
    x = inputs(2, 5, 12).to(model.q_proj.weight.dtype)
    results = []
    for function in (model, packed):
        leaf = x.clone().requires_grad_()
        outputs = function(leaf)
        wanted = [leaf, *model.parameters()]
        grads = torch.autograd.grad(sum((y * y).sum() for y in outputs), wanted)
        results.append([*outputs, *grads])
    for mine, its in zip(*results, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("bias", [True, False])
def test_packing_changes_no_result_no_name_and_no_parameter(bias: bool) -> None:
    model = attention(bias)
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in model.named_parameters()}
    packed = PackedLinears(model.linears(), within=model)
    assert packed.packed
    assert list(model.state_dict()) == list(before)
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])
    agree(model, packed)


def test_packed_weights_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attention()
    packed = PackedLinears(model.linears())
    products: list[tuple[int, ...]] = []
    linear = F.linear

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        products.append(tuple(weight.shape))
        return linear(x, weight, bias)

    calls = OP.forward.calls
    monkeypatch.setattr(F, "linear", counted)
    packed(inputs(3, 12))
    assert products == [(32, 12)]
    assert OP.forward.calls == calls + 1


def test_undo_gives_each_parameter_its_own_storage_with_the_values_of_now() -> None:
    model = attention()
    packed = PackedLinears(model.linears())
    with torch.no_grad():
        model.k_proj.weight.mul_(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    packed.undo()
    assert not packed.packed
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.untyped_storage().nbytes() == parameter.numel() * 4
    agree(model, packed)


def test_an_optimizer_steps_through_the_views() -> None:
    models = [attention(), attention()]
    packed = PackedLinears(models[0].linears())
    for model, function in ((models[0], packed), (models[1], models[1])):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            sum((y * y).sum() for y in function(inputs(4, 12))).backward()
            optimizer.step()
    assert packed.packed
    for mine, its in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, its)


def reloaded(model: Attention) -> None:
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})


def reassigned(model: Attention) -> None:
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def through_a_file(model: Attention) -> None:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))


@pytest.mark.parametrize(
    ("change", "still_packed"),
    [
        (reloaded, True),
        (through_a_file, True),
        (reassigned, False),
        (lambda model: model.double(), False),
        (lambda model: model.bfloat16().float(), False),
        (lambda model: setattr(model.k_proj, "weight", nn.Parameter(torch.randn(8, 12))), False),
    ],
    ids=[
        "load_state_dict",
        "save and load",
        "load_state_dict(assign)",
        "to(float64)",
        "there and back",
        "new parameter",
    ],
)
def test_whatever_happens_to_the_modules_the_result_is_theirs(
    change: Callable[[Attention], object], still_packed: bool
) -> None:
    model = attention()
    packed = PackedLinears(model.linears())
    change(model)
    assert packed.packed is still_packed
    agree(model, packed)
    packed.pack()
    assert packed.packed
    agree(model, packed)


def test_a_copy_of_a_packed_model_is_independent() -> None:
    model = attention()
    PackedLinears(model.linears())
    other = copy.deepcopy(model)
    with torch.no_grad():
        model.q_proj.weight.zero_()
    assert other.q_proj.weight.abs().sum() > 0


def lora(linear: nn.Linear) -> nn.Module:
    class LoraLinear(nn.Linear):
        pass

    wrapped = LoraLinear(linear.in_features, linear.out_features)
    wrapped.load_state_dict(linear.state_dict())
    return wrapped


def refused(change: Callable[[Attention], object]) -> str:
    model = attention()
    change(model)
    reason = packing_refusal(model.linears(), within=model)
    with pytest.raises(ValueError, match=r".") as raised:
        PackedLinears(model.linears(), within=model)
    assert str(raised.value) == reason
    return str(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: setattr(m, "k_proj", lora(m.k_proj)), "LoraLinear is not nn.Linear"),
        (lambda m: setattr(m, "k_proj", nn.Identity()), "Identity is not nn.Linear"),
        (lambda m: setattr(m, "k_proj", nn.Linear(13, 8)), "12 and 13 features"),
        (lambda m: m.k_proj.bfloat16(), "torch.bfloat16"),
        (lambda m: m.k_proj.requires_grad_(False), "frozen"),
        (lambda m: setattr(m.v_proj, "weight", m.k_proj.weight), "share a parameter"),
        (lambda m: setattr(m, "tied", nn.Parameter(m.q_proj.weight.data)), "the model shares"),
        (lambda m: m.q_proj.register_forward_hook(lambda *_: None), "hooks"),
        (lambda m: nn.utils.parametrizations.weight_norm(m.q_proj), "not nn.Linear itself"),
        (lambda m: setattr(m.q_proj, "forward", lambda x: x), "was replaced"),
        (lambda m: PackedLinears(m.linears()), "larger buffer"),
        (lambda m: m.to("meta"), "no strided memory"),
    ],
    ids=[
        "adapter", "other module", "in_features", "dtype", "frozen", "shared", "tied elsewhere", "hook",
        "parametrised", "patched", "packed already", "meta",
    ],
)  # fmt: skip
def test_what_can_not_be_packed_is_refused_with_the_reason(change: Callable[[Attention], object], reason: str) -> None:
    assert reason in refused(change)


def test_one_module_and_five_are_refused() -> None:
    linears = [nn.Linear(3, 3) for _ in range(5)]
    assert "1 modules" in str(packing_refusal(linears[:1]))
    assert "5 modules" in str(packing_refusal(linears))
    with pytest.raises(ValueError, match="5 weights"):
        packed_linear(inputs(2, 3), [linear.weight for linear in linears])
    with pytest.raises(ValueError, match="1 biases"):
        packed_linear(inputs(2, 3), [linear.weight for linear in linears[:2]], [None])


def test_weights_apart_are_still_right_and_supports_says_that_nothing_is_gained() -> None:
    weights = [inputs(4, 6).requires_grad_(), (inputs(6, 5) + 1).t().requires_grad_()]
    x = inputs(3, 6).requires_grad_()
    assert "one behind the other" in str(supports(x, weights))
    found, expected = (
        torch.autograd.grad(sum(y.square().sum() for y in function(x, weights, [None, inputs(5)])), [x, *weights])
        for function in (packed_linear, reference)
    )
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its)


def test_some_weights_may_be_frozen_in_the_function() -> None:
    weights = list(inputs(9, 6).split((4, 5)))
    weights[1].requires_grad_()
    x = inputs(3, 6)
    a, b = packed_linear(x, weights)
    (grad,) = torch.autograd.grad(a.sum() + b.sum(), weights[1])
    torch.testing.assert_close(grad, x.sum(0).expand(5, 6))


def test_gradients_accumulate_into_the_separate_parameters() -> None:
    model, single = attention(), attention()
    packed = PackedLinears(model.linears())
    for _ in range(2):
        sum(y.sum() for y in packed(inputs(4, 12))).backward()
        sum(y.sum() for y in single(inputs(4, 12))).backward()
    for mine, its in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


def test_autocast_is_one_product_in_the_lower_dtype() -> None:
    model = attention()
    packed = PackedLinears(model.linears())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q, *_ = packed(inputs(4, 12))
        expected = model.q_proj(inputs(4, 12))
    assert q.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(q, expected)
    q.float().sum().backward()
    assert model.q_proj.weight.grad is not None
    assert model.q_proj.weight.grad.dtype is torch.float32


def test_a_dtype_that_linear_would_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        packed_linear(inputs(2, 4).double(), list(inputs(4, 4).split(2)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Dynamo, which makes an autograd.Function
def test_it_compiles_as_one_graph_and_follows_the_parameters() -> None:
    model = attention()
    packed = PackedLinears(model.linears())
    compiled = torch.compile(lambda x: packed(x), fullgraph=True, backend="aot_eager")
    x = inputs(4, 12)
    for _ in range(2):
        for mine, its in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(mine, its)
        with torch.no_grad():
            model.v_proj.weight.mul_(3)


def test_gradients_of_gradients_go_through_the_definition() -> None:
    weights = [w.double().requires_grad_() for w in inputs(5, 3).split((2, 3))]
    x = inputs(2, 3).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, *w: packed_linear(x, w), (x, *weights))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Dynamo, about itself
@pytest.mark.parametrize("compiled", [False, True])
def test_results_can_be_written_into_in_place(compiled: bool) -> None:
    def in_place(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
        q, k = packed_linear(x, weights)
        # eager code may even keep k for backward while its sibling is written into
        return q.mul_(2).add_(k * 3 if compiled else k * k.sigmoid()).relu_(), k

    def plain(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
        q, k = reference(x, weights)
        return (q * 2 + (k * 3 if compiled else k * k.sigmoid())).relu(), k

    x, weights = inputs(3, 12).requires_grad_(), [inputs(8, 12).requires_grad_(), (inputs(8, 12) * 2).requires_grad_()]
    torch._dynamo.reset()
    results = []
    for function in (torch.compile(in_place, fullgraph=True) if compiled else in_place, plain):
        outputs = function(x, weights)
        loss = sum((output.square().sum() for output in outputs), torch.zeros(()))
        results.append([*outputs, *torch.autograd.grad(loss, [x, *weights])])
    for mine, its in zip(*results, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("learns", [True, False])
def test_a_write_to_one_result_is_none_to_its_sibling(learns: bool) -> None:
    # GIVEN a result that backward will need
    gate, up = packed_linear(inputs(3, 12), [inputs(8, 12).requires_grad_(learns), inputs(8, 12)])
    scale = inputs(8).requires_grad_()
    expected = up.clone()
    y = up * scale
    # THEN its sibling may be overwritten
    with torch.no_grad():
        gate.zero_()
    torch.testing.assert_close(torch.autograd.grad(y.sum(), scale)[0], expected.sum(0))


def test_the_undo_leaves_biases_alone_that_were_never_packed() -> None:
    # GIVEN q and v with a bias and k without (Whisper), and a state_dict that was taken while they were packed
    q, k, v = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
    packed = PackedLinears([q, k, v])
    kept = q.state_dict()
    packed.undo()
    # THEN it still shows the bias, which never moved, and the weights, which stay where it shows them
    with torch.no_grad():
        q.bias.add_(1)
        q.weight.add_(1)
    assert torch.equal(kept["bias"], q.bias)
    assert torch.equal(kept["weight"], q.weight)
