"""Small models written by hand, and ways to patch them, for the tests of :mod:`auditor.patching`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from auditor.engine.rules import Rule, load_rules
from auditor.patching.calls import Proposal
from auditor.patching.live import Patched
from auditor.patching.patch_site import PatchSite, SiteKey
from fused_replacements import Provider

WIDTH = 16


class RMSNorm(nn.Module):
    """As Llama's, which is what most models copy."""

    def __init__(self, width: int = WIDTH, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class MLP(nn.Module):
    """Gated, with SiLU."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Half of a decoder layer: two norms, two gated MLPs, residual adds."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.mlp1 = RMSNorm(width), MLP(width)
        self.norm2, self.mlp2 = RMSNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp1(self.norm1(x))
        return x + self.mlp2(self.norm2(x))


class Small(nn.Module):
    """One norm and one gated MLP: two sites."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.mlp = RMSNorm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x))


def x_of(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random input; (2, 6, WIDTH) by default."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (2, 6, WIDTH), generator=generator).to(dtype)


class First:
    """Takes the first proposal of every site, unseen; ``only`` those of some replacements."""

    def __init__(self, only: Sequence[str] = ()) -> None:
        self._only = only

    def passes_over(self, _key: SiteKey) -> str:
        """None."""
        return ""

    def choose(self, site: PatchSite, _nodes: Sequence[fx.Node]) -> tuple[Proposal | None, str]:
        """The first of the replacements that are wanted."""
        for proposal in site.proposals:
            if not self._only or proposal.replacement in self._only:
                return proposal, ""
        return None, "not wanted"


@cache
def rules() -> list[Rule]:
    """The built-in rules."""
    return load_rules()


def patched(model: nn.Module, only: Sequence[str] = (), **options: Any) -> Patched:
    """``model`` with the first proposal of every site."""
    return Patched(model, rules(), First(only), **options)


def applied(patch: Patched) -> list[tuple[str, str]]:
    """Module and replacement of each site that was applied, in order."""
    return [(site.key.module, site.chosen.replacement) for site in patch.sites if site.chosen is not None]


def reasons(patch: Patched) -> dict[str, str]:
    """By module, why the last site there was not applied."""
    return {site.key.module: site.reason for site in patch.sites if site.chosen is None}


def provide(monkeypatch: Any, name: str, function: Callable[..., Any]) -> None:
    """Let a package called ``planted`` be the only one that computes the replacement ``name``."""
    from auditor.patching import proposals

    usual, planted = proposals._providers, Provider("planted", function, lambda *_args, **_kwargs: None)
    monkeypatch.setattr(proposals, "_providers", lambda wanted: (planted,) if wanted == name else usual(wanted))
    # The compiler would be a second candidate.
    monkeypatch.setattr(proposals, "_of_compiler", lambda *_: iter(()))


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradient of the input and of every parameter that learns."""
    x = x.clone().requires_grad_()
    output = model(x)
    learned = [x, *(p for p in model.parameters() if p.requires_grad)]
    grads = torch.autograd.grad(output.float().pow(2).mean(), learned, allow_unused=True)
    return [output.detach(), *(g for g in grads if g is not None)]
