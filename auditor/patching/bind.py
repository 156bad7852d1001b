"""Tier 1: a module that *is* one site is called through that one call, with no tracing at run time.

Whether it is one is found by tracing its forward once, on the first call: the graph must be the site and nothing else.
The form that is bound then serves calls like the one that was traced; calls that are unlike it (other dtypes or ranks,
autocast, another eps) are traced as well, and get a form of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.modules import module as nn_module

from auditor.engine.rules import Rule
from auditor.patching.forms import Form, Signature, form_of
from auditor.patching.patch_site import PatchSite
from auditor.patching.plain import reads_beyond
from auditor.patching.rewrite import Chooser, Rewriter
from auditor.patching.tracing import ATTRIBUTE, HOOKS, Entry, hook_of, is_traced, traced

MOST_FORMS = 8
"""Kinds of calls that one module is traced for; Dynamo's own limit."""
_GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks",
                 "_global_backward_hooks")  # fmt: skip


class BoundModule:
    """One module of a model that is called through forms of its own until :meth:`undo`."""

    def __init__(self, path: str, module: nn.Module, rules: Sequence[Rule], chooser: Chooser) -> None:
        self.path, self.module = path, module
        self.rewriter = Rewriter(rules, chooser, path)
        self.reason = ""
        """Why the module keeps its own forward."""
        self._signature = Signature(module)
        self._forms: dict[object, Form | None] = {}
        self._entry = Entry(self._call)
        self._tracing = threading.Lock()

    @property
    def sites(self) -> list[PatchSite]:
        """The site that the module is, once it was called."""
        return self.rewriter.sites

    def enable(self) -> None:
        """Lead calls of the module through the form that fits; the first call finds out what that is."""
        self.reason = self.reason or unfit(self.module)
        if not self.reason:
            self.module.__dict__[ATTRIBUTE] = self._entry

    def undo(self) -> None:
        """The module as it was."""
        if self.module.__dict__.get(ATTRIBUTE) is self._entry:
            del self.module.__dict__[ATTRIBUTE]

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        form = self._form(args, kwargs)
        if form is None:
            return self.module._call_impl(*args, **kwargs)
        if any(getattr(self.module, hooks) for hooks in HOOKS) or any(getattr(nn_module, h) for h in _GLOBAL_HOOKS):
            return self._among_hooks(form, args, kwargs)
        return form(*args, **kwargs)

    def _among_hooks(self, form: Form, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hooks that were added since are shown what goes in and out, as ever."""
        own = self.module.__dict__
        own["forward"] = form
        try:
            return self.module._call_impl(*args, **kwargs)
        finally:
            own.pop("forward", None)

    def _form(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Form | None:
        """The form for a call like this one; None where the module's own forward has to run."""
        if is_traced() or "forward" in self.module.__dict__:
            return None
        key = self._signature.key(args, kwargs)
        if key is None:
            return None
        if key not in self._forms and len(self._forms) < MOST_FORMS:
            return partial(self._first_call, key)
        return self._forms.get(key)

    def _first_call(self, key: object, *args: Any, **kwargs: Any) -> Any:
        """Runs the forward once, traced, and keeps the form that is found. Other threads run the module's own."""
        if not self._tracing.acquire(blocking=False):
            return type(self.module).forward(self.module, *args, **kwargs)
        before = len(self.sites)
        form, reason = None, "it is not one site and nothing else"
        try:
            graph, result = _graph(self.module, self.rewriter, args, kwargs)
            if graph is not None:
                form = form_of(self.module, graph, self._signature.names)
        except Exception as error:  # whatever Dynamo raises on a forward that it can't trace, or the forward itself
            reason = f"it cannot be traced: {type(error).__name__}"
            result = type(self.module).forward(self.module, *args, **kwargs)
        finally:
            self._tracing.release()
        self._forms[key] = form
        if form is None:
            self._refuse(self.sites[before:], reason)
        return result

    def _refuse(self, sites: Sequence[PatchSite], reason: str) -> None:
        reason = next((site.reason for site in sites if site.reason), reason)
        self.reason = self.reason or reason
        for site in sites:
            site.chosen, site.call, site.reason = None, None, reason


def unfit(module: nn.Module) -> str:
    """Why ``module`` can't be called through forms; empty where it can. Tracing what holds it still reaches it."""
    if "forward" in module.__dict__:
        return "its forward is replaced already, by somebody else"
    if next(module.children(), None) is not None:
        return "there are modules in it"
    if hook_of(module):
        return f"it has a {hook_of(module)}"
    return Signature(module).unfit or reads_beyond(module)


def _graph(
    module: nn.Module, rewriter: Rewriter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[fx.Graph | None, Any]:
    """The graph of the whole forward with sites exchanged, None where it is several graphs; and what it returned."""
    graphs: list[fx.Graph] = []

    def backend(found: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = rewriter(found, inputs)
        graphs.append(found.graph)
        return call

    result = traced(module, "forward", backend)(*args, **kwargs)
    return (graphs[0] if len(graphs) == 1 and isinstance(result, Tensor) else None), result
