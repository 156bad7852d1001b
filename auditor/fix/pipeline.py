"""Inside the script's process: capture a step, patch its model, verify, measure, and write down what came of it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from auditor.collect.recorder import StopScript
from auditor.engine.rules import load_rules
from auditor.fix.inputs import CapturedCall, CapturedStep, InputCapture
from auditor.fix.options import Options
from auditor.fix.repair import Repair
from auditor.fix.stages import write as write_stage
from auditor.fix_document import FixDocument
from auditor.patching.plan import Plan

RESULT = "fix.json"
PLAN = "plan.yaml"


def attach(folder: Path, options: dict[str, Any]) -> InputCapture:
    """The watcher of a script that is run to be fixed: it ends the script once ``folder`` holds the result."""
    given = msgspec.convert(options, Options)

    def then(step: CapturedStep) -> None:
        document, plan = fixed(step, given, lambda stage: write_stage(folder, stage))
        if plan is not None and plan.kept:
            plan.save(folder / PLAN)
        write(folder, document)
        raise StopScript(0)

    return InputCapture(then)


def write(folder: Path, document: FixDocument) -> None:
    """Write the result, whole or not at all."""
    scratch = folder / f".{RESULT}.{os.getpid()}"
    scratch.write_bytes(msgspec.json.encode(document))
    os.replace(scratch, folder / RESULT)


def fixed(
    step: CapturedStep, options: Options, say: Callable[[str], None] = lambda _stage: None
) -> tuple[FixDocument, Plan | None]:
    """Patch, verify and measure the model of ``step``; of several models the largest. It is unpatched afterwards.

    ``say`` is told each stage.
    """
    call = _largest(step)
    document = FixDocument(run=options.run, model=type(call.module).__name__, kind=step.kind)
    others = sorted({c.name for c in step.calls if c.module is not call.module})
    if others:
        document.notes.append(
            f"Only {call.name}, the largest, was patched; the step calls {', '.join(others)} too. To fix another, run "
            "and fix a script that calls it alone."
        )
    repair = Repair(call, load_rules([Path(folder) for folder in options.rules]), options, document, say)
    try:
        return document, repair.run()
    except Exception as error:  # ours, or of the model on inputs that it took before
        document.failure = f"The fix ended early: {type(error).__name__}: {error}"
        document.notes.append(document.failure)
        document.notes.append(traceback.format_exc(limit=-3))
        return document, None


def _largest(step: CapturedStep) -> CapturedCall:
    """By the number of parameters: of a text encoder and a denoiser the denoiser."""
    return max(step.calls, key=lambda call: sum(p.numel() for p in call.module.parameters()))
