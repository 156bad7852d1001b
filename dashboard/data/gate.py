"""The verdict on a stored run, as ``fusion-audit gate`` gives it: held to its project's budget and to another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auditor.api import rules_of
from auditor.commit import repository_of
from auditor.config import load_config, settings_file
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.gate.baseline import Baseline, stored_baseline
from auditor.gate.budget import Demands, project_demands
from auditor.gate.comparable import check_comparable
from auditor.gate.snapshot import snapshot_of
from auditor.gate.verdict import judge
from auditor.gate_document import GateDocument
from auditor.project import project_of
from auditor.store import RunSummary, StoredRun
from auditor.store.registering import registered
from dashboard.context import current
from dashboard.data.rules import all_rules
from dashboard.data.stored import head, stored


@dataclass(frozen=True)
class Judged:
    """The verdict on a run, None where nothing is demanded of it; and whose budget that is."""

    gate: GateDocument | None
    demands: Demands
    file: str = ""
    """That holds the budget; empty where no project is known, or where it has no file of settings."""
    problems: list[str] = field(default_factory=list)
    """Why the budget or the baseline could not be used, a sentence each."""


def judged(run: RunSummary, baseline: str = "") -> Judged:
    """Hold ``run`` to the budget of its project, and to the run ``baseline`` where one is named.

    AuditError where ``run`` is not there. What is wrong with the budget or the baseline is among the problems.
    """
    problems: list[str] = []
    folder = project_folder(run)
    try:
        demands, rules = _demanded(folder)
    except AuditError as error:
        problems.append(str(error))
        demands, rules = Demands(), all_rules()
    held = _stored(run.id, demands)
    against = _baseline(baseline, held, problems) if baseline else None
    root = repository_of(folder or Path.cwd())
    gate = (
        judge(held, demands, against, rules, store=current().store, root=root)
        if demands or against is not None
        else None
    )
    file = settings_file(folder) if folder else None
    return Judged(gate, demands, str(file) if file else "", problems)


def project_folder(run: RunSummary) -> Path | None:
    """Where the run's project has its settings: the folder it ran in, or that of the service if it is of the same."""
    registration = registered(current().store, run.id)
    if registration is not None and Path(registration.folder).is_dir():
        return Path(registration.folder)
    here = current().folder
    return here if run.project in ("", project_of(here)) else None


def _demanded(folder: Path | None) -> tuple[Demands, Sequence[Rule]]:
    """The budget as it stands in the file now: who edits it and looks again sees the edit."""
    if folder is None:
        return Demands(), all_rules()
    rules = rules_of(load_config(folder))
    return project_demands([(rule.id, rule.name) for rule in rules], folder), rules


def _stored(run: str, demands: Demands) -> StoredRun:
    """With its sites only where a limit asks for them: a large run is there in a third of the time without."""
    by_module = any(limit.scope.modules for limit in demands.limits)
    return stored(run) if by_module else head(run)


def _baseline(ref: str, run: StoredRun, problems: list[str]) -> Baseline | None:
    try:
        baseline = stored_baseline(ref, current().store, head)
        check_comparable(baseline.snapshot.run, snapshot_of(run.document).run, baseline.label)
    except AuditError as error:
        problems.append(str(error))
        return None
    return baseline
