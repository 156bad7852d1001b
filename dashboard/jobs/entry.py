"""The process of a job: the command line, which ends when the worker does."""

from __future__ import annotations

import sys

CODE = "import sys; sys.path[:] = [p for p in sys.path if p]; from dashboard.jobs.entry import main; sys.exit(main())"
"""For ``python -c``. The current folder is the user's: a file in it must not stand in for a module of ours."""


def main() -> int:
    """``python -c CODE PARENT ARGUMENTS…``."""
    from auditor.cli import main as fusion_audit
    from dashboard.jobs.processes import end_with_parent

    end_with_parent(int(sys.argv[1]))
    arguments, sys.argv = sys.argv[2:], ["fusion-audit"]
    return fusion_audit(arguments)
