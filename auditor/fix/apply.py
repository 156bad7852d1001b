"""A plan applied to a script that does not know of it: ``fusion-audit run --patch PLAN``, and the audit after a fix.

The models of the plan's class that are alive when one of them is first called are patched then; that call itself still
runs as it is. Nothing but one hook is global, and it is gone before the first patched call: compiled code looks at
hooks, and would be compiled again.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from auditor.collect import notes
from auditor.collect.recording import Recording
from auditor.engine.rules import Rule, load_rules
from auditor.errors import AuditError
from auditor.patching.live import Patched
from auditor.patching.plan import Plan, PlanSite, load_plan

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)
_SHOWN = 3


def attach(path: Path, options: dict[str, Any]) -> PlanApplied:
    """The companion of a recorder that applies the plan in ``path``. ``options["rules"]``: folders of further rules.

    Raises:
        AuditError: it is no plan.
    """
    return PlanApplied(load_plan(path), load_rules([Path(folder) for folder in options.get("rules", ())]))


class PlanApplied:
    """Waits for the plan's model, patches it, and tells in the end what became of the plan's sites."""

    def __init__(self, plan: Plan, rules: Sequence[Rule]) -> None:
        self.plan, self.rules = plan, rules
        self.patched: list[Patched] = []
        self._hook: Any = None
        self._met: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._problems: list[str] = []

    def start(self) -> None:
        """Begin to wait."""
        self._hook = nn_module.register_module_forward_pre_hook(self._called)

    def finish(self, recording: Recording) -> None:
        """The model as it was; ``recording`` tells what was applied, what was called and what was not."""
        self._unhook()
        for patched in self.patched:
            patched.undo()
        applied, _, _ = self._sites()
        recording.plan_sites = len(self.plan.kept)
        recording.plan_applied = sum(site.key in applied for site in self.plan.kept)
        if self.patched:  # what the recorder saw compiled is what the plan traced
            recording.notes = [notes.patched() if n == notes.compiled() else n for n in recording.notes]
        recording.notes += self._notes()

    # --- waiting and patching ----------------------------------------------------------------------

    def _called(self, module: nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling() or not _is_of(module, self.plan.model) or _within_module(sys._getframe(1)):
            return
        self._unhook()
        for model in {id(inner_of(m)): inner_of(m) for m in (module, *_outermost(self.plan.model))}.values():
            self._met.add(model)
            self._patch(model)

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _patch(self, model: nn.Module) -> None:
        try:
            self.patched.append(Patched.by_plan(model, self.rules, self.plan))
        except AuditError as error:  # compiled by the script itself, or sharded
            self._problems.append(f"The plan was not applied: {error}")
        except Exception as error:  # never the script's problem
            self._problems.append(f"The plan was not applied: {type(error).__name__}: {error}")

    # --- what came of it ---------------------------------------------------------------------------

    def _notes(self) -> list[str]:
        kept = self.plan.kept
        if not self._met:
            model = self.plan.model or "of the plan"
            return [f"The plan was not applied: the script called no outermost module of class {model}."]
        if not self.patched:
            return self._problems
        applied, calls, reasons = self._sites()
        called = [site for site in kept if calls[site.key]]
        counts = f"{_were(len(applied))} applied and {_were(len(called))} called"
        told = [f"Patched by a plan: of its {_sites(len(kept))} {counts}."]
        idle = [site for site in kept if site.key in applied and not calls[site.key]]
        if idle:
            told.append(f"Error: applied but never called: {_named(idle)}.")
        missed: dict[str, list[PlanSite]] = {}
        for site in kept:
            if site.key not in applied:
                reason = reasons.get(site.key, "it was not found in the model")
                missed.setdefault(reason, []).append(site)
        told += [f"Not applied: {_named(sites)}: {reason}." for reason, sites in missed.items()]
        return [*told, *self._troubles()]

    def _sites(self) -> tuple[set[Any], Counter[Any], dict[Any, str]]:
        """Keys that were applied, calls by key, and reasons by key where one was found and not applied."""
        applied: set[Any] = set()
        calls: Counter[Any] = Counter()
        reasons: dict[Any, str] = {}
        for site in (site for patched in self.patched for site in patched.sites):
            key = (site.key.rule, site.key.module, site.key.fingerprint, site.key.ordinal)
            if site.chosen is not None:
                applied.add(key)
                calls[key] += site.calls
            elif site.reason:
                reasons[key] = site.reason
        return applied, calls, reasons

    def _troubles(self) -> list[str]:
        told = list(self._problems)
        for patched in self.patched:
            known = ("is not applied", "never called")  # told above, for all models together
            told += [sentence for sentence in patched.problems if not any(words in sentence for words in known)]
        living = {id(inner_of(m)) for m in _outermost(self.plan.model)}
        later = len(living - {id(m) for m in self._met})
        if later:
            told.append(f"{later} more of class {self.plan.model} were made after the first call, and not patched.")
        return told


def inner_of(module: nn.Module) -> nn.Module:
    """What a data-parallel wrapper wraps, else the module itself."""
    inner: nn.Module = module.module if isinstance(module, _WRAPPERS) else module
    return inner


def _is_of(module: Any, name: str) -> bool:
    return name in (type(module).__name__, type(inner_of(module)).__name__)


def _outermost(name: str) -> list[nn.Module]:
    """Living modules of the class ``name`` that are no part of another module."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    parts = {id(part) for module in modules for part in module._modules.values() if part is not None}
    return [module for module in modules if _is_of(module, name) and id(module) not in parts]


def _within_module(frame: FrameType | None) -> bool:
    """Whether the call whose hooks run in ``frame`` was made by another module."""
    own = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_call_impl" and code.co_filename == nn_module.__file__:
            if own is None:
                own = frame.f_locals.get("self")
            elif frame.f_locals.get("self") is not own:
                return True
        frame = frame.f_back
    return False


def _named(sites: Sequence[PlanSite]) -> str:
    """``FUS201 at model.norm, … and 3 more``."""
    shown = ", ".join(f"{site.rule} at {site.module or 'the model itself'}" for site in sites[:_SHOWN])
    return shown if len(sites) <= _SHOWN else f"{shown} and {len(sites) - _SHOWN} more"


def _were(count: int) -> str:
    return f"{count} was" if count == 1 else f"{count} were"


def _sites(count: int) -> str:
    return f"{count} site" if count == 1 else f"{count} sites"
