"""A live model with replacements in it, and without them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.patch.bind import BoundModule
from auditor.patch.choose import ByPlan
from auditor.patch.plan import Plan
from auditor.patch.rewrite import Chooser, PatchSite, Rewriter

ATTRIBUTE = "_compiled_call_impl"
"""Where ``nn.Module.__call__`` looks for a compiled form of the module. Copies and pickles of a module leave it out."""


class Patched:
    """A model whose calls run with replacements, until :meth:`undo`.

    Nothing is global and no class changes. ``_compiled_call_impl`` of the model leads calls through the rewritten form
    (tiers 2 and 3), ``forward`` of single modules to one call (tier 1); parameters, ``state_dict`` and hooks stay as
    they are. A pickle of the model is the model without replacements, and a copy has at most those of tier 1.

    Args:
        model: a module, or a data-parallel wrapper around one.
        rules: the rules that find sites.
        chooser: what becomes of a site.
        modules: paths of modules that are one site each, to be bound.
        whole: trace the model itself, for sites that span modules.

    Raises:
        AuditError: the model is compiled, patched or sharded already.
    """

    def __init__(
        self, model: nn.Module, rules: Sequence[Rule], chooser: Chooser, *, modules: Sequence[str] = (),
        whole: bool = True,
    ) -> None:  # fmt: skip
        self.model = _inner(model)
        _check(self.model)
        self.rewriter = Rewriter(rules, chooser)
        self.graph_breaks: dict[str, None] = {}
        """Why Dynamo cut the model into several graphs; no site spans a cut."""
        self.bound = [BoundModule(path, self.model.get_submodule(path), rules, chooser) for path in modules]
        self._call = _compiled(self.model, self.rewriter, self.graph_breaks) if whole else None
        self.enable()

    @classmethod
    def by_plan(cls, model: nn.Module, rules: Sequence[Rule], plan: Plan) -> Patched:
        """The model with what ``plan`` keeps.

        Raises:
            AuditError: the plan names a module that the model does not have.
        """
        modules = sorted({site.module for site in plan.kept if site.tier == 1})
        known = dict(_inner(model).named_modules())
        missing = [path for path in modules if path not in known]
        if missing:
            raise AuditError(f"the plan names the module {missing[0]!r}, which this {type(model).__name__} lacks.")
        whole = any(site.tier > 1 for site in plan.kept)
        return cls(model, rules, ByPlan(plan), modules=modules, whole=whole)

    @property
    def sites(self) -> list[PatchSite]:
        """Every site of every graph that was traced so far."""
        return [*(site for module in self.bound for site in module.sites), *self.rewriter.sites]

    @property
    def compiles(self) -> int:
        """Graphs of the whole model that Dynamo has traced so far."""
        return len(self.rewriter.frames)

    def enable(self) -> None:
        """Lead calls through the rewritten form."""
        self._on = True
        for module in self.bound:
            module.enable()
        if self._call is not None:
            self.model.__dict__[ATTRIBUTE] = self._call

    def disable(self) -> None:
        """Lead calls through the model itself; the rewritten form is kept."""
        self._on = False
        for module in self.bound:
            module.undo()
        self.model.__dict__.pop(ATTRIBUTE, None)

    def undo(self) -> None:
        """The model as it was, bit for bit. May be called twice."""
        self.disable()

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """With replacements inside of the block."""
        yield from self._set(self.enable)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Without replacements inside of the block."""
        yield from self._set(self.disable)

    def _set(self, change: Callable[[], None]) -> Iterator[None]:
        before = self._on
        change()
        try:
            yield
        finally:
            self.enable() if before else self.disable()

    def __enter__(self) -> Patched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.undo()


def _compiled(model: nn.Module, rewriter: Rewriter, breaks: dict[str, None]) -> Callable[..., Any]:
    """``model.__call__`` through Dynamo. Sizes are symbolic from the first call on, so that lengths share a graph;
    floats are constants, which an eps has to be to be found.
    """
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    traced = torch.compile(model._call_impl, backend=rewriter, dynamic=True)
    patch = config.patch(specialize_float=True)

    def call(*args: Any, **kwargs: Any) -> Any:
        graphs, known = len(rewriter.frames), set(counters["graph_break"])
        with patch:
            result = traced(*args, **kwargs)
        if len(rewriter.frames) > graphs:
            breaks.update(dict.fromkeys(reason for reason in counters["graph_break"] if reason not in known))
        return result

    return call


def _inner(model: nn.Module) -> nn.Module:
    """The module that computes: what a data-parallel wrapper wraps."""
    if not isinstance(model, nn.Module):
        raise AuditError(f"a {type(model).__name__} cannot be patched; give the torch.nn.Module itself.")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        inner: nn.Module = model.module
        return inner
    return model


def _check(model: nn.Module) -> None:
    """Raises AuditError for a model that cannot be patched."""
    if isinstance(model, torch._dynamo.OptimizedModule) or model.__dict__.get(ATTRIBUTE) is not None:
        raise AuditError(
            f"{type(model).__name__} is compiled or patched already; undo that first: the compiler fuses by itself."
        )
    for name, module in model.named_modules():
        if type(module).__name__ in ("FullyShardedDataParallel", "FSDPModule"):
            raise AuditError(f"{name or 'the model'} is sharded (FSDP): patch the model before it is sharded.")
