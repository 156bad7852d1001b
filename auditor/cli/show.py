"""``fusion-audit show``."""

from __future__ import annotations

import argparse

from auditor.cli import options
from auditor.cli.fix import emit_fix
from auditor.cli.output import check_output, emit
from auditor.cli.parser import Command


class ShowCommand(Command):
    """Print the report of a stored audit, or of a stored fix."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run", nargs="?", default="latest", metavar="RUN", help="id, its unique start, or name (default: latest)"
        )  # fmt: skip
        parser.add_argument(
            "--fix", action="store_true", help="the newest fix of the run; of a run under a plan, that of the plan"
        )
        parser.add_argument(
            "--rank", type=options.not_negative, metavar="N", help="of a run of several ranks, the details of another one"
        )  # fmt: skip
        options.add_report(parser, ("text", "json", "markdown", "html", "perfetto"))
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output)

        from auditor.graph.tables import from_tables
        from auditor.store import Store

        with Store.open(args.db, create=False) as store:
            if args.fix:
                from auditor.fix.meant import fix_of

                emit_fix(fix_of(store, args.run), args)
                return 0
            stored = store.load(args.run)
            document, tables = stored.document, lambda: stored.tables
            if args.rank is not None:
                document, tables = rank_of(stored, args.rank)
            graph = from_tables(tables()) if args.format in ("html", "perfetto") else None
        if args.format == "perfetto":
            return export(document, graph, args.output)
        emit(document, graph, args.format, args.output)
        return 0


COMMAND = ShowCommand()
