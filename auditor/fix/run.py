"""A stored audit fixed: its script runs again to be patched and measured, and once more with the plan to be audited."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from auditor.api import audit_recording
from auditor.collect.launch import Ended, record_script, watch_script
from auditor.collect.recording import Recording
from auditor.config import Config
from auditor.devices.describe import Device
from auditor.document import Document
from auditor.engine.rules import Rule
from auditor.errors import AuditError, ScriptFailed
from auditor.fix.judge import judged
from auditor.fix.plan_file import left_alone, replaced
from auditor.fix.recommend import recommendations
from auditor.fix.stages import Stages
from auditor.fix_document import FixDocument
from auditor.graph.tables import from_tables, to_tables
from auditor.patching.plan import Plan, load_plan
from auditor.selection import settings_of
from auditor.store import Store, StoredRun

WATCHER = "auditor.fix.pipeline:attach"
PATCHER = "auditor.fix.apply:attach"
RESULT = "fix.json"
PLAN = "plan.yaml"
"""Files that the watcher leaves in its folder."""
AFTER_WARMUP = 3
"""Steps before the audit of the patched script: one unpatched, one that compiles, one for what the compiler redoes."""


@dataclass(frozen=True)
class FixOptions:
    """What the user asked for. ``min_gain`` is a share: 0.01 for 1 %."""

    limit: int | None = None
    min_gain: float = 0.0
    keep_all: bool = False
    compile: bool = True
    cap_s: float = 1800.0
    """Seconds for the script's run, and again for the run with the plan."""


@dataclass
class Fixing:
    """One fix under way, of ``stored``. Nothing is written anywhere until :meth:`finish`."""

    stored: StoredRun
    options: FixOptions
    rules: Sequence[Rule]
    config: Config
    device: Device | None = None
    on_progress: Callable[[str], None] = lambda _sentence: None
    after: tuple[Document, dict[str, Any]] | None = field(default=None, init=False)
    plan: Plan | None = field(default=None, init=False)

    @property
    def script(self) -> list[str]:
        return self.stored.document.run.script

    def look(self) -> FixDocument:
        """The sites that would be tried, as found in the script's model; nothing is measured."""
        with tempfile.TemporaryDirectory(prefix="fusion-audit-") as folder:
            return self._run_script(Path(folder), dry=True)

    def run(self) -> FixDocument:
        """Patch, verify, measure, and audit the patched script.

        Raises:
            ScriptFailed: the script failed before all was measured.
            AuditError: it was killed, took too long, or has no step to measure.
        """
        with tempfile.TemporaryDirectory(prefix="fusion-audit-") as folder:
            document = self._run_script(Path(folder), dry=False)
            plan = Path(folder) / PLAN
            if any(site.state == "kept" for site in document.sites) and plan.exists():
                self.plan = load_plan(plan)
                self._audit_again(document, plan, Path(folder) / "after")
        after = self.after[0] if self.after else None
        judged(document, self.stored.document, after)
        from_tables(self.stored.tables)
        document.recommendations = recommendations(self.stored.document, document)
        return document

    def finish(self, store: Store, document: FixDocument, plan: Path) -> None:
        """Write the plan, whole or not at all, and store the fix with the audit after it: all of it or nothing."""
        if self.after is not None:
            self.after[0].run.plan = str(plan.absolute())
        if self.plan is None:
            document.notes.append(left_alone(plan))
            store.save_fix(document, self.after)
            return
        told = replaced(plan, self.plan, self.stored, store)
        document.notes += [told] if told else []
        document.plan = str(plan)
        with _kept_on_failure(plan):
            _save(self.plan, plan)
            store.save_fix(document, self.after)

    # --- the script, to be fixed -------------------------------------------------------------------

    def _run_script(self, folder: Path, *, dry: bool) -> FixDocument:
        ended, facts = watch_script(
            self.script[0], self.script[1:], watcher=WATCHER, options=self._for_watcher(dry), folder=folder,
            cap_s=self.options.cap_s, progress=Stages(folder, "waiting for a step of the script"),
            done=(folder / RESULT).exists, on_progress=self.on_progress,
        )  # fmt: skip
        document = _read(folder / RESULT)
        if document is None:
            raise _nothing(self.script[0], ended, facts)
        self._describe(document, ended, facts, dry)
        return document

    def _for_watcher(self, dry: bool) -> dict[str, Any]:
        options = self.options
        return {
            "rules": list(self.config.rules),
            "select": [rule.id for rule in self.rules if self.config.chooses(rule.id, rule.name)],
            "suppress": [msgspec.to_builtins(s) for s in self.config.suppress],
            "limit": options.limit, "min_gain": options.min_gain, "keep_all": options.keep_all,
            "compile": options.compile, "dry": dry, "run": self.stored.id,
        }  # fmt: skip

    def _describe(self, document: FixDocument, ended: Ended, facts: Recording, dry: bool) -> None:
        document.run, document.script, document.dry = self.stored.id, list(self.script), dry
        document.created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        document.before = self.stored.document.totals
        changed = changed_since(Path(self.script[0]), self.stored.document.run.created)
        if changed:
            document.notes.insert(0, changed)
        if not ended.reason and (facts.exit_code or ended.code):
            document.exit_code = facts.exit_code or ended.code
            document.notes.append(f"The script failed after that: {facts.error or f'exit code {document.exit_code}'}.")

    # --- the script, patched -----------------------------------------------------------------------

    def _audit_again(self, document: FixDocument, plan: Path, folder: Path) -> None:
        """A patched script that fails is not to be had: what was kept is rolled back, and no plan is left."""
        self.on_progress("the script runs once more, with the plan, to be audited")
        try:
            recording = record_script(
                self.script[0], self.script[1:], warmup=AFTER_WARMUP, folder=folder, stop=True, patcher=PATCHER,
                plan=plan, options={"rules": list(self.config.rules)}, cap_s=self.options.cap_s,
                on_progress=lambda sentence: self.on_progress(f"audit after: {sentence}"),
            )  # fmt: skip
        except AuditError as error:
            self._roll_back(document, str(error))
            return
        if recording.exit_code:
            self._roll_back(document, recording.error or f"exit code {recording.exit_code}")
            return
        if recording.graph_is_first_step:
            document.notes.append(
                "There is no audit after the fix: the script ends too soon. The first step runs as it is, the second "
                "compiles, and one more is needed to record."
            )
            return
        self._keep_audit(recording, folder)

    def _keep_audit(self, recording: Recording, folder: Path) -> None:
        """The audit after looks for what the one before looked for: rules that were left out of this fix, too."""
        asked = settings_of(self.stored.document)
        config = msgspec.structs.replace(self.config, select=asked.select, ignore=asked.ignore, suppress=asked.suppress)
        name = self.stored.document.run.name or self.stored.id
        audit = audit_recording(
            folder, recording, rules=self.rules, device=self.device, config=config, name=f"{name}-patched",
            on_progress=self.on_progress,
        )  # fmt: skip
        self.after = (audit.document, to_tables(audit.graph))

    def _roll_back(self, document: FixDocument, reason: str) -> None:
        self.plan = None
        for site in document.sites:
            if site.state == "kept":
                site.state, site.reason = "rolled_back", f"the patched script failed: {reason}"
        document.notes.append(f"The script failed when it ran with the plan, which was thrown away: {reason}")


def changed_since(script: Path, recorded: str) -> str:
    """A sentence when ``script`` was written to after the time ``recorded`` (ISO 8601), else ""."""
    try:
        changed = script.stat().st_mtime > datetime.fromisoformat(recorded.replace("Z", "+00:00")).timestamp() + 1
    except (OSError, ValueError, OverflowError):
        return ""
    return f"{script} has changed since the run: before and after may differ by more than the plan." if changed else ""


def _save(plan: Plan, path: Path) -> None:
    """Write ``path`` whole or not at all. Raises :class:`AuditError` where it can't be written."""
    try:
        plan.save(path)
    except OSError as error:
        raise AuditError(f"{path} can't be written: {error.strerror or error}; nothing was stored") from error


@contextmanager
def _kept_on_failure(path: Path) -> Iterator[None]:
    """Whatever ends the block early leaves ``path`` with the bytes that it had, or absent."""
    before = path.read_bytes() if path.exists() else None
    try:
        yield
    except BaseException:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)
        raise


def _read(path: Path) -> FixDocument | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=FixDocument)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise AuditError(f"{path.name}: the result of the fix can't be read ({error}); nothing was changed") from error


def _nothing(script: str, ended: Ended, facts: Recording) -> AuditError:
    """Why there is no result. The model lived in the script's process, and nothing was written."""
    end = "No plan was written and nothing was stored."
    if ended.reason:
        return AuditError(f"{script}: the script was ended: {ended.reason}. {end} Raise --time-cap to let it go on.")
    if ended.code < 0:
        name = _signal(-ended.code)
        hint = " (out of memory?)" if -ended.code == signal.SIGKILL else ""
        return AuditError(f"{script}: the script was killed by {name}{hint} before all was measured. {end}")
    if facts.error or ended.code:
        reason = facts.error or f"exit code {ended.code}"
        hint = " (out of memory: try a smaller batch)" if facts.out_of_memory else ""
        return ScriptFailed(f"{script}: the script failed: {reason}{hint}. {end}", ended.code or 1)
    return AuditError(f"{script}: the script ended before a step could be tried; it needs two steps or more. {end}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
