"""``fusion-audit token``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.output import remark, visible
from auditor.cli.parser import Command

if TYPE_CHECKING:
    from auditor.store import Store


class TokenCommand(Command):
    """Make, list and revoke the tokens that machines use the service with.

    new NAME prints a token once; the store keeps its hash only. revoke takes an id or a name.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        options.add_db(parser)
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="new|list|revoke")
        new = verbs.add_parser("new", help="make one and print it", allow_abbrev=False)
        new.add_argument("name", metavar="NAME", help="what it is for, to know it in the list")
        verbs.add_parser("list", help="the tokens that there are", allow_abbrev=False)
        revoke = verbs.add_parser("revoke", help="forget one", allow_abbrev=False)
        revoke.add_argument("token", metavar="ID|NAME", help="its id or name")
        for verb in verbs.choices.values():
            verb.add_argument("--db", default=argparse.SUPPRESS, metavar="PLACE", help=argparse.SUPPRESS)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.store import Store

        with Store.open(args.db) as store:
            if args.verb == "new":
                _new(store, args.name)
            elif args.verb == "list":
                _list(store)
            else:
                known = store.tokens.revoke(args.token)
                remark(f"token {known.id} ({known.name}) is no longer good")
        return 0


def _new(store: Store, name: str) -> None:
    known, text = store.tokens.new(name)
    remark(f"token {known.id} ({known.name}); it is shown this once:")
    print(text)


def _list(store: Store) -> None:
    from auditor.cli.runs import table

    rows: list[tuple[str, ...]] = [("TOKEN", "NAME", "CREATED", "LAST USED")]
    for known in store.tokens.list():
        times = (moment[:16].replace("T", " ") or "never" for moment in (known.created, known.used))
        rows.append((known.id, visible(known.name), *times))
    print(table(rows))


COMMAND = TokenCommand()
