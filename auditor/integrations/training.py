"""One step of a training, audited once: what the callbacks of all trainers have in common.

A trainer's callback says where optimizer steps begin and end. From the chosen one on they are recorded, with the passes
and the order of :class:`auditor.collect.recorder.Recorder`, and marked by hand: forward and backward passes that a step
accumulates, what clips its gradients and what its callbacks compute belong to it; evaluations in between do not.

Under `torchrun` each rank hands in its part when it is through. Rank 0 never waits for one within the training, where
the others may need it to get there: it looks at the end of every step whether all are there, and waits at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.errors import OverBudget
from auditor.integrations import say
from auditor.integrations.after import Place, broken, finish, held
from auditor.integrations.ranks import WAIT_S, joining, records
from auditor.integrations.settings import Budget, settings
from auditor.integrations.settings import OverBudget as WhenOver
from auditor.ranks.join import incomplete
from auditor.stored import Origin

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.collect.mark import Marked
    from auditor.gate_document import GateDocument
    from auditor.integrations.recorder import TrainingRecorder
    from auditor.ranks.joining import Joining

Loggers = Callable[[], Sequence[Callable[["Audit"], None]]]
"""Asked for when there is an audit: who writes it to the trainer's loggers."""


class StepAudit:
    """Records steps of one training, and audits them once.

    Args:
        step: the optimizer step with which recording begins, the first of this call of the trainer being 1: also of a
            training that was resumed.
        steps: steps to time, each once with the plain profiler and once without any.
        name: of the stored run; the project's or the program's if none is given, as for ``fusion-audit run``.
        db: the store, as ``--db``; the project's own if none is given.
        budget: ``True`` for the limits in ``pyproject.toml``, a file of limits, or a dict with the same keys.
        over_budget: ``"warn"``, or ``"raise"`` :class:`~auditor.errors.OverBudget` and so end the training.
        log: ``True`` for the trainer's own loggers, ``False`` for none, or what :func:`auditor.log` takes.

    Raises:
        AuditError: an argument can't be used, or the project's settings, rules or budget are wrong.
    """

    MOST = 4
    """Steps that are tried, as a multiple of those needed: of inputs whose shapes change few are alike."""

    def __init__(
        self, *, step: int = 10, steps: int = 5, name: str = "", db: str | Path | None = None, budget: Budget = None,
        over_budget: WhenOver = "warn", log: Any = True,
    ) -> None:  # fmt: skip
        self._set = settings(step=step, steps=steps, name=name, db=db, budget=budget, over_budget=over_budget)
        self._log = log
        self.audit: Audit | None = None
        """On rank 0 that of all ranks, once they are joined; on each of the others its own."""
        self.verdict: GateDocument | None = None
        self._recorder: TrainingRecorder | None = None
        self._mark: Marked | None = None
        self._place: Place | None = None
        self._joining: Joining | None = None
        self._pending = False
        self._own: Audit | None = None
        self._seen = 0
        self._open = False
        self._over = True

    # --- what a trainer's callback tells -------------------------------------------------------------

    def training_begins(self) -> None:
        """A call of the trainer; when an audit was made in an earlier one, nothing is recorded any more."""
        from auditor.integrations.recorder import end_forgotten

        end_forgotten()
        self._recorder = self._mark = self._joining = self._own = None
        self._seen, self._open, self._over, self._pending = 0, False, True, False
        with say.harmless("the training goes on without an audit"):
            meeting = joining(self._set.db)  # asked for in any case: of some ranks an earlier training may have audits
            if self.audit is None and records():
                if meeting is not None:
                    meeting.arrive()
                self._joining, self._place, self._over = meeting, Place(self._set.db, Origin.here()), False

    def step_begins(self) -> None:
        """A batch is there; the first one after an optimizer step begins the next."""
        if self._over or self._open:
            return
        self._open = True
        self._seen += 1
        if self._seen < self._set.step:
            return
        with say.harmless("the training goes on without an audit"):
            self._begin()
            return
        self._over = True
        self._hand_in(None, "it could not begin to record")

    def step_ends(self, loggers: Loggers, at: int) -> None:
        """The optimizer has stepped; ``at``: how often in the whole training."""
        mark, recorder, self._mark, self._open = self._mark, self._recorder, None, False
        if recorder is None:
            self._look(loggers, at)
            return
        if mark is not None:
            mark.__exit__()
        if recorder.done or self._seen - self._set.step >= self._most:
            self._conclude(loggers, at)

    def step_is_lost(self, *, ended: bool) -> None:
        """Something else runs within the open step, or it ``ended`` without the optimizer: it is not recorded."""
        self._mark, self._open = None, self._open and not ended
        if self._recorder is not None:
            self._recorder.step_failed()

    def training_ends(self, loggers: Loggers, at: int) -> None:
        """The trainer is through; what was recorded so far is audited."""
        self.step_is_lost(ended=True)
        if self._recorder is not None:
            self._conclude(loggers, at)
        elif not self._over:
            self._over = True
            self._without(
                f"no step was audited: the training ended after {self._seen} optimizer steps and the audit was to "
                f"begin with step {self._set.step}; give the callback a smaller one: step=…"
            )
        self._look(loggers, at, last=True)

    def training_failed(self) -> None:
        """It ends with an error: nothing of ours may stay, or take its time."""
        recorder, self._recorder, self._mark, self._over = self._recorder, None, None, True
        if recorder is not None:
            recorder.give_way()
            say.warn("the training ended with an error while steps were recorded: no audit was made")
        meeting, self._joining = self._joining, None
        if meeting is None:
            return
        with say.harmless("the audits of the ranks could not be joined"):
            if meeting.here.rank:
                meeting.hand_in(None, failure="the training ended with an error")
            elif self._pending:
                self.audit = meeting.joined(0.0)
            else:
                meeting.close()
            if self.audit is not None and self._pending and self._place is not None:
                finish(self.audit, self._place)

    # --- recording -------------------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        return self.MOST * (2 * self._set.steps + 2)

    def _begin(self) -> None:
        from auditor.collect.mark import Marked
        from auditor.integrations.recorder import TrainingRecorder

        if self._recorder is None:
            recorder = TrainingRecorder(steps=self._set.steps)
            recorder.start()
            self._recorder = recorder
        self._recorder.step_mark()
        self._mark = Marked(self._recorder)

    def _conclude(self, loggers: Loggers, at: int) -> None:
        recorder, self._recorder, self._over = self._recorder, None, True
        if recorder is None:
            return
        with say.harmless("the recorded steps could not be audited"):
            recording = recorder.finish()
            if not recording.has_graph:
                why = " ".join(recording.notes) or "none ended while it was recorded"
                self._without(f"no step was audited: {why}")
                return
            self._own = self._audited(recorder)
        if self._joining is not None:
            self._hand_in(self._own, "the recorded steps could not be audited")
            self._look(loggers, at)
        elif self._own is not None:
            self._settle(self._own, loggers, at)

    def _audited(self, recorder: TrainingRecorder) -> Audit:
        from auditor.api import audit_recording

        return audit_recording(
            recorder.folder, recorder.recording, rules=self._set.rules, config=self._set.config, name=self._set.name
        )

    def _without(self, sentence: str) -> None:
        """There is no audit of this rank; of several, rank 0 says so for all."""
        if self._joining is None or not self._joining.here.rank:
            say.warn(sentence)
        self._hand_in(None, sentence)

    # --- the ranks of a job ----------------------------------------------------------------------------

    def _hand_in(self, audit: Audit | None, failure: str) -> None:
        """Give this rank's part; nobody waits."""
        meeting = self._joining
        if meeting is None:
            return
        with say.harmless("this rank's part of the audit was not handed in"):
            if not meeting.hand_in(audit, failure="" if audit else failure):
                say.warn("rank 0 is not there to take this rank's part of the audit: give every rank the callback")
        if meeting.here.rank:
            self.audit, self._joining = audit, None
        else:
            self._pending = True

    def _look(self, loggers: Loggers, at: int, *, last: bool = False) -> None:
        """Join the parts if all are there; the ``last`` time wait for them."""
        meeting = self._joining
        if meeting is None or not self._pending or not (meeting.all_there() or last):
            return
        self._joining, self._pending = None, False
        if last and not meeting.all_there():
            say.line(f"waiting for the other ranks' parts of the audit, {WAIT_S:.0f} s at most")
        whole = self._own
        with say.harmless("the audits of the ranks could not be joined"):
            whole = meeting.joined(WAIT_S)
        if whole is not None:
            for sentence in incomplete(whole.document):
                say.warn(sentence)
            self._settle(whole, loggers, at)

    # --- what comes of it ------------------------------------------------------------------------------

    def _settle(self, audit: Audit, loggers: Loggers, at: int) -> None:
        self.audit = audit
        with say.harmless("the audit was made, and what follows it failed"):
            self._follow_up(audit, loggers, at)

    def _follow_up(self, audit: Audit, loggers: Loggers, at: int) -> None:
        place = self._place or Place(self._set.db, Origin.here())
        stored = finish(audit, place)
        for write in self._writers(loggers, at):
            with say.harmless("the audit could not be logged"):
                write(audit)
        if not self._set.demands:
            return
        if not stored:
            say.warn("the audit was not held to its budget: it could not be stored")
            return
        self.verdict = held(audit, self._set.demands, self._set.rules, place)
        over = broken(self.verdict)
        if over and self._set.raises:
            raise OverBudget(over)
        if over:
            say.warn(f"the audited step is over its budget: {over}")

    def _writers(self, loggers: Loggers, at: int) -> Sequence[Callable[[Audit], None]]:
        from auditor.tracking import log

        if self._log is True:
            return loggers()
        return [lambda audit: log(audit, self._log, step=at)] if self._log else []
