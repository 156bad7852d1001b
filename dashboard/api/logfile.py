"""The service's log: a file of a bounded size, in which no request can write a line of its own."""

from __future__ import annotations

import logging
import logging.handlers
import os
from pathlib import Path

from auditor.errors import AuditError
from auditor.report.format import safe

_BYTES, _KEPT = 10_000_000, 2
_LEVELS = (("fusion_audit", logging.INFO), ("uvicorn", logging.WARNING), ("dashboard", logging.WARNING))


def log_to(file: Path) -> None:
    """Requests and mishaps go to ``file``. Raises :class:`AuditError` where it can't be written."""
    try:
        handler = LogFile(file, maxBytes=_BYTES, backupCount=_KEPT, encoding="utf-8")
    except OSError as error:
        raise AuditError(f"{file}: the service's log can't be written: {error.strerror or error}") from None
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name, level in _LEVELS:
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)


class OneLine(logging.Formatter):
    """A record begins a line; whatever lines it holds are set in, so that none of them looks like another record."""

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
        return "\n".join([safe(first), *(f"    {safe(line)}" for line in others)])


class LogFile(logging.handlers.RotatingFileHandler):
    """Made anew where it was removed. A disk that is full costs lines of the log and nothing else."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None and not os.path.exists(self.baseFilename):
            self.stream.close()
            self.stream = None  # which has the next line open it
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
        """Nothing: to say it on the terminal, with a stack for each request, helps nobody."""
