"""What commands write: reports to stdout or a file, remarks and progress to stderr."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.document import Document
    from auditor.graph.model import OpGraph
    from auditor.report import Format


def visible(text: str) -> str:
    """``text`` on one line that can't steer the terminal: names and paths are the work of others."""
    if text.isascii() and text.isprintable():
        return text
    from auditor.report.format import safe

    return safe(text)


def as_text(name: str) -> str:
    """A file's name as text that can be stored: ``?`` for each byte that isn't UTF-8."""
    return name.encode("utf-8", errors="replace").decode("utf-8")


def remark(message: str) -> None:
    """A line for the person at the terminal; never part of a report."""
    print(f"fusion-audit: {visible(message)}", file=sys.stderr, flush=True)


class Progress:
    """Says how long work goes on: every time on a terminal, now and then in a log."""

    LOG_EVERY_S = 10.0

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, message: str) -> None:
        now_s = time.monotonic()
        if sys.stderr.isatty() or now_s - self._last_s >= self.LOG_EVERY_S:
            self._last_s = now_s
            remark(message)


def emit(document: Document, graph: OpGraph | None, fmt: Format, output: Path | None) -> None:
    """Render an audit and write it to ``output``, or to stdout in the terminal's colours and width."""
    from auditor.report import render

    if output is None:
        sys.stdout.write(render(document, graph, fmt, color=colored(sys.stdout), width=columns()))
        return
    write_file(output, render(document, graph, fmt))
    remark(f"report written to {output}")


def colored(stream: TextIO) -> bool:
    """Colour on a terminal only, and never against ``NO_COLOR`` (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def check_output(path: Path | None) -> None:
    """Refuse a file that can't be written, before the work that it is for."""
    if path is None or _is_stream(path):
        return
    if path.is_dir():
        raise AuditError(f"{path} is a folder; -o needs a file")
    if not path.parent.is_dir():
        raise AuditError(f"{path} can't be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise AuditError(f"{path} can't be written: {path.parent} is not writable")


def write_file(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all."""
    write_through(path, lambda file: file.write(text.encode("utf-8")))


def write_through(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Have ``write`` fill the file ``path``, which is then there whole or not at all."""
    check_output(path)
    try:
        if _is_stream(path):
            with path.open("wb") as file:
                write(file)
        else:
            _replace(path, write)
    except OSError as error:
        raise AuditError(f"{path} can't be written: {error.strerror or error}") from error


@contextmanager
def script_output_on_stderr(active: bool) -> Iterator[None]:
    """While active, what child processes print on stdout goes to stderr: a report in JSON stays alone on stdout."""
    if not active:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()  # /dev/stdout, a pipe


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, or those that a new file gets here."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
