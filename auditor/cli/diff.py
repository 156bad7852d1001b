"""``fusion-audit diff``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext

from auditor.cli import options
from auditor.cli.output import check_output, colored, columns, remark, write_file
from auditor.cli.parser import Command
from auditor.cli.push import VARIABLE


class DiffCommand(Command):
    """Compare two runs: figures, and findings that are new, larger, smaller or fixed.

    Each is a stored run, a baseline file, or the address of either.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("before", metavar="RUN_A", help="id, its unique start, or name; a file or an address")
        parser.add_argument("after", metavar="RUN_B", help="what became of it")
        options.add_report(parser, ("text", "json", "markdown"))
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output)

        from auditor.gate.baseline import baseline_of, is_stored
        from auditor.gate.compare import compare
        from auditor.report import render_diff
        from auditor.store import Store

        token = os.environ.get(VARIABLE, "")
        refs = (args.before, args.after)
        with Store.open(args.db, create=False) if any(map(is_stored, refs)) else nullcontext() as store:
            before, after = (baseline_of(ref, store, token).snapshot for ref in refs)
        found = compare(before, after)
        if args.output is None:
            sys.stdout.write(render_diff(found, args.format, color=colored(sys.stdout), width=columns()))
            return 0
        write_file(args.output, render_diff(found, args.format))
        remark(f"report written to {args.output}")
        return 0


COMMAND = DiffCommand()
