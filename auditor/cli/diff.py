"""``fusion-audit diff``."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.output import as_text, check_output, colored, columns, remark, write_file
from auditor.cli.parser import Command
from auditor.cli.push import VARIABLE
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.document import Document
    from auditor.gate.compare_kernels import By
    from auditor.gate_document import Comparison, Snapshot
    from auditor.graph.model import OpGraph
    from auditor.store import Store

_HEAD = 1 << 20
"""Bytes of a file in which a trace shows what it is."""


class DiffCommand(Command):
    """Compare two runs: figures, and findings that are new, larger, smaller or fixed; or their kernels.

    Each is a stored run, a trace, a baseline file, or the address of a run or a baseline. All figures are of one step,
    so that recordings of different lengths compare. By op the kernels of both are put side by side under the op that
    launched them, whatever they are called: two devices, versions of PyTorch or ranks compare. By kernel the ops are
    told apart by module and shapes as well, and the kernels are named.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("before", metavar="RUN_A", help="id, its unique start, or name; a file or an address")
        parser.add_argument("after", metavar="RUN_B", help="what became of it")
        parser.add_argument(
            "--by", choices=("finding", "op", "kernel"), default="finding",
            help="what is compared beside the figures of a step (default: finding)",
        )  # fmt: skip
        options.add_report(parser, ("text", "json", "markdown"))
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output)

        from auditor.gate.baseline import is_stored
        from auditor.gate.compare import compare
        from auditor.report import render_diff
        from auditor.store import Store

        refs = (args.before, args.after)
        with Store.open(args.db, create=False) if any(map(is_stored, refs)) else nullcontext() as store:
            before, after = (_side(ref, store, kernels=args.by != "finding") for ref in refs)
        found = compare(before.snapshot, after.snapshot)
        if args.by != "finding":
            found = _with_kernels(found, before, after, args.by)
        if args.output is None:
            sys.stdout.write(render_diff(found, args.format, color=colored(sys.stdout), width=columns()))
            return 0
        write_file(args.output, render_diff(found, args.format))
        remark(f"report written to {args.output}")
        return 0


@dataclass(frozen=True, slots=True)
class _Side:
    """What is compared. Document and graph are there where kernels are."""

    ref: str
    snapshot: Snapshot
    document: Document | None = None
    graph: OpGraph | None = None


def _side(ref: str, store: Store | None, *, kernels: bool) -> _Side:
    from auditor.gate.baseline import baseline_of, is_stored

    if _is_trace(Path(ref)):
        return _of_trace(ref)
    snapshot = baseline_of(ref, store, os.environ.get(VARIABLE, "")).snapshot
    if not kernels:
        return _Side(ref, snapshot)
    if store is None or not is_stored(ref):
        raise AuditError(f"{ref} holds no kernels; give a stored run or a trace, or compare with --by finding")
    from auditor.graph.tables import from_tables

    run = store.load(ref)
    if not {"ops", "values", "kernels"} <= set(run.table_names):
        raise AuditError(f"run {run.id} was stored without its kernels; compare with --by finding, or import it again")
    return _Side(ref, snapshot, run.document, from_tables(run.tables))


def _of_trace(path: str) -> _Side:
    from auditor.api import audit_trace, run_name
    from auditor.config import Config, load_config
    from auditor.gate.snapshot import snapshot_of

    remark(f"reading {path}")
    config = load_config()
    audit = audit_trace(path, config=config, name=as_text(run_name(Config(), path)))
    return _Side(path, snapshot_of(audit.document), audit.document, audit.graph)


def _is_trace(path: Path) -> bool:
    """Whether a file is what a profiler wrote: packed, or with its events near the front."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return False
    return head[:2] == b"\x1f\x8b" or b'"traceEvents"' in head or head.lstrip()[:1] == b"["


def _with_kernels(found: Comparison, before: _Side, after: _Side, by: By) -> Comparison:
    from msgspec.structs import replace

    from auditor.gate.compare_kernels import compare_kernels
    from auditor.gate.kernel_groups import side_of
    from auditor.gate.whole_steps import left_out

    held = [(side.document, side.graph) for side in (before, after)]
    sides = [side_of(document, graph) for document, graph in held if document is not None and graph is not None]
    out = [left_out(document).kernels for document, _ in held if document is not None]
    return replace(found, kernels=compare_kernels(sides[0], sides[1], by, (out[0], out[1])))


COMMAND = DiffCommand()
