"""``fusion-audit why-not``."""

from __future__ import annotations

import argparse

from auditor.cli import options
from auditor.cli.parser import Command
from auditor.cli.rules import find_rule


class WhyNotCommand(Command):
    """Say why a rule found nothing at a place: what is missing there, or which op forbids the fusion."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run", metavar="RUN", help="id, unique start of an id, name, or latest")
        parser.add_argument("rule", metavar="RULE", help="id or name of the rule")
        parser.add_argument(
            "--at", required=True, metavar="MODULE_OR_LINE", help="model.layers.0.norm, modeling.py:41, or 'op 35'"
        )
        options.add_rules(parser)
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.api import rules_of

        rules = rules_of(options.settings(args))
        rule = find_rule(rules, args.rule)

        from auditor.engine.whynot import explain
        from auditor.graph.tables import from_tables
        from auditor.selection import Selection, settings_of
        from auditor.store import Store

        with Store.open(args.db, create=False) as store:
            stored = store.load(args.run)
            graph = from_tables(stored.tables)
        selection = Selection(settings_of(stored.document), rules)
        print(explain(graph, rule, args.at, chosen=selection.chosen, suppressed=selection.suppressed))
        return 0


COMMAND = WhyNotCommand()
