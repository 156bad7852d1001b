"""Hooks of a model's inner modules: what they are shown has to be what the modules make and are given."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from auditor.patching.region import Unreachable
from auditor.patching.tracing import hook_of


class Hooks:
    """The hooks of a model as they are now. The model's own are outside of every site."""

    def __init__(self, model: nn.Module | None) -> None:
        named = () if model is None else model.named_modules(remove_duplicate=False)
        self._of = {path: hook for path, module in named if path and (hook := hook_of(module))}

    def check(self, modules: Iterable[str]) -> None:
        """``modules``: where the ops of a site are called.

        Raises:
            Unreachable: a hooked module is cut by the site, or calls some of its ops itself.
        """
        if not self._of:
            return
        paths = set(modules)
        for path, hook in self._of.items():
            inside = {other for other in paths if other == path or other.startswith(f"{path}.")}
            if path in inside or (inside and inside != paths):
                raise Unreachable(f"{path} has a {hook}, which may read or change what is computed there")
