"""What is taken for a site in a model as people write it, and what becomes of the sites that are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from patched_models import WIDTH, Block, RMSNorm, Small, applied, patched, provide, reasons, step, x_of
from torch import Tensor, nn

from fused_replacements import find

pytestmark = pytest.mark.usefixtures("reference_path")


def test_an_argument_named_out() -> None:
    class Named(RMSNorm):
        def forward(self, out: Tensor, input: Tensor | None = None, *, dtype: Any = None) -> Tensor:  # noqa: ARG002
            return RMSNorm.forward(self, out) + (0.0 if input is None else input)

    model, x = Named(), x_of()
    with patched(model) as patch:
        torch.testing.assert_close(model(out=x), RMSNorm.forward(model, x))
        torch.testing.assert_close(model(x, input=x, dtype=1), RMSNorm.forward(model, x) + x)
        assert applied(patch)[0] == ("", "rms_norm")


def test_one_more_reader_of_an_intermediate_is_the_reason() -> None:
    class Leaking(RMSNorm):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
            return self.weight * (x * inverse), inverse

    model, x = Leaking(), x_of()
    expected = model(x)
    with patched(model) as patch:
        torch.testing.assert_close(model(x), expected)
        refused = [reason for frame in patch.rewriter.frames for _, reason, _ in frame.refused]
        assert "rms_norm" not in [replacement for _, replacement in applied(patch)]
        assert [*refused, *reasons(patch).values()], "no match vanishes without a word"


def test_a_module_that_contains_the_pattern_keeps_the_rest() -> None:
    class Longer(RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(super().forward(x * 2.0)) @ torch.eye(WIDTH) + 1.0

    model, x = Longer(), x_of()
    expected = step(model, x)
    with patched(model) as patch:
        torch.testing.assert_close(step(model, x), expected)
        assert ("", "rms_norm") in applied(patch)


def test_a_keyword_that_a_provider_does_not_know_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return find("rms_norm").reference(x, weight, eps)  # type: ignore[no-any-return]

    provide(monkeypatch, "rms_norm", older)
    model, x = Small(), x_of()
    with patched(model) as patch:
        torch.testing.assert_close(model(x), model.mlp(model.norm(x)))
        assert "unexpected keyword argument" in reasons(patch)["norm"]


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_an_eps_that_is_changed_is_the_new_one(modules: tuple[str, ...]) -> None:
    model, x = Small(), x_of() * 1e-3
    with patched(model, modules=modules) as patch:
        for eps in (1e-6, 1e-2, 1.0):
            model.norm.eps = eps
            result = model(x)
            with patch.disabled():
                torch.testing.assert_close(result, model(x))
        assert patch.unpatched_calls == 0


def test_a_part_that_is_exchanged_is_the_new_one() -> None:
    model, x = Small(), x_of()
    with patched(model) as patch:
        model(x)
        model.norm, model.mlp.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        result = model(x)
        with patch.disabled():
            torch.testing.assert_close(result, model(x))


@pytest.mark.parametrize("shape", [(0, 6, WIDTH), (1, 1, WIDTH), (2, 0, WIDTH), (3, WIDTH), (WIDTH,), (2, 3, 4, WIDTH)])
def test_inputs_of_every_rank_and_of_no_rows(shape: tuple[int, ...]) -> None:
    model, x = Small(), x_of(*shape)
    expected = model(x)
    with patched(model) as patch:
        torch.testing.assert_close(model(x), expected)
        assert patch.unpatched_calls == 0


def test_an_input_that_lies_otherwise() -> None:
    model = Small()
    x = x_of(6, 2, WIDTH).transpose(0, 1)
    wide = x_of(2, 6, 2 * WIDTH)[..., ::2]
    with patched(model) as patch:
        for given in (x, wide, x_of().expand(2, 6, WIDTH)):
            torch.testing.assert_close(model(given), model.mlp(model.norm(given)))
        assert patch.unpatched_calls == 0


def test_a_model_that_writes_in_place_is_right() -> None:
    class Writing(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            x += self.mlp1(self.norm1(x))
            normed = self.norm2(x)
            x.mul_(0.5)
            return x + self.mlp2(normed)

    model, x = Writing(), x_of()
    with torch.no_grad():
        expected = model(x)
        with patched(model) as patch:
            torch.testing.assert_close(model(x), expected)
            assert ("norm1", "rms_norm") in applied(patch)


def test_of_two_steps_after_a_linear_layer_the_library_takes_the_first() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.two(torch.tanh(F.silu(self.one(x))))) * 0.5

    model, x = Twice(), x_of()
    with torch.no_grad():
        expected = model(x)
        with patched(model) as patch:
            torch.testing.assert_close(model(x), expected)
            refused = [site.reason.partition(";")[0] for site in patch.sites if site.chosen is None]
            assert applied(patch) == [("one", "linear_epilogue"), ("two", "linear_epilogue")]
    assert refused == ["no epilogue computes two activations", "no epilogue scales the sum"]


def test_a_model_without_a_site_runs() -> None:
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Identity()), x_of()
    with patched(model) as patch:
        torch.testing.assert_close(model(x), F.linear(x, model[0].weight, model[0].bias))
        assert (patch.sites, patch.problems) == ([], [])


def test_results_that_are_no_tensors() -> None:
    class Telling(Small):
        def forward(self, x: Tensor, names: list[str], **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
            return {"y": super().forward(x), "names": [*names, "z"], "kwargs": kwargs, "rows": x.shape[0]}

    model, x = Telling(), x_of()
    with patched(model) as patch:
        for rows in (2, 2):
            found = model(x, ["a"], scale=2, mask=None)
            torch.testing.assert_close(found.pop("y"), Small.forward(model, x))
            assert found == {"names": ["a", "z"], "kwargs": {"scale": 2, "mask": None}, "rows": rows}
        assert ("norm", "rms_norm") in applied(patch)
