"""What a callback is told: checked when it is made, not when the training is an hour old."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from auditor.api import rules_of
from auditor.config import Config, Written, load_config, settings_file
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.gate.budget import Demands, file_demands, project_demands
from auditor.gate.given import keyed_demands

Budget = bool | str | Path | Mapping[str, Any] | None
OverBudget = Literal["warn", "raise"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one callback: those of the project, and its own on top."""

    step: int
    steps: int
    config: Config
    rules: list[Rule]
    demands: Demands
    raises: bool
    name: str
    db: str | Path | None


def settings(
    *, step: int, steps: int, name: str, db: str | Path | None, budget: Budget, over_budget: OverBudget
) -> Settings:
    """The arguments of a callback, checked.

    Raises:
        AuditError: one of them can't be used, or the project's settings or rules are wrong.
    """
    for key, value in (("step", step), ("steps", steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise AuditError(f"FusionAuditCallback: {key} must be a whole number from 1 on, not {value!r}")
    if over_budget not in get_args(OverBudget):
        raise AuditError(f"FusionAuditCallback: over_budget is 'warn' or 'raise', not {over_budget!r}")
    config = load_config()
    rules = rules_of(config)
    demands = _demands(budget, [(rule.id, rule.name) for rule in rules])
    return Settings(step, steps, config, rules, demands, over_budget == "raise", name or config.name or program(), db)


def program() -> str:
    """What the run is called otherwise: as ``fusion-audit run`` calls that of the script; a package by its name."""
    path = Path(sys.argv[0] or "training")
    return (path.parent if path.name == "__main__.py" else path).name.removesuffix(".py") or "training"


def _demands(budget: Budget, known: list[tuple[str, str]]) -> Demands:
    if budget is None or budget is False:
        return Demands()
    if budget is True:
        return _project(known)
    if isinstance(budget, Mapping):
        written = Written(Path("FusionAuditCallback"), "budget", lambda _: None)
        return keyed_demands(budget, written, known, why_no_increase="a training has no baseline")
    if isinstance(budget, (str, Path)):
        return file_demands(Path(budget), known)
    raise AuditError(f"FusionAuditCallback: budget is True, a file or a dict of limits, not {type(budget).__name__}")


def _project(known: list[tuple[str, str]]) -> Demands:
    demands = project_demands(known)
    if not demands:
        file = settings_file()
        where = f"{file} sets none" if file else f"there is no pyproject.toml at {Path.cwd()}"
        raise AuditError(
            f"FusionAuditCallback: budget=True, and there is no budget: {where}; write limits under "
            "[tool.fusion-audit], such as max_unfused_kernels = 0, or give them: budget={'max_unfused_kernels': 0}"
        )
    return demands
