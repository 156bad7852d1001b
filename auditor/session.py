"""``auditor.record()``: the recorder of this process, and the audit of what it saw."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from auditor.api import audit_recording
from auditor.collect.recorder import Recorder
from auditor.config import Config
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.audit import Audit


class Record(Recorder):
    """What :func:`auditor.record` gives: a context that records, and afterwards ``audit()``."""

    def audit(self, *, name: str = "", config: Config | None = None) -> Audit:
        """The audit of the recorded steps.

        Raises:
            AuditError: the recording is still under way, or holds no step.
        """
        if Recorder.active is self:
            raise AuditError("The recording is still under way; call audit() after the `with auditor.record()` block.")
        if not self.recording.has_graph:
            raise AuditError("Nothing was recorded; call the model inside `with auditor.record()`.")
        return audit_recording(self.folder, self.recording, config=config, name=name or _caller())


def record(*, steps: int = 5, warmup: int = 1) -> Record:
    """Record the models that run inside ``with auditor.record() as rec:``; then ``rec.audit()``.

    Args:
        steps: steps to time, each once with the plain profiler and once without any.
        warmup: steps to let pass first.

    Raises:
        AuditError: a profiler or another recorder is active; on leaving, no model was called.
    """
    return Record(steps=steps, warmup=warmup)


def _caller() -> str:
    """Name of the running program, for lists: `notebook` has no script."""
    return (sys.argv[0] or "session").rsplit("/", 1)[-1].split(".")[0] or "session"
