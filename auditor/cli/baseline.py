"""``fusion-audit baseline``."""

from __future__ import annotations

import argparse
from pathlib import Path

from auditor.cli import options
from auditor.cli.output import check_output, remark, write_file
from auditor.cli.parser import Command


class BaselineCommand(Command):
    """Write a run as a baseline file for `fusion-audit gate`, to be kept in git.

    The file is small and always the same for the same run; it names its commit, and findings without their times.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run", nargs="?", default="latest", metavar="RUN", help="id, its unique start, or name (default: latest)"
        )  # fmt: skip
        parser.add_argument("-o", dest="output", metavar="FILE", type=Path, required=True, help="the file to write")
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output)

        from auditor.commit import repository_of
        from auditor.gate.baseline import written
        from auditor.gate.snapshot import snapshot_of
        from auditor.store import Store

        with Store.open(args.db, create=False) as store:
            stored = store.load(args.run)
        write_file(args.output, written(snapshot_of(stored.document), repository_of(Path.cwd())))
        remark(f"baseline of run {stored.id} written to {args.output}")
        return 0


COMMAND = BaselineCommand()
