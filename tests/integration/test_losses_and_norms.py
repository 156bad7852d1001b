"""Models of vision, of language and of speech, trained and run on this machine: what the named rules take of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import auditor
from auditor.audit import Audit

Step = Callable[[], Tensor]


def recorded(step: Step, *, train: bool) -> Audit:
    with auditor.record(steps=1, warmup=1) as recording:
        for _ in range(4):
            with torch.set_grad_enabled(train):
                result = step()
            if train:
                result.backward()  # type: ignore[no-untyped-call]
    return recording.audit()


def sites(audit: Audit, rule: str) -> Counter[tuple[str, str]]:
    """Sites of a rule by phase and ops."""
    found: Counter[tuple[str, str]] = Counter()
    for f in audit.findings:
        if f.rule == rule:
            found[f.phase, " ".join(op.removeprefix("aten.") for op in f.ops)] += f.sites
    return found


class BasicBlock(nn.Module):
    """ResNet's: two convolutions, a shortcut, everything after the first in place."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, wider, 3, stride, 1, bias=False), nn.BatchNorm2d(wider)
        self.conv2, self.bn2 = nn.Conv2d(wider, wider, 3, 1, 1, bias=False), nn.BatchNorm2d(wider)
        self.relu = nn.ReLU(inplace=True)
        shortcut = nn.Sequential(nn.Conv2d(channels, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))
        self.shortcut = nn.Identity() if channels == wider else shortcut

    def forward(self, x: Tensor) -> Tensor:
        identity = self.shortcut(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_every_norm_of_a_resnet_but_the_shortcuts_takes_what_follows_it(train: bool) -> None:
    # GIVEN a ResNet of a stem and three blocks, one of them with a norm in its shortcut
    torch.manual_seed(0)
    model, x, classes = ResNet().train(train), torch.randn(2, 3, 16, 16), torch.randint(0, 10, (2,))

    # WHEN it runs
    audit = recorded(lambda: F.cross_entropy(model(x), classes), train=train)

    # THEN each pair and triple is a site, in training their backwards too
    found = sites(audit, "FUS209")
    assert found["forward", "native_batch_norm relu_"] == 4
    assert found["forward", "native_batch_norm add_ relu_"] == 3
    assert found["backward", "threshold_backward native_batch_norm_backward"] == 4 * train
    assert sum(found.values()) == 7 + 7 * train
    forward = [f for f in audit.findings if f.rule == "FUS209" and f.phase == "forward"]
    assert not [m for f in forward for m in f.modules if "shortcut" in m]


class UNetBlock(nn.Module):
    """A diffusion model's: group norm, SiLU and a convolution, twice, and the time between."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 16)
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.time = nn.Linear(8, 16)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_group_norms_of_a_unet_take_their_silu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = UNetBlock().to(dtype)
    x, t = torch.randn(2, 16, 8, 8, dtype=dtype), torch.randn(2, 8, dtype=dtype)
    found = sites(recorded(lambda: model(x, t).square().mean(), train=True), "FUS209")
    assert found == {
        ("forward", "native_group_norm silu"): 2,
        ("backward", "silu_backward native_group_norm_backward"): 2,
    }


CLASSES = torch.arange(32) % 50
LABELS = torch.rand(32, 50, generator=torch.Generator().manual_seed(0))
LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "cross entropy": (lambda z: F.cross_entropy(z, CLASSES), 2, 2),
    "of logits rounded to bf16, cast back": (lambda z: F.cross_entropy(z.bfloat16().float(), CLASSES), 4, 3),
    "smoothed": (lambda z: F.cross_entropy(z, CLASSES, label_smoothing=0.1), 13, 3),
    "of probabilities": (lambda z: F.cross_entropy(z, LABELS), 5, 0),
    "log-probabilities by gather": (lambda z: -z.log_softmax(-1).gather(-1, CLASSES[:, None]).mean(), 4, 2),
    "log-sum-exp less the target's": (lambda z: (z.logsumexp(-1) - z.gather(-1, CLASSES[:, None])[:, 0]).mean(), 4, 0),
    "BCE of probabilities": (lambda z: F.binary_cross_entropy(z.sigmoid(), LABELS), 2, 2),
    "BCE with logits, its backward": (lambda z: F.binary_cross_entropy_with_logits(z, LABELS), 0, 4),
    "BCE by hand": (lambda z: (z.clamp(min=0) - z * LABELS + (-z.abs()).exp().log1p()).mean(), 9, 0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_one_site_forward_and_one_backward(name: str) -> None:
    # GIVEN a model that ends in a loss, in one of its spellings
    torch.manual_seed(0)
    loss, forward, backward = LOSSES[name]
    model, x = nn.Linear(16, 50), torch.randn(32, 16)

    # WHEN it trains
    audit = recorded(lambda: loss(model(x)), train=True)

    # THEN the loss is one site with all its kernels, and so is its backward where the rule knows it
    found = {f.phase: f for f in audit.findings if f.rule == "FUS205"}
    kernels = {phase: (f.sites, f.kernels) for phase, f in found.items()}
    wanted = {"forward": (1, forward), "backward": (1, backward)}
    assert kernels == {phase: counted for phase, counted in wanted.items() if counted[1]}


def test_dropout_and_residual_add_are_one_site_where_no_norm_follows() -> None:
    # GIVEN pre-norm blocks: the second norm reads the first block's sum
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    x = torch.randn(2, 8, 16)

    # WHEN the layer trains
    audit = recorded(lambda: layer(x).square().sum(), train=True)

    # THEN the add before the norm is the norm's, the last one is the dropout's, and the backward between is one site,
    # with the copy of its result that the linear layer before reads
    assert sum(f.sites for f in audit.findings if f.rule == "FUS203") == 1
    assert sites(audit, "FUS208") == {
        ("forward", "bernoulli_ div_ mul add"): 1,
        ("backward", "native_layer_norm_backward add_ mul clone"): 1,
    }


class Quantized(nn.Module):
    """An MLP whose weights are in int8 and whose activations are quantized after the norm."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.register_buffer("weight", torch.randint(-128, 127, (64, 32), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(64, 1) / 128)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.norm(x)
        scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        q = (y / scale).round().clamp(-128, 127).to(torch.int8)
        return F.linear(x, self.weight.float() * self.scale), q, scale


def test_quantized_activations_and_weights_are_sites() -> None:
    torch.manual_seed(0)
    model, x = Quantized(), torch.randn(8, 32)
    with auditor.record(steps=1, warmup=1) as recording, torch.no_grad():
        for _ in range(4):
            model(x)
    audit = recording.audit()
    assert {f.rule: (f.sites, f.kernels) for f in audit.findings} == {"FUS210": (1, 9), "FUS401": (1, 3)}


class Attention(nn.Module):
    """Attention by parts with what ``change`` does to its scores."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.change(q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v


POSITIONS = torch.arange(16)
SLOPES = torch.tensor([0.5, 0.25]).view(2, 1, 1)


def windowed(scores: Tensor) -> Tensor:
    distance = POSITIONS[:, None] - POSITIONS[None]
    return scores.masked_fill(~((distance >= 0) & (distance < 4)), -torch.inf)


VARIANTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "soft-cap": (lambda s: 30.0 * torch.tanh(s / 30.0), "FUS602"),
    "ALiBi": (lambda s: s - SLOPES * (POSITIONS[:, None] - POSITIONS[None]).abs(), "FUS602"),
    "ALiBi, a bias that is added": (lambda s: s + SLOPES * -(POSITIONS[:, None] - POSITIONS[None]).abs(), "FUS602"),
    "sliding window": (windowed, "FUS602"),
    "plain": (lambda s: s, "FUS601"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_attention_whose_scores_are_changed(name: str) -> None:
    torch.manual_seed(0)
    change, rule = VARIANTS[name]
    model, qkv = Attention(change), torch.randn(3, 2, 2, 16, 8)
    audit = recorded(lambda: model(*qkv), train=False)
    found = {f.rule: f.sites for f in audit.findings if f.family == "algorithmic"}
    assert found == {rule: 1}
