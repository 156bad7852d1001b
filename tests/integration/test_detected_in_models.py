"""What detectors find in models that train and infer on this CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import auditor
from auditor.audit import Audit
from auditor.document import Finding


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def trained(optimizer: torch.optim.Optimizer, net: Net) -> Audit:
    x = torch.randn(8, 32)
    with auditor.record(steps=1, warmup=1) as rec:
        for _ in range(4):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return rec.audit()


def of_rule(audit: Audit, rule: str) -> list[Finding]:
    return [finding for finding in audit.findings if finding.rule == rule]


def test_an_optimizer_that_steps_one_by_one_is_one_finding_and_its_fused_form_none() -> None:
    net = Net()  # twelve parameters, for each of which AdamW launches eight kernels
    [finding] = of_rule(trained(torch.optim.AdamW(net.parameters(), foreach=False), net), "FUS801")
    assert (finding.sites, finding.phase, finding.variant) == (1, "optimizer", {"optimizer": "AdamW"})
    assert (finding.kernels % 12, finding.kernels_after, finding.provenance) == (0, 2, "observed")
    assert finding.bytes_fused < finding.bytes_now / 2
    assert len(finding.ops) == finding.kernels // 12
    assert finding.instead == "AdamW(…, fused=True)"

    fused = trained(torch.optim.AdamW(net.parameters(), fused=True), net)
    assert of_rule(fused, "FUS801") == []


def test_what_a_cpu_does_not_do_on_lists_is_not_asked_for() -> None:
    net = Net()
    audit = trained(torch.optim.RMSprop(net.parameters()), net)
    assert of_rule(audit, "FUS801") == of_rule(audit, "FUS102") == []


def infer(dtype: torch.dtype | None, net: Net, grad: bool = False) -> Audit:
    x = torch.randn(8, 32)
    with auditor.record(steps=1, warmup=1) as rec:
        for _ in range(4):
            with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
                net(x)
    return rec.audit()


def test_autocast_casts_every_weight_in_every_step_of_inference() -> None:
    [finding] = of_rule(infer(torch.bfloat16, Net()), "FUS902")
    assert (finding.sites, finding.kernels, finding.kernels_after) == (12, 12, 0)
    assert finding.module_class == "Linear"
    assert finding.bytes_fused == 0 < finding.bytes_now
    assert of_rule(infer(None, Net()), "FUS902") == []


@pytest.mark.parametrize("shared", [False, True])
def test_in_training_only_a_second_cast_of_a_weight_is_one_too_many(shared: bool) -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.other = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            second = self.fc if shared else self.other
            for layer in (self.fc, second):
                x = nn.functional.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
            return x

    net, x = Casting(), torch.randn(8, 32, dtype=torch.bfloat16)
    with auditor.record(steps=1, warmup=1) as rec:
        for _ in range(4):
            net(x).float().sum().backward()
            net.zero_grad()
    found = of_rule(rec.audit(), "FUS902")
    assert sum(f.kernels for f in found) == (2 if shared else 0)
    assert all(f.variant == {"again": "in the same step"} for f in found)


def test_a_copy_for_attention_and_a_round_trip_can_go() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = nn.Linear(32, 32)

        def forward(self, q: Tensor, x: Tensor) -> Tensor:
            v = self.v(x).view(2, 8, 4, 8).transpose(1, 2).contiguous()
            y = nn.functional.scaled_dot_product_attention(q, q, v)
            return self.v(y.transpose(1, 2).reshape(2, 8, 32)).to(torch.bfloat16).float() @ x.transpose(1, 2)

    net, q, x = Attention(), torch.randn(2, 4, 8, 8), torch.randn(2, 8, 32)
    with auditor.record(steps=1, warmup=1) as rec, torch.no_grad():
        for _ in range(4):
            net(q, x)
    kinds = {f.variant["kind"]: (f.sites, f.kernels, f.kernels_after) for f in of_rule(rec.audit(), "FUS901")}
    assert kinds == {"read in place": (1, 1, 0), "round trip": (1, 2, 0)}
