"""``fusion-audit show``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.fix import emit_fix
from auditor.cli.output import check_output, emit, remark, write_through
from auditor.cli.parser import Command

if TYPE_CHECKING:
    from auditor.document import Document
    from auditor.graph.model import OpGraph


class ShowCommand(Command):
    """Print the report of a stored audit, or of a stored fix.

    The format perfetto is the run as Chrome trace events, for https://ui.perfetto.dev and chrome://tracing, with a
    track for each finding; a file whose name ends in .gz is compressed.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run", nargs="?", default="latest", metavar="RUN", help="id, its unique start, or name (default: latest)"
        )  # fmt: skip
        parser.add_argument(
            "--fix", action="store_true", help="the newest fix of the run; of a run under a plan, that of the plan"
        )
        parser.add_argument(
            "--rank", type=options.not_negative, metavar="N", help="of a run of several ranks: the details of rank N"
        )  # fmt: skip
        options.add_report(parser, ("text", "json", "markdown", "html", "perfetto"))
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output)

        from auditor.graph.tables import from_tables
        from auditor.store import Store
        from auditor.store.rank_tables import rank_of

        with Store.open(args.db, create=False) as store:
            if args.fix:
                from auditor.fix.meant import fix_of

                emit_fix(fix_of(store, args.run), args)
                return 0
            stored = store.load(args.run)
            document, tables = rank_of(stored, stored.document.run.rank if args.rank is None else args.rank)
            graph = from_tables(tables()) if args.format in ("html", "perfetto") else None
        if args.format == "perfetto" and graph is not None:
            return export(document, graph, args.output)
        emit(document, graph, args.format, args.output)
        return 0


def export(document: Document, graph: OpGraph, output: Path | None) -> int:
    """Write the run as Chrome trace events to ``output``, or to stdout."""
    from auditor.report import perfetto

    if output is None:
        sys.stdout.flush()
        perfetto.write(document, graph, sys.stdout.buffer)
        return 0
    write_through(output, lambda file: perfetto.write(document, graph, file, compress=output.suffix == ".gz"))
    remark(f"trace written to {output}; open it at https://ui.perfetto.dev")
    return 0


COMMAND = ShowCommand()
