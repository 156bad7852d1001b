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
        code = command.run(args)
        sys.stdout.flush()
        return code
    except AuditError as error:
        _complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except SystemExit as stop:  # argparse, after it has printed help or an error
        return stop.code if isinstance(stop.code, int) else 0


def _complain(message: str) -> None:
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr)


def _survive_odd_characters() -> None:
    """A terminal that can't show a character gets a replacement, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
