"""``fusion-audit gate``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.output import check_output, colored, columns, remark, write_file
from auditor.cli.parser import Command, parse
from auditor.cli.push import VARIABLE
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.engine.rules import Rule
    from auditor.gate.budget import Demands
    from auditor.gate_document import GateDocument

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Where GitHub Actions takes the summary of a step from, as Markdown."""


class GateCommand(Command):
    """Hold a stored run to its budgets and its baseline; exit code 1 where it breaks them.

    Limits stand in pyproject.toml under [tool.fusion-audit], or in a file of their own. Kernels and bytes are the
    same in every run of one program, and fail; shares of time warn. Against a baseline no count may grow, and
    peak memory by 1 %, unless max_increase says by how much. --baseline takes a stored run, a file of `fusion-audit
    baseline`, or the address of either ($FUSION_AUDIT_TOKEN for a run of a service). --record runs the script that
    pyproject.toml names (script = "bench.py --tiny") first, and holds that run.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        from auditor.report import GATE_FORMATS

        parser.add_argument(
            "run", nargs="?", metavar="RUN", help="id, its unique start, or name (default: latest)"
        )  # fmt: skip
        parser.add_argument("--record", action="store_true", help="run the project's script, and take that run")
        parser.add_argument("--budget", metavar="FILE", type=Path, help="limits in YAML, instead of the project's own")
        parser.add_argument("--baseline", metavar="RUN|FILE|URL", help="what the run is compared with")
        options.add_rules(parser)
        options.add_report(parser, GATE_FORMATS)
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output)
        words = _script(args.run) if args.record else []
        from auditor.api import rules_of

        config = options.settings(args)
        rules = rules_of(config)
        demands = _demands(args.budget, rules)
        ref = _record(args, words) if args.record else args.run or "latest"

        from auditor.commit import repository_of
        from auditor.gate.baseline import baseline_of
        from auditor.gate.verdict import judge
        from auditor.store import Store

        with Store.open(args.db, create=False) as store:
            token = os.environ.get(VARIABLE, "")
            baseline = baseline_of(args.baseline, store, token) if args.baseline is not None else None
            root = repository_of(Path.cwd())
            gate = judge(store.load(ref), demands, baseline, rules, store=store, root=root)
        _emit(gate, args)
        return 0 if gate.passed else 1


def _script(run: str | None) -> list[str]:
    """The words of the project's script, its path first."""
    from auditor.config import SECTION, read_config, settings_file

    if run is not None:
        raise AuditError(f"--record makes a run of its own; leave out {run!r}, or --record")
    file = settings_file()
    text = read_config(file).script if file else ""
    if file is None or not text.strip():
        where = str(file) if file else "pyproject.toml"
        raise AuditError(f'{where}: {SECTION} names no script to record; write one: script = "bench.py --tiny"')
    try:
        path, *words = shlex.split(text)
    except ValueError as error:
        raise AuditError(f"{file}: {SECTION}.script: {text!r} can't be read as a command ({error})") from None
    return [os.path.relpath(file.parent / path), *words]


def _record(args: argparse.Namespace, words: list[str]) -> str:
    """The id of a new run of the script."""
    from auditor.cli.run import COMMAND as RUN
    from auditor.ranks.world import world

    if world() is not None:
        raise AuditError(
            "--record runs the script in one process; under torchrun record it with fusion-audit run, and hold that run"
        )

    rules = [f"--rules={folder}" for folder in args.rules]
    _, run = parse(["run", "--stop", *rules, *([f"--db={args.db}"] if args.db else []), "--", *words])
    _, stored, code = RUN.record(run, quiet=True)
    if code:
        raise AuditError(f"{words[0]} ended with code {code}, so that its run {stored} may be a part of it only")
    return stored


def _demands(budget: Path | None, rules: list[Rule]) -> Demands:
    from auditor.gate.budget import file_demands, project_demands

    known = [(rule.id, rule.name) for rule in rules]
    return file_demands(budget, known) if budget else project_demands(known)


def _emit(gate: GateDocument, args: argparse.Namespace) -> None:
    from auditor.report import render_gate

    if args.format == "github":
        _summarise(gate)
    if args.output is None:
        sys.stdout.write(render_gate(gate, args.format, color=colored(sys.stdout), width=columns()))
        return
    write_file(args.output, render_gate(gate, args.format))
    remark(f"report written to {args.output}")


def _summarise(gate: GateDocument) -> None:
    """Add the Markdown report to the summary of the workflow's step, where one is asked for."""
    from auditor.report import render_gate

    file = os.environ.get(SUMMARY)
    if not file:
        return
    try:
        with open(file, "a", encoding="utf-8") as summary:
            summary.write(render_gate(gate, "markdown"))
    except OSError as error:
        raise AuditError(f"${SUMMARY}: {file} can't be written: {error.strerror or error}") from None


COMMAND = GateCommand()
