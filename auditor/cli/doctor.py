"""``fusion-audit doctor``."""

from __future__ import annotations

import argparse
import sys

from auditor.cli import options
from auditor.cli.output import colored
from auditor.cli.parser import Command

_MARKS = {"ok": ("ok  ", "32"), "missing": ("MISS", "31"), "optional": ("note", "33")}


class DoctorCommand(Command):
    """Say what this machine can do, and what to do about each gap.

    Exit code 1 when something is missing that audits need; gaps that only some work needs are notes.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.doctor import examine

        missing = False
        for check in examine(args.db):
            mark, color = _MARKS[check.state]
            if colored(sys.stdout):
                mark = f"\x1b[{color}m{mark}\x1b[0m"
            print(f"{mark}  {check.subject:<16}{check.finding}", flush=True)
            if check.advice:
                print(f"{'':22}→ {check.advice}")
            missing |= check.state == "missing"
        return int(missing)


COMMAND = DoctorCommand()
