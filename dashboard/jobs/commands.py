"""What a job runs: a verb of the command line with options of a closed list. Everything that names a file comes from
the store, never from a request.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from auditor.config import load_config
from auditor.errors import AuditError
from auditor.store import Store
from auditor.store.ids import is_id
from auditor.store.jobs import JobRecord
from auditor.store.location import ARTEFACTS_VARIABLE, PLACE_VARIABLE
from auditor.store.registering import registered, why_not
from auditor.store.registrations import Registration
from dashboard.jobs.entry import CODE
from dashboard.jobs.model import Options
from dashboard.jobs.place import Place
from dashboard.jobs.processes import MARK

_RULE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")
_MOST = 1_000_000


@dataclass(frozen=True)
class Work:
    """A command and the folder to run it in."""

    arguments: list[str]
    folder: Path

    def command(self) -> list[str]:
        return [sys.executable, "-c", CODE, str(os.getpid()), *self.arguments]


def checked(options: Options) -> Options:
    """``options`` if a job may have them. Raises :class:`AuditError` with the reason."""
    if len(options.select) > 200 or not all(_RULE.match(rule) for rule in options.select):
        raise AuditError("select: expected ids or names of rules, such as FUS201")
    if not 0 <= options.min_gain <= 10:
        raise AuditError(f"min_gain: expected a share from 0 to 10, not {options.min_gain:g}")
    if options.limit is not None and not 0 <= options.limit <= _MOST:
        raise AuditError(f"limit: expected a number from 0 to {_MOST:,}, not {options.limit}")
    if not 1 <= options.steps <= 10_000:
        raise AuditError(f"steps: expected a number from 1 to 10,000, not {options.steps}")
    return options


def work_of(job: JobRecord, store: Store, place: Place, cap_s: float) -> Work:
    """The command of a job. Raises :class:`AuditError` where it may not run (any more)."""
    options = msgspec.json.decode(job.options, type=Options)
    output = ["--format", "json", "-o", str(place.result(job.id))]
    if job.kind == "import":
        return _import(job, store, place, output)
    registration = _registration(job, store)
    folder = Path(registration.folder)
    if job.kind == "fix":
        arguments = ["fix", registration.run, *_fix_options(options, cap_s), "--plan", str(place.plan(job.id)), *output]
        return Work([*arguments, *_rules(store, options, folder)], folder)
    name = store.summary(job.run).name
    arguments = ["run", "--stop", "--steps", str(options.steps), *([f"--name={name}"] if name else []), *output]
    return Work([*arguments, *_rules(store, options, folder), "--", registration.typed, *registration.args], folder)


def environment(store: Store, job: str = "") -> dict[str, str]:
    """Of a worker's process, or a job's. The store's URL may hold a password: it is not for the list of processes.

    A job runs in the user's folder: a place that is said from ours would be another one there.
    """
    file = store.location.file
    places = {PLACE_VARIABLE: store.location.url if file is None else str(file)}
    places |= {ARTEFACTS_VARIABLE: store.location.artefacts} if file is None else {}
    return {**os.environ, **places, MARK: job, "PYTHONUNBUFFERED": "1"}


def _registration(job: JobRecord, store: Store) -> Registration:
    reason = why_not(store, job.run)
    registration = registered(store, job.run)
    if reason or registration is None:
        raise AuditError(reason)
    return registration


def _fix_options(options: Options, cap_s: float) -> list[str]:
    found = ["--min-gain", repr(options.min_gain), "--time-cap", f"{cap_s:.0f}s"]
    found += ["--keep-all"] if options.keep_all else []
    return found + (["--limit", str(options.limit)] if options.limit is not None else [])


def _rules(store: Store, options: Options, folder: Path) -> list[str]:
    """``--ignore`` stands in place of what the project's settings ignore: those are named, too."""
    off = [setting.rule for setting in store.rule_settings.all().values() if not setting.enabled]
    ignored = [*load_config(folder).ignore, *off] if off else []
    select = ["--select", ",".join(options.select)] if options.select else []
    return select + (["--ignore", ",".join(ignored)] if ignored else [])


def _import(job: JobRecord, store: Store, place: Place, output: list[str]) -> Work:
    upload = store.uploads.get(job.run)
    arguments = ["import", str(place.upload(upload.id, upload.kind)), f"--name={_name(upload.name)}", *output]
    if upload.execution_trace:
        trace = store.uploads.get(upload.execution_trace)
        arguments += ["--execution-trace", str(place.upload(trace.id, trace.kind))]
    folder = place.job(job.id)
    return Work([*arguments, *_rules(store, Options(), folder)], folder)


def _name(upload: str) -> str:
    name = re.sub(r"\.(json|json\.gz|gz)$", "", upload) or "trace"
    return f"trace-{name}" if name == "latest" or is_id(name) else name
