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
from auditor.patch.rewrite import Chooser, PatchSite, Rewriter

ATTRIBUTE = "_compiled_call_impl"
"""Where ``nn.Module.__call__`` looks for a compiled form of the module. Copies and pickles of a module leave it out."""


class Patched:
    """A model whose calls run with replacements, until :meth:`undo`.

    Nothing is global and no class changes: one attribute of the model itself leads calls through the rewritten form.
    The module, its parameters, ``state_dict`` and hooks stay as they are. A copy or a pickle of the model is the
    model without replacements.
    """

    def __init__(self, model: nn.Module, rules: Sequence[Rule], chooser: Chooser) -> None:
        self.model = _inner(model)
        _check(self.model)
        self.rewriter = Rewriter(rules, chooser)
        self.graph_breaks: dict[str, None] = {}
        """Why Dynamo cut the model into several graphs; no site spans a cut."""
        self._call = _compiled(self.model, self.rewriter, self.graph_breaks)
        self.enable()

    @property
    def sites(self) -> list[PatchSite]:
        """Every site of every graph that was traced so far."""
        return self.rewriter.sites

    @property
    def compiles(self) -> int:
        """Graphs that Dynamo has traced so far."""
        return len(self.rewriter.frames)

    def enable(self) -> None:
        """Lead calls through the rewritten form."""
        self.model.__dict__[ATTRIBUTE] = self._call

    def disable(self) -> None:
        """Lead calls through the model itself; the rewritten form is kept."""
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
        before = ATTRIBUTE in self.model.__dict__
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
