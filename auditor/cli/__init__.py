"""The command ``fusion-audit``: one module per verb.

Nothing heavy is imported here: ``fusion-audit --help`` costs no torch, pandas or SQLAlchemy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from auditor.cli.parser import parse
from auditor.errors import AuditError

INTERRUPTED = 130  # 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # 128 + SIGPIPE

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 clean, 1 findings or failures, 2 bad input or usage."""
    _survive_odd_characters()
    try:
        command, args = parse(sys.argv[1:] if argv is None else list(argv))
        _check_folder()
        code = command.run(args)
        sys.stdout.flush()
        return code
    except AuditError as error:
        _complain(str(error))
        return error.exit_code
    except UnicodeEncodeError as error:  # a lone surrogate: how Python holds a byte of a name that isn't UTF-8
        _complain(f"{_word(error)} is not UTF-8 text, and so can't be stored or shown; rename the file or folder")
        return AuditError.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except SystemExit as stop:  # argparse, after it has printed help or an error
        return stop.code if isinstance(stop.code, int) else 0


def _check_folder() -> None:
    """Torch, relative paths and the settings all need the current folder; a removed one is told at once."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise AuditError("the current folder no longer exists; change to one that does, and try again") from None


def _word(error: UnicodeEncodeError) -> str:
    """The part of the text around the character that failed, without spaces: a name or a path."""
    text = error.object
    start = max(text.rfind(mark, 0, error.start) for mark in ' "\n') + 1
    return text[start:].split()[0].split('"')[0]


def _complain(message: str) -> None:
    from auditor.cli.output import visible

    sys.stdout.flush()
    print(f"error: {visible(message)}", file=sys.stderr)


def _survive_odd_characters() -> None:
    """A terminal that can't show a character gets a replacement, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
