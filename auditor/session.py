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


def _caller() -> str:
    """Name of the running program, for lists: `notebook` has no script."""
    return (sys.argv[0] or "session").rsplit("/", 1)[-1].split(".")[0] or "session"
