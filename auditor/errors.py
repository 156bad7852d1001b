"""The exceptions of Fusion Auditor.

::

    AuditError            bad input or usage: one clear sentence, exit code 2
    ├── ScriptFailed      the audited script ended with an error of its own: its exit code is passed on
    └── OverBudget        a training's audit breaks a limit that was to stop it, exit code 1
"""

from __future__ import annotations


class AuditError(Exception):
    """Input that cannot be used. The message names the file, the place, the reason and what to do."""

    exit_code = 2


class ScriptFailed(AuditError):  # noqa: N818 - what failed is the script, not we
    """The audited script failed by itself; ``exit_code`` is the script's own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class OverBudget(AuditError):  # noqa: N818 - it is no error of anybody's program
    """An audit breaks a limit of its budget, and the training was to stop there. The message says what and where."""

    exit_code = 1
