"""``fusion-audit serve``."""

from __future__ import annotations

import argparse

from auditor.cli import options
from auditor.cli.output import remark
from auditor.cli.parser import Command


class ServeCommand(Command):
    """Serve the dashboard and the HTTP API, with a worker for jobs.

    It listens on this machine only, unless --host says otherwise. Looking needs no token then; whatever changes
    something does: the URL that is printed logs a browser in, and `fusion-audit token new` makes tokens for machines.
    Where others can reach the service everything needs a token. Only scripts that were run here from the command
    line are run again.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address (default: 127.0.0.1)")
        parser.add_argument("--port", type=_port, default=8050, help="port; 0 takes a free one (default: 8050)")
        parser.add_argument(
            "--allow-host", action="append", default=[], metavar="NAME",
            help="name that the service is reached by, as before a proxy; may be repeated",
        )  # fmt: skip
        parser.add_argument("--no-worker", action="store_true", help="take no jobs")
        parser.add_argument(
            "--job-time", type=options.seconds, default=7200.0, metavar="2h", help="end a job after that (default: 2h)"
        )  # fmt: skip
        parser.add_argument(
            "--job-memory", type=options.nbytes, default=0, metavar="16G",
            help="end a job that holds more memory (default: four fifths of the machine's)",
        )  # fmt: skip
        parser.add_argument(
            "--max-upload", type=options.nbytes, default=2 * 10**9, metavar="2G",
            help="refuse larger uploads (default: 2G)",
        )  # fmt: skip
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.store import Store
        from dashboard.api.serving import serve
        from dashboard.api.settings import Settings
        from dashboard.jobs.running import Caps

        settings = Settings(args.host, args.port, tuple(args.allow_host), args.max_upload)
        with Store.open(args.db) as store:
            serve(store, settings, Caps(args.job_time, args.job_memory), remark, worker=not args.no_worker)
        return 0


def _port(text: str) -> int:
    number = options.not_negative(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"must be at most 65535, not {text}")
    return number


COMMAND = ServeCommand()
