"""``fusion-audit graph``."""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.parser import Command
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.graph.model import Op, OpGraph


class GraphCommand(Command):
    """Print recorded ops in SSA text, ready to paste into a rule's test."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run", metavar="RUN", help="id, unique start of an id, name, or latest")
        parser.add_argument(
            "--at", required=True, metavar="MODULE", help="a module and all inside it, or a line such as modeling.py:41"
        )
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.graph.ssa import print_graph
        from auditor.graph.tables import from_tables
        from auditor.store import Store

        with Store.open(args.db, create=False) as store:
            graph = from_tables(store.load(args.run).tables)
        print(print_graph(ops_at(graph, args.at)).rstrip())
        return 0


def ops_at(graph: OpGraph, place: str) -> list[Op]:
    """Ops of the module ``place`` and the modules inside it, or of the source line ``file.py:41``.

    Raises AuditError that names what is near when there are none.
    """
    inside = [op for op in graph.ops if op.module == place or op.module.startswith(f"{place}.")]
    if not inside:
        inside = [op for op in graph.ops if op.source and f"/{op.source}".endswith(f"/{place}")]
    if inside:
        return inside
    modules = list(dict.fromkeys(op.module for op in graph.ops if op.module))
    near = difflib.get_close_matches(place, modules, 3, 0.4) or modules[:5]
    hint = f"there are for example: {', '.join(near)}" if near else "this run knows no modules; give a source line"
    raise AuditError(f"no op was recorded at {place!r}; {hint}")


COMMAND = GraphCommand()
