"""Quoting the source line of a finding, where the file can be read on this machine."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from auditor.document import SourceInfo
from auditor.report.format import safe

_LARGEST = 4_000_000
"""Bytes; nobody writes longer modules, and a trace may name any file."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """One line of source, indentation kept; ``changed``: the file is newer than the recording."""

    line: int
    text: str
    changed: bool = False


def quote(source: SourceInfo | None, recorded: str = "") -> Excerpt | None:
    """The line that ``source`` names, ``None`` where it can't be read or is blank.

    Only regular Python files are opened: the name comes from the recording, and a foreign one may name anything.

    Args:
        source: the place.
        recorded: ISO 8601 time of the recording.
    """
    if source is None or source.line < 1 or not source.file.endswith((".py", ".pyi")):
        return None
    path = Path(source.file)
    try:
        seen = path.stat()
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > _LARGEST:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
    if source.line > len(lines) or not lines[source.line - 1].strip():
        return None
    return Excerpt(source.line, safe(lines[source.line - 1].expandtabs(4).rstrip()), _newer(seen.st_mtime, recorded))


def _newer(modified: float, recorded: str) -> bool:
    try:
        return modified > datetime.fromisoformat(recorded.replace("Z", "+00:00")).timestamp() + 1
    except (ValueError, OverflowError):
        return False
