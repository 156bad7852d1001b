"""Audits for whoever uses ``torch.profiler`` by hand: ``profile(…, on_trace_ready=auditor.trace_handler())``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.api import audit_trace, rules_of
from auditor.config import load_config
from auditor.errors import AuditError
from auditor.integrations import say
from auditor.integrations.after import Place, finish
from auditor.integrations.ranks import TAKES_S, WAIT_S, joining, records
from auditor.integrations.settings import program
from auditor.integrations.trace_export import ExportedTrace, OpenExecutionTrace
from auditor.ranks.join import incomplete
from auditor.stored import Origin

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.ranks.joining import Joining

_MISSING = {
    "record_shapes": ("shapes", "record_shapes=True"),
    "with_stack": ("modules and source lines", "with_stack=True"),
    "execution_trace_observer": (
        "which op reads what another one wrote",
        "execution_trace_observer=ExecutionTraceObserver().register_callback('et.json')",
    ),
}
"""Attribute of a profiler, what it leaves out where that is not set, and what to give it."""


class TraceHandler:
    """What :func:`trace_handler` gives: a profiler calls it with itself."""

    def __init__(
        self, *, times: int, name: str, db: str | Path | None, also: Callable[[Any], Any] | None
    ) -> None:  # fmt: skip
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise AuditError(f"trace_handler: times must be a whole number from 1 on, not {times!r}")
        if also is not None and not callable(also):
            raise AuditError(f"trace_handler: also takes another handler, not {type(also).__name__}")
        self._config = load_config()
        self._rules = rules_of(self._config)
        self._name = name or self._config.name or program()
        self._place = Place(db, Origin.here())
        self._left, self._also = times, also
        self._held: ExportedTrace | None = None
        self._execution = OpenExecutionTrace()
        self._joining: Joining | None = None
        self._arrive()
        self.audits: list[Audit] = []
        """The audits that were made, in order: on rank 0 those of all ranks, on the others their own."""

    def __call__(self, prof: Any) -> None:
        """Audit the trace that is ready, unless enough were; then the other handler has its turn."""
        with say.harmless("the last trace was not given back"):
            self._release()
        if self._left > 0:
            with say.harmless("the training goes on without an audit of this trace"):
                if records():
                    self._left -= 1
                    self._audit(prof)
        if self._also is not None:
            self._also(prof)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def _arrive(self) -> None:
        """Be seen by the other ranks before there is a trace: rank 0 waits for those that will have one."""
        self._joining = None
        with say.harmless("the ranks can't be joined"):
            meeting = joining(self._place.db)
            if meeting is not None:
                meeting.arrive()
            self._joining = meeting

    def _audit(self, prof: Any) -> None:
        audit: Audit | None = None
        note = failure = ""
        try:
            self._held = ExportedTrace(prof)
            audit, trouble = self._read(prof, self._held)
            note = _left_out(prof, trouble)
            audit.document.run.notes += [note] if note else []
        except Exception as error:
            failure = str(error) if isinstance(error, AuditError) else f"{type(error).__name__}: {error}"
            raise
        finally:
            self._take(audit, note, failure)

    def _take(self, audit: Audit | None, note: str, failure: str) -> None:
        """Keep the audit, and store it where this process reports. No rank needs another one to get here."""
        meeting = self._joining
        if meeting is not None:
            handed = meeting.hand_in(audit, failure=failure, wait_s=TAKES_S)
            if not handed:
                say.warn("rank 0 is not there to take this rank's part of the audit: give every rank the handler")
            audit = audit if meeting.here.rank else meeting.joined(WAIT_S)
        if self._left > 0:
            self._arrive()
        if audit is None:
            return
        self.audits.append(audit)
        if meeting is None or not meeting.here.rank:
            for sentence in incomplete(audit.document):
                say.warn(sentence)
            finish(audit, self._place)
            if note:
                say.line(note)

    def _read(self, prof: Any, trace: ExportedTrace) -> tuple[Audit, str]:
        """The audit, with the execution trace where there is one that belongs to it; else why it does not."""
        execution = self._execution.part(prof, trace.path.with_name("et.json"))
        if execution is not None:
            try:
                return self._of(trace.path, execution), ""
            except AuditError as error:
                trouble = str(error).replace(f"{execution}: ", "").replace(str(execution), "the execution trace")
                return self._of(trace.path, None), trouble
        return self._of(trace.path, None), ""

    def _of(self, trace: Path, execution: Path | None) -> Audit:
        return audit_trace(trace, execution, rules=self._rules, config=self._config, name=self._name)


def trace_handler(
    *, times: int = 1, name: str = "", db: str | Path | None = None, also: Callable[[Any], Any] | None = None
) -> TraceHandler:
    """A handler for ``torch.profiler.profile(on_trace_ready=…)`` that audits the trace and stores the run.

    The audit is that of ``fusion-audit import`` on the exported trace, with its execution trace where the profiler has
    an ``execution_trace_observer``. A line on stderr tells of it, and a note of what the profiler did not record.
    Whatever fails in here is said in a warning, and the program goes on. ``handler.audits`` are the audits.

    Args:
        times: traces to audit; a profiler with a schedule makes one each cycle.
        name: of the stored runs; the project's or the program's if none is given.
        db: the store, as ``--db``; the project's own if none is given.
        also: another handler, such as ``tensorboard_trace_handler("log")``: it is called at every cycle.

    Raises:
        AuditError: an argument can't be used, or the project's settings or rules are wrong.
    """
    return TraceHandler(times=times, name=name, db=db, also=also)


def _left_out(prof: Any, trouble: str) -> str:
    """What the profile has not, and what to switch on for it; why its execution trace was left out."""
    missing = [_MISSING[key] for key in _MISSING if not getattr(prof, key, None)]
    parts = [f"The execution trace was left out: {trouble.rstrip('.')}."] if trouble else []
    if missing:
        what, how = (", ".join(words) for words in zip(*missing, strict=True))
        parts.append(f"The profile did not record {what}; switch it on: profile(…, {how}).")
    return " ".join(parts)
