"""Linear layers on one input become one product: their weights are moved into one buffer, and back."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from patched_models import WIDTH, applied, patched, reasons, step, x_of
from torch import Tensor, nn

from fused_replacements.horizontal.packed_linears import adjacent

pytestmark = pytest.mark.usefixtures("reference_path")


class Projections(nn.Module):
    """q, k and v of grouped heads, viewed as heads."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // 2, bias=bias) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).view(*x.shape[:-1], -1, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = (torch.repeat_interleave(part, 2, 1) for part in (k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def weights(model: Projections) -> list[Tensor]:
    return [model.q.weight, model.k.weight, model.v.weight]


@pytest.mark.parametrize("bias", [False, True])
def test_weights_are_packed_and_moved_back(bias: bool) -> None:
    model, x = Projections(bias), x_of()
    held, expected = weights(model), step(model, x)
    with patched(model, ["packed_linear"]) as patch:
        torch.testing.assert_close(step(model, x), expected)
        assert [replacement for _, replacement in applied(patch)] == ["packed_linear"]
        assert all(site.calls for site in patch.sites if site.chosen)
        assert adjacent(weights(model))
        assert all(now is before for now, before in zip(weights(model), held, strict=True))
    assert len({weight.untyped_storage().data_ptr() for weight in weights(model)}) == 3
    assert all(w.untyped_storage().nbytes() == w.numel() * w.element_size() for w in weights(model))
    assert all(map(torch.equal, step(model, x), expected))


def test_a_new_shape_finds_the_weights_packed_and_needs_no_second_move() -> None:
    model = Projections()
    with torch.no_grad(), patched(model, ["packed_linear"]) as patch:
        model(x_of(2, 6, WIDTH))
        model(x_of(1, 6, WIDTH))
        assert len(patch.rewriter.undoing) == 1
        assert all(site.chosen and site.calls for site in patch.sites if site.proposals)


def test_what_is_trained_while_packed_is_kept_by_the_undo() -> None:
    model, twin, x = Projections(), None, x_of()
    twin = copy.deepcopy(model)
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        patch = patched(each, ["packed_linear"]) if each is model else None
        for _ in range(3):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
        if patch is not None:
            patch.undo()
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_files_and_copies_of_a_packed_model_are_those_of_the_model() -> None:
    model, x = Projections(), x_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad(), patched(model, ["packed_linear"]):
        expected = model(x)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        twin = copy.deepcopy(model)
    loaded = torch.load(io.BytesIO(file.getvalue()))
    assert list(loaded) == list(before)
    assert all(torch.equal(loaded[name], value) for name, value in before.items())
    torch.testing.assert_close(twin(x), expected)


def test_weights_that_are_used_elsewhere_stay_where_they_are() -> None:
    model = Projections()
    model.tied = nn.Linear(WIDTH, WIDTH, bias=False)
    model.tied.weight = model.q.weight
    pointers = [weight.data_ptr() for weight in weights(model)]
    with torch.no_grad(), patched(model, ["packed_linear"]) as patch:
        model(x_of())
        assert not applied(patch)
        assert any("shares a parameter with one of the modules" in reason for reason in reasons(patch).values())
    assert [weight.data_ptr() for weight in weights(model)] == pointers
