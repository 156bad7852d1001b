"""``fusion-audit import``."""

from __future__ import annotations

import argparse
from pathlib import Path

from auditor.cli import options
from auditor.cli.output import as_text, check_output, emit, remark
from auditor.cli.parser import Command


class ImportCommand(Command):
    """Audit a trace that torch.profiler wrote, on whatever machine.

    With the execution trace of the same run (torch.profiler.ExecutionTraceObserver) it is known which op reads
    what another one wrote. Without it that is inferred from shapes and order, and every finding says so.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", metavar="TRACE.json[.gz]", type=Path, help="Chrome trace of torch.profiler")
        parser.add_argument(
            "--execution-trace", metavar="ET.json[.gz]", type=Path, help="execution trace of the same run"
        )
        parser.add_argument(
            "--salvage", action="store_true", help="of a file that is cut off or damaged audit what is whole"
        )
        parser.add_argument(
            "--max-size", metavar="8G", type=options.nbytes, default=0,
            help="read files of up to this size, unpacked (default: 8G, and 200 times that of a .gz)",
        )  # fmt: skip
        options.add_audit(parser)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.api import audit_trace, rules_of, run_name

        check_output(args.output)
        config = options.settings(args)
        rules = rules_of(config)
        device = options.described_device(args)

        from auditor.graph.garbage import collection_paused
        from auditor.graph.tables import to_tables
        from auditor.store import Store

        with collection_paused(), Store.open(args.db) as store:
            remark(f"reading {args.trace}")
            audit = audit_trace(
                args.trace, args.execution_trace, rules=rules, device=device, config=config,
                name=as_text(run_name(config, args.trace)), max_bytes=args.max_size, salvage=args.salvage,
            )  # fmt: skip
            run_id = store.save(audit.document, to_tables(audit.graph))
            emit(audit.document, audit.graph, args.format, args.output)
            audit.graph.dismantle()
        remark(f"stored as {run_id}")
        return 0


COMMAND = ImportCommand()
