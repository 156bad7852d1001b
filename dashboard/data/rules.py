"""The rules that are there: those of the package and of the folders that the project's settings name."""

from __future__ import annotations

import threading

from auditor.api import rules_of
from auditor.engine.rules import Rule
from dashboard.context import current

_lock = threading.Lock()
_loaded: dict[tuple[str, ...], list[Rule]] = {}


def all_rules() -> list[Rule]:
    """Every rule, sorted by id; read once for each set of folders. AuditError where a rule file is wrong."""
    config = current().config
    key = tuple(config.rules)
    with _lock:
        if key not in _loaded:
            _loaded[key] = rules_of(config)
        return _loaded[key]


def find_rule(wanted: str) -> Rule | None:
    """The rule with this id or name, None where there is none: it may be gone since the run."""
    return next((r for r in all_rules() if wanted.lower() in (r.id.lower(), r.name.lower())), None)
