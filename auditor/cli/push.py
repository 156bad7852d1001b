"""``fusion-audit push``."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.output import remark
from auditor.cli.parser import Command
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.store import Store

VARIABLE = "FUSION_AUDIT_TOKEN"


class PushCommand(Command):
    """Send a stored run, with its fixes and the audits after them, to a service.

    For machines that build and test: the run is sent whole, is checked on arrival, and keeps its id; to send it twice
    does no harm. The token is that of `fusion-audit token new` on the service's machine, in $FUSION_AUDIT_TOKEN.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("ref", metavar="RUN", help="id, its unique start, name, or latest")
        parser.add_argument("url", metavar="URL", help="where `fusion-audit serve` answers, as http://host:8050")
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        token = os.environ.get(VARIABLE, "")
        if not token:
            raise AuditError(f"no token: put one of `fusion-audit token new` into ${VARIABLE}")

        from auditor.client import Client
        from auditor.store import Store

        client = Client(args.url, token)
        with Store.open(args.db, create=False) as store:
            run = store.resolve(args.ref)
            for one in [run, *_after(store, run)]:
                new = client.push(store, one)
                remark(f"run {one} {'is stored there' if new else 'was there already'}")
        return 0


def _after(store: Store, run: str) -> list[str]:
    """The audits after the fixes of ``run`` that are stored here."""
    from auditor.store import RunFilter

    return [found.id for found in store.list_runs(RunFilter(patched_from=run), descending=False)]


COMMAND = PushCommand()
