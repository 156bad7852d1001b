"""The file that a plan goes to: what lies there already, told before it is replaced or left alone."""

from __future__ import annotations

import shlex
from pathlib import Path

from auditor.errors import AuditError
from auditor.patching.plan import Plan, load_plan
from auditor.store import Missing, Store, StoredRun


def replaced(path: Path, plan: Plan, fixed: StoredRun, store: Store) -> str:
    """A sentence where ``path`` holds anything but an earlier plan of the same script and model; else ""."""
    if not path.exists():
        return ""
    old = _plan_in(path)
    if old is None:
        return f"{path} held something else than a plan, and was replaced."
    script = _script_of(old, store)
    if old.model == plan.model and script == fixed.document.run.script:
        return ""
    return f"{path} held the plan of {_run_of(old, script)}, and was replaced."


def left_alone(path: Path) -> str:
    """A sentence for a fix that keeps nothing and so writes no plan."""
    if not path.exists():
        return "No plan was written."
    old = _plan_in(path)
    if old is None:
        return f"No plan was written; {path} was left alone."
    return f"No plan was written; {path} is of an earlier fix, of {_run_of(old, [])}, and was left alone."


def _plan_in(path: Path) -> Plan | None:
    try:
        return load_plan(path)
    except AuditError:
        return None


def _script_of(plan: Plan, store: Store) -> list[str] | None:
    """The script whose run the plan was made for; None where that is not known here."""
    try:
        return store.summary(plan.run).script if plan.run else None
    except Missing:
        return None


def _run_of(plan: Plan, script: list[str] | None) -> str:
    """``run 1m8nhp3k884m (Llama, train.py --small)``."""
    facts = ", ".join(part for part in (plan.model, shlex.join(script or [])) if part)
    return f"run {plan.run or 'unknown'}{f' ({facts})' if facts else ''}"
