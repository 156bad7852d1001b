"""One step of a model as it is, patched, and under ``torch.compile``: time and memory, taken in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from auditor.measuring import Call, Prepared, Timings, VersionFailedError, interleave, kept_memory, peak_bytes
from auditor.measuring.clocks import first_us
from auditor.patching.live import Patched
from auditor.patching.state import kept_state
from auditor.patching.step import Inputs, Step, copied_inputs, run_step, writes_inputs


@dataclass(frozen=True)
class ThreeWay:
    """What was measured. ``peak_bytes`` by version: extra memory of one step."""

    timings: Timings
    peak_bytes: dict[str, int]
    compile_first_us: float = 0.0
    """Wall time of the first call under ``torch.compile``, which compiles."""
    notes: list[str] = field(default_factory=list)


def measure_step(
    model: nn.Module, patched: Patched, step: Step, *, compile: bool = True, cap_s: float = 20.0, tight: float = 0.01
) -> ThreeWay:
    """Time ``step`` (with its backward where it has one) on the three versions. The model is left as it was.

    ``torch.compile`` runs with its defaults. Where it fails that is noted, and the two others are compared.
    """
    with kept_state(model), patched.disabled():
        fresh = writes_inputs(model, step)
    versions = {"eager": _unpatched(model, patched, step, fresh), "patched": _patched(model, patched, step, fresh)}
    notes: list[str] = []
    first_call_us = 0.0
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with kept_state(model), kept_memory():
        if compile:
            version = _unpatched(torch.compile(model), patched, step, fresh)
            try:
                first_call_us = first_us(version, device)
                versions["compile"] = version
            except Exception as error:  # the compiler raises many kinds
                notes.append(f"torch.compile of the model fails: {type(error).__name__}: {str(error)[:200]}")
        try:
            timings = interleave(versions, baseline="eager", cap_s=cap_s, tight=tight, device=device)
        except VersionFailedError as failure:
            raise failure.__cause__ or failure from None
        peaks = {name: peak_bytes(call, device) for name, call in versions.items()}
    return ThreeWay(timings, peaks, first_call_us, notes)


def _unpatched(model: Callable[..., object], patched: Patched, step: Step, fresh: bool) -> Call:
    def run(inputs: Inputs) -> object:
        with patched.disabled():
            return _stepped(model, step, inputs)

    return _on_inputs(run, step, fresh)


def _patched(model: nn.Module, patched: Patched, step: Step, fresh: bool) -> Call:
    def run(inputs: Inputs) -> object:
        with patched.enabled():
            return _stepped(model, step, inputs)

    return _on_inputs(run, step, fresh)


def _on_inputs(run: Callable[[Inputs], object], step: Step, fresh: bool) -> Call:
    """A call for the clocks: on the inputs as captured, or on ``fresh`` copies where the step writes to them."""
    if fresh:
        return Prepared(lambda: copied_inputs(step), run)
    return lambda: run((step.args, step.kwargs))


def _stepped(model: Callable[..., object], step: Step, inputs: Inputs) -> object:
    """One step; gradients start anew, so that none is added to those of the step before."""
    if step.has_backward and isinstance(model, nn.Module):
        for parameter in model.parameters():
            parameter.grad = None
    return run_step(model, step, inputs=inputs)
