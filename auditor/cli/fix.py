"""``fusion-audit fix``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.output import (
    Progress,
    check_output,
    colored,
    columns,
    remark,
    script_output_on_stderr,
    write_file,
)  # fmt: skip
from auditor.cli.parser import Command
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.fix.run import Fixing
    from auditor.fix_document import FixDocument
    from auditor.store import Store

PLAN = "fusion-plan.yaml"


class FixCommand(Command):
    """Patch the audited model, keep only what is right and faster, and write the plan of it.

    The script of RUN runs again, in a process of its own: one step's inputs are captured, each site is tried with
    every replacement that fits, verified against higher precision and timed against the separate ops; then the step
    as a whole is timed as it is, patched, and under torch.compile. What wins is written into a plan, and the script
    runs once more with it to be audited again. The script ends as soon as all is measured.

    --diff changes nothing: it shows the sites and suggests changes of your own source.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run", nargs="?", default="latest", metavar="RUN", help="id, its unique start, or name (default: latest)"
        )  # fmt: skip
        options.add_rules(parser)
        options.add_selection(parser)
        parser.add_argument(
            "--diff", action="store_true", help="show what would be patched, and suggest source changes"
        )
        parser.add_argument("--write", action="store_true", help="with --diff: write the suggestions into your files")
        parser.add_argument("--limit", type=options.not_negative, metavar="N", help="patch the first N sites only")
        parser.add_argument(
            "--min-gain", type=options.share, default=0.0, metavar="1%", help="gain below which nothing is kept"
        )  # fmt: skip
        parser.add_argument("--keep-all", action="store_true", help="keep what is right even where it does not win")
        parser.add_argument("--no-compile", action="store_true", help="do not time torch.compile")
        parser.add_argument(
            "--time-cap", type=options.seconds, default=1800.0, metavar="30m",
            help="end a script that runs longer: 90s, 30m, 2h (default: 30m)",
        )  # fmt: skip
        parser.add_argument(
            "--plan", type=Path, metavar="FILE", help=f"where the plan goes (default: {PLAN} beside the store)"
        )
        parser.add_argument("--device", metavar="FILE", type=Path, help="YAML description of the device")
        options.add_report(parser, ("text", "json", "markdown"))
        options.add_db(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.write and not args.diff:
            raise AuditError("--write writes the changes that --diff suggests; give both")
        check_output(args.output)

        from auditor.store import Store

        with Store.open(args.db, create=False) as store:
            plan = args.plan or _beside(store)
            check_output(None if args.diff else plan)
            fixing = _fixing(args, store)
            with script_output_on_stderr(args.format == "json" and args.output is None), _ends_are_told():
                fix = _diff(args, fixing) if args.diff else _fix(fixing, store, plan)
        emit_fix(fix, args)
        return fix.exit_code


def _fixing(args: argparse.Namespace, store: Store) -> Fixing:
    from auditor.api import rules_of
    from auditor.fix.meant import fixable
    from auditor.fix.run import Fixing, FixOptions

    config = options.settings(args)
    rules = rules_of(config)
    if not any(config.chooses(rule.id, rule.name) for rule in rules):
        raise AuditError("--select and --ignore leave no rule; see: fusion-audit rules list")
    asked = FixOptions(
        limit=args.limit, min_gain=args.min_gain, keep_all=args.keep_all, compile=not args.no_compile,
        cap_s=args.time_cap,
    )  # fmt: skip
    device = options.described_device(args)
    return Fixing(fixable(store, args.run), asked, rules, config, device, on_progress=Progress())


def _fix(fixing: Fixing, store: Store, plan: Path) -> FixDocument:
    remark(f"run {fixing.stored.id}: the script runs again, to be patched and measured")
    fix = fixing.run()
    fixing.finish(store, fix, plan)
    if fix.plan:
        remark(f"plan written to {fix.plan}")
    if fix.after_run:
        remark(f"the audit after the fix is stored as {fix.after_run}")
    return fix


def _diff(args: argparse.Namespace, fixing: Fixing) -> FixDocument:
    from auditor.fix.suggest import suggestions

    without = _without_effect(args)
    if without:
        remark(f"without effect with --diff, which measures nothing: {', '.join(without)}")
    remark(f"run {fixing.stored.id}: the script runs again, to look for sites")
    fix = fixing.look()
    found = suggestions(fixing.stored, fixing.rules, fixing.config)
    fix.diff = "".join(change.diff for change in found.changes)
    fix.notes += found.notes
    for change in found.changes if args.write else ():
        write_file(change.path, change.new)
        fix.changed.append(change.name)
        remark(f"changed {change.path}")
    return fix


def _without_effect(args: argparse.Namespace) -> list[str]:
    given = {
        "--min-gain": args.min_gain, "--keep-all": args.keep_all, "--no-compile": args.no_compile,
        "--plan": args.plan is not None,
    }  # fmt: skip
    return [option for option, value in given.items() if value]


def _beside(store: Store) -> Path:
    """The plan's place: beside the store's folder or file, in the current folder for a server's."""
    file = store.location.file
    if file is None:
        return Path(PLAN)
    folder = file.parent.parent if file.name == "audits.db" else file.parent
    return folder / PLAN if folder != Path.cwd() else Path(PLAN)


def emit_fix(fix: FixDocument, args: argparse.Namespace) -> None:
    """Render a fix and write it to ``args.output``, or to stdout in the terminal's colours and width."""
    from auditor.report import render_fix

    if args.output is None:
        sys.stdout.write(render_fix(fix, args.format, color=colored(sys.stdout), width=columns()))
        return
    write_file(args.output, render_fix(fix, args.format))
    remark(f"report written to {args.output}")


@contextmanager
def _ends_are_told() -> Iterator[None]:
    """Whatever ends the work, nothing was stored: say so."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or a signal that asks to end
        remark("no plan was written and nothing was stored")
        raise
    except MemoryError:
        raise AuditError("out of memory; no plan was written and nothing was stored") from None


COMMAND = FixCommand()
