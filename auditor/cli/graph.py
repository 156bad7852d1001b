"""``fusion-audit graph``."""

from __future__ import annotations

import argparse

from auditor.cli import options
from auditor.cli.parser import Command


class GraphCommand(Command):
    """Print recorded ops in SSA text, ready to paste into a rule's test."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run", metavar="RUN", help="id, unique start of an id, name, or latest")
        parser.add_argument(
            "--at",
            required=True,
            metavar="MODULE",
            help="a module and all inside it, a module class, or a line: modeling.py:41",
        )
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.engine.whynot import ops_at
        from auditor.graph.ssa_print import print_graph
        from auditor.graph.tables import from_tables
        from auditor.store import Store

        with Store.open(args.db, create=False) as store:
            graph = from_tables(store.load(args.run).tables)
        print(print_graph(ops_at(graph, args.at)).rstrip())
        return 0


COMMAND = GraphCommand()
