"""``auditor.patch`` and ``auditor.measure``: a plan on a live model, and what it gains there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from auditor.collect.device import autocast_dtype
from auditor.config import load_config
from auditor.engine.rules import Rule, load_rules
from auditor.errors import AuditError
from auditor.patching.choose import ByMeasuring, Choice
from auditor.patching.live import Patched
from auditor.patching.plan import Plan, load_plan
from auditor.patching.state import kept_state
from auditor.patching.step import Step, run_step
from auditor.patching.threeway import ThreeWay, measure_step

if TYPE_CHECKING:
    from auditor.document import Document


def patch(model: nn.Module, plan: Any) -> Patched:
    """Run ``model`` with fused replacements, inside ``with auditor.patch(model, "plan.yaml"):`` or until ``.undo()``.

    Args:
        model: a live model. Only this instance changes.
        plan: a plan, its file, or an audit. Of an audit every site is applied whose replacement is right on random
            inputs; a plan was measured as well.

    Raises:
        AuditError: the plan can't be read or is of another model, or the model can't be patched.
    """
    if isinstance(plan, (str, Path)):
        plan = load_plan(plan)
    if isinstance(plan, Plan):
        _check_model(model, plan)
        return Patched.by_plan(model, _rules(), plan)
    document: Document | None = getattr(plan, "document", None)
    if document is None:
        raise AuditError(f"{type(plan).__name__} {plan!r:.60} is neither a plan, nor the file of one, nor an audit.")
    found = {finding.rule for finding in document.findings}
    return Patched(model, _rules(), ByMeasuring(Choice(keep_all=True, wanted=found.__contains__), timed=False))


@dataclass(frozen=True)
class Measured:
    """A model as it is, patched, and under ``torch.compile``. Times in microseconds of one call, memory in bytes."""

    threeway: ThreeWay
    calls: int
    """How often replacements ran in one call."""

    def __str__(self) -> str:
        times, lines = self.threeway.timings, []
        for name, median in times.median_us.items():
            ratio = times.ratio(name)
            gain = "" if name == "eager" else f"  {ratio.ratio:.3f} × ({ratio.low:.3f} to {ratio.high:.3f})"
            peak = self.threeway.peak_bytes[name] / 2**20
            lines.append(f"{name:<8} {median:>12,.1f} µs  peak {peak:,.1f} MiB{gain}")
        return "\n".join([*lines, *self.threeway.notes])


def measure(model: nn.Module, example_inputs: Any, plan: Any, *, compile: bool = True, cap_s: float = 20.0) -> Measured:
    """Time ``model`` on ``example_inputs`` eager, patched with ``plan``, and under ``torch.compile``, in turns.

    ``example_inputs`` are the arguments: a tuple, a mapping of keyword arguments, or one tensor. With gradients enabled
    and the model in training mode, the backward of its scalar outputs is a part of the step.

    Raises:
        AuditError: as :func:`patch`; or no replacement of the plan ran.
    """
    step = _step(model, example_inputs)
    with patch(model, plan) as patched:
        with kept_state(model):
            run_step(model, step)
            before = [site.calls for site in patched.sites]
            run_step(model, step)
        calls = sum(s.calls for s in patched.sites) - sum(before)
        if not calls:
            raise AuditError("no replacement of the plan ran on these inputs: it was made for another model or shape.")
        return Measured(measure_step(patched.model, patched, step, compile=compile, cap_s=cap_s), calls)


def _step(model: nn.Module, inputs: Any) -> Step:
    if isinstance(inputs, list):
        raise AuditError("example_inputs is a list; give a tuple of the arguments, a mapping of names, or one tensor.")
    args = () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    kwargs = inputs if isinstance(inputs, Mapping) else {}
    kind = next((p.device.type for p in model.parameters()), "cpu")
    dtype = autocast_dtype(kind)
    return Step(
        args=args, kwargs=kwargs, grad_enabled=torch.is_grad_enabled(), training=model.training,
        autocast=(kind, dtype) if dtype else None,
        inference_mode=torch.is_inference_mode_enabled(),
    )  # fmt: skip


def _check_model(model: nn.Module, plan: Plan) -> None:
    name = type(getattr(model, "module", model)).__name__
    if plan.model and plan.model not in (name, type(model).__name__):
        raise AuditError(f"the plan is for a {plan.model}, this model is a {name}.")


def _rules() -> list[Rule]:
    return load_rules([Path(folder) for folder in load_config().rules])
