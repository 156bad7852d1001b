"""What a reference to a run means for fixes: the run to be fixed, and the fix that a run leads to.

A run that was recorded under a plan is never fixed: its script would run again without the plan, and before and after
would be of two things.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from auditor.document import Run
from auditor.errors import AuditError
from auditor.fix_document import FixDocument
from auditor.store import Missing, RunFilter, Store, StoredRun


def fixable(store: Store, ref: str) -> StoredRun:
    """The stored run that ``ref`` names: of ``latest`` and of a name the newest that was recorded without a plan.

    Raises:
        AuditError: it was recorded under a plan, is a trace or a simulation, or its script is gone.
    """
    stored = _unpatched(store, ref)
    run = stored.document.run
    if run.source != "profile" or not run.script:
        what = {"trace": "an imported trace", "simulation": "a simulation"}.get(run.source, "no run of a script")
        raise AuditError(
            f"run {stored.id} is {what}: there is no script to run again; make a run with: fusion-audit run script.py"
        )
    if run.world_size > 1:
        raise AuditError(
            f"run {stored.id} is of {run.world_size} ranks, and fix runs a script in one process: make a run of the "
            f"model alone with: fusion-audit run script.py"
        )
    if not Path(run.script[0]).is_file():
        raise AuditError(
            f"{run.script[0]}: the script of run {stored.id} is not here (any more); "
            f"change to the folder where `fusion-audit run {shlex.join(run.script)}` was called"
        )
    return stored


def fix_of(store: Store, ref: str) -> FixDocument:
    """The newest fix of the run that ``ref`` names; of a run under a plan, the fix that wrote the plan.

    Raises:
        AuditError: there is none.
    """
    stored = store.load(ref)
    run = stored.document.run
    try:
        return store.load_fix(stored.id)
    except Missing:
        if not is_patched(run):
            raise
    fix = _that_wrote_its_plan(store, run)
    if fix is None:
        raise Missing(f"run {stored.id} was recorded under {_plan(run)}, and the fix that wrote it is not stored here")
    return fix


def is_patched(run: Run) -> bool:
    """Whether the run was recorded under a plan."""
    return bool(run.plan or run.patched_from)


def _unpatched(store: Store, ref: str) -> StoredRun:
    stored = store.load(ref)
    if not is_patched(stored.document.run):
        return stored
    if ref == "latest" or ref == stored.name != stored.id:
        for line in store.list_runs(RunFilter(name="" if ref == "latest" else ref)):
            if not line.patched_from and not is_patched((found := store.load(line.id)).document.run):
                return found
    raise AuditError(f"run {stored.id} was recorded under {_plan(stored.document.run)}; {_instead(store, stored)}")


def _instead(store: Store, stored: StoredRun) -> str:
    fixed = stored.document.run.patched_from
    if not fixed:
        return "fix the run of the script without it"
    try:
        store.resolve(fixed)
    except Missing:
        return f"the run to fix is {fixed}, which is not stored here"
    return f"fix the run that it is made for: fusion-audit fix {fixed}"


def _that_wrote_its_plan(store: Store, run: Run) -> FixDocument | None:
    """A plan may be written over: it is the newest fix before the run that wrote a file of this name."""
    try:
        fixes = store.fixes(run.patched_from) if run.patched_from else []
    except Missing:
        return None
    name = Path(run.plan).name
    wrote = [fix for fix in fixes if fix.plan and Path(fix.plan).name == name and fix.created <= run.created]
    return wrote[-1] if wrote else None


def _plan(run: Run) -> str:
    return f"the plan {run.plan}" if run.plan else "a plan"
