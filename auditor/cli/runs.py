"""``fusion-audit runs``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.output import remark, visible
from auditor.cli.parser import Command

if TYPE_CHECKING:
    from auditor.store import RunSummary

_HEADER = (
    "RUN",
    "NAME",
    "CREATED",
    "SOURCE",
    "PATCHED FROM",
    "DEVICE",
    "KERNELS",
    "UNFUSED",
    "AVOIDABLE",
    "FINDINGS",
    "STEP",
    "STEP SAVED",
)
_LEFT = 6  # columns of text; the others are numbers


class RunsCommand(Command):
    """List the stored audits, the newest first."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        from auditor.errors import AuditError
        from auditor.store import Store

        try:
            store = Store.open(args.db, create=False)
        except AuditError as error:
            if not str(error).startswith("no audits are stored"):
                raise
            remark(str(error))
            return 0
        with store:
            runs = store.list_runs()
        print(table([_HEADER, *map(_line, runs)]))
        return 0


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows in columns: text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(w) if i < _LEFT else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _line(run: RunSummary) -> tuple[str, ...]:
    created = run.created[:16].replace("T", " ")
    counts = (run.kernels, run.unfused_kernels, run.avoidable_kernels, run.findings)
    failed = f" (exit {run.exit_code})" if run.exit_code else ""
    return (
        run.id,
        visible(run.name) + failed,
        created,
        run.source,
        run.patched_from or "-",
        visible(run.device) or "-",
        *map(str, counts),
        _ms(run.step_us),
        _ms(run.step_saving_us),
    )


def _ms(us: float) -> str:
    return f"{us / 1000:.2f} ms"


COMMAND = RunsCommand()
