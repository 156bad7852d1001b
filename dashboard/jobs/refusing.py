"""Why a job would be for nothing: its rules are switched off here, or another one does the same already."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from auditor.config import covers
from auditor.engine.rules import Rule
from auditor.report.format import safe
from auditor.store import Store
from dashboard.jobs.model import ENDED, Job, Kind, Options

_ID = re.compile(r"^[A-Z]+[0-9]{3,}$", re.IGNORECASE)


def off_here(store: Store, kind: Kind, options: Options, rules: Callable[[], Sequence[Rule]]) -> str:
    """Why a fix would have no rule left to apply; "" where it has one, or may have.

    ``rules`` reads the rules of the project: asked for only where ``options`` name them by more than their ids.
    """
    off = {setting.rule for setting in store.rule_settings.all().values() if not setting.enabled}
    if kind != "fix" or not off:
        return ""
    left = [chosen for chosen in options.select if chosen.upper() not in off]
    if options.select and not left:
        return _sentence([chosen.upper() for chosen in options.select])
    if any(_ID.match(chosen) for chosen in left):
        return ""
    found = [r.id for r in rules() if not options.select or any(covers(s, r.id, r.name) for s in options.select)]
    return _sentence(found) if found and off.issuperset(found) else ""


def _sentence(rules: list[str]) -> str:
    named = ", ".join(safe(rule) for rule in dict.fromkeys(rules))
    return f"{named} {'is' if len(set(rules)) == 1 else 'are'} switched off here; switch what is wanted on under Rules."


def equal(jobs: Iterable[Job], kind: Kind, run: str, options: Options) -> Job | None:
    """The job that waits or runs and does the very same."""
    wanted = (kind, run, options)
    return next((job for job in jobs if job.state not in ENDED and (job.kind, job.run, job.options) == wanted), None)


def doubled(job: Job) -> str:
    """Why what ``job`` does is not queued again."""
    return f"job {job.id} does the same and is {job.state}; wait until it is through, or cancel it"
