"""A live model with replacements in it, and without them again."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.patching.bind import BoundModule, unfit
from auditor.patching.choose import ByPlan
from auditor.patching.patch_site import PatchSite
from auditor.patching.plan import Plan, PlanSite
from auditor.patching.problems import problems
from auditor.patching.rewrite import Chooser, Rewriter
from auditor.patching.tracing import ATTRIBUTE, Entry, forget, is_traced, traced

_patched: weakref.WeakSet[Patched] = weakref.WeakSet()
"""What is patched at the moment, so that nothing is patched twice: a module knows nothing of those that contain it."""


class Patched:
    """A model whose calls run with replacements, until :meth:`undo`.

    No class changes. ``_compiled_call_impl`` of the model leads its calls through the rewritten form (tiers 2 and 3),
    that of single modules to one call (tier 1); parameters, ``state_dict`` and hooks stay as they are. A copy or a
    pickle of the model is the model without replacements.

    Args:
        model: a module, or a data-parallel wrapper around one.
        rules: the rules that find sites.
        chooser: what becomes of a site.
        modules: paths of modules that are one site each, to be bound.
        whole: trace the model itself, for sites that span modules.
        planned: what has to be found, of which it is told if it is not.
        keep: asked with each site; what it turns away is left alone.

    Raises:
        AuditError: the model is compiled, patched or sharded already.
    """

    def __init__(
        self, model: nn.Module, rules: Sequence[Rule], chooser: Chooser, *, modules: Sequence[str] = (),
        whole: bool = True, planned: Sequence[PlanSite] = (), keep: Callable[[Candidate], bool] | None = None,
    ) -> None:  # fmt: skip
        self.model = _inner(model)
        self._on, self.planned = False, list(planned)
        self.rewriter = Rewriter(rules, chooser, model=self.model, keep=keep)
        self.graph_breaks: dict[str, None] = {}
        """Why Dynamo cut the model into several graphs; no site spans a cut."""
        self.unpatched_calls = 0
        """Calls of the whole model in which no graph ran: Dynamo gave up, and the model ran as it is."""
        self.bound = [BoundModule(path, self.model.get_submodule(path), rules, chooser) for path in modules]
        self._entry = Entry(self._watched(traced(self.model, "_call_impl", self.rewriter))) if whole else None
        self.enable()

    @classmethod
    def by_plan(cls, model: nn.Module, rules: Sequence[Rule], plan: Plan) -> Patched:
        """The model with what ``plan`` keeps.

        Raises:
            AuditError: the plan names a module that the model does not have.
        """
        named = sorted({site.module for site in plan.kept})
        known = {path for path, _ in _inner(model).named_modules(remove_duplicate=False)}
        missing = [path for path in named if path not in known]
        if missing:
            raise AuditError(f"the plan names the module {missing[0]!r}, which this {type(model).__name__} lacks.")
        inner = _inner(model)
        # Where the whole is traced the sites of tier 1 are in what is traced anyway.
        whole = any(site.tier > 1 for site in plan.kept) or any(unfit(inner.get_submodule(path)) for path in named)
        return cls(model, rules, ByPlan(plan), modules=() if whole else named, whole=whole, planned=plan.kept)

    @property
    def sites(self) -> list[PatchSite]:
        """Every site of every graph that was traced so far."""
        return [*(site for module in self.bound for site in module.sites), *self.rewriter.sites]

    @property
    def compiles(self) -> int:
        """Graphs of the whole model that Dynamo has traced so far."""
        return len(self.rewriter.frames)

    @property
    def problems(self) -> list[str]:
        """Sentences on what keeps replacements from running: see :func:`auditor.patching.problems.problems`."""
        return problems(self)

    def enable(self) -> None:
        """Lead calls through the rewritten form.

        Raises:
            AuditError: the model is compiled, patched by somebody else or sharded by now.
        """
        if self._on:
            return
        _check(self.model)
        try:
            for module in self.bound:
                module.enable()
            if self._entry is not None:
                self.model.__dict__[ATTRIBUTE] = self._entry
            self._on = True
            _patched.add(self)
        except BaseException:  # a Ctrl-C too
            self.disable()
            raise

    def disable(self) -> None:
        """Lead calls through the model itself; the rewritten form is kept."""
        if self._entry is not None and self.model.__dict__.get(ATTRIBUTE) is self._entry:
            del self.model.__dict__[ATTRIBUTE]
        for module in self.bound:
            module.undo()
        self._on = False
        _patched.discard(self)

    def undo(self) -> None:
        """The model as it was, bit for bit. May be called twice."""
        self.disable()
        for rewriter in (self.rewriter, *(module.rewriter for module in self.bound)):
            forget(rewriter.codes)
            rewriter.restore()

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

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, and what Dynamo made of it written down."""
        from torch._dynamo.utils import counters

        frames, first = self.rewriter.frames, threading.Lock()

        def run(*args: Any, **kwargs: Any) -> Any:
            if is_traced():
                return self.model._call_impl(*args, **kwargs)
            if frames:
                return watched(*args, **kwargs)
            if not first.acquire(blocking=False):  # another thread traces, and two would trace twice
                return self.model._call_impl(*args, **kwargs)
            try:
                return watched(*args, **kwargs)
            finally:
                first.release()

        def watched(*args: Any, **kwargs: Any) -> Any:
            graphs, runs = len(frames), sum(frame.runs for frame in frames)
            known = Counter(counters["graph_break"])
            result = call(*args, **kwargs)
            if len(frames) > graphs:
                self.graph_breaks.update(dict.fromkeys(Counter(counters["graph_break"]) - known))
            elif sum(frame.runs for frame in frames) == runs:
                self.unpatched_calls += 1
            return result

        return run


def _inner(model: nn.Module) -> nn.Module:
    """The module that computes: what a data-parallel wrapper wraps."""
    if not isinstance(model, nn.Module):
        raise AuditError(f"a {type(model).__name__} cannot be patched; give the torch.nn.Module itself.")
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise AuditError("DataParallel copies its model for every call, patches and all; use DistributedDataParallel.")
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        inner: nn.Module = model.module
        return inner
    return model


def _check(model: nn.Module) -> None:
    """Raises AuditError for a model that cannot be patched."""
    parts = set(model.modules())
    if any(model in patched.model.modules() or patched.model in parts for patched in _patched):
        raise AuditError(
            f"{type(model).__name__} is patched already, or a part of it, or what it is a part of; undo that first."
        )
    for name, module in model.named_modules():
        where = f"its module {name!r}" if name else f"this {type(model).__name__}"
        if isinstance(module, torch._dynamo.OptimizedModule) or module.__dict__.get(ATTRIBUTE) is not None:
            raise AuditError(f"{where} is compiled already; patch the model before, or leave it to the compiler.")
        if {"FullyShardedDataParallel", "FSDPModule"} & {kind.__name__ for kind in type(module).__mro__}:
            raise AuditError(f"{where} is sharded (FSDP): patch the model before it is sharded.")
