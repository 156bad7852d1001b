"""``fusion-audit run``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.cli import options
from auditor.cli.output import Progress, as_text, check_output, emit, remark, script_output_on_stderr
from auditor.cli.parser import Command
from auditor.ranks.world import world

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.collect.recording import Recording
    from auditor.config import Config
    from auditor.devices.describe import Device
    from auditor.engine.rules import Rule
    from auditor.patching.plan import Plan
    from auditor.stored import Origin


class RunCommand(Command):
    """Run a script, record the steps of its models, and report what could be fused.

    The script runs unmodified. A step is found by itself: a call of the outermost model, or forward to
    optimizer.step() in training; auditor.step() in the script marks one by hand. Everything after the
    script belongs to the script. When it fails its exit code is passed on, after the report of what was
    recorded. With --format json and no -o, what the script prints goes to stderr. Under torchrun the ranks are
    parts of one run, which rank 0 stores and reports.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "%(prog)s [options] script.py [script args...]"
        parser.add_argument("script", metavar="script.py", help="the script, followed by its own arguments")
        parser.add_argument("--steps", type=options.positive, default=5, metavar="N", help="steps to time (default: 5)")
        parser.add_argument(
            "--warmup", type=options.not_negative, default=2, metavar="N", help="steps to let pass first (default: 2)"
        )  # fmt: skip
        parser.add_argument("--patch", metavar="PLAN", type=Path, help="apply a plan that `fusion-audit fix` wrote")
        parser.add_argument(
            "--rank-wait", type=options.seconds, default=300.0, metavar="TIME",
            help="under torchrun: how long rank 0 waits for the other ranks (default: 5m)",
        )  # fmt: skip
        parser.add_argument("--stop", action="store_true", help="end the script as soon as enough is recorded")
        options.add_audit(parser)

    def parse(self, parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
        own, rest = split_at_script(parser, argv)
        args = parser.parse_args(own)
        args.script_args = rest
        return args

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output)
        quiet = args.format == "json" and args.output is None
        rank = world()
        if rank is not None:
            from auditor.cli.ranks import run_rank

            return run_rank(args, rank, quiet=quiet)
        audit, run, code = self.record(args, quiet=quiet)
        emit(audit.document, audit.graph, args.format, args.output)
        remark(f"stored as {run}")
        return code

    def record(self, args: argparse.Namespace, *, quiet: bool) -> tuple[Audit, str, int]:
        """Run and audit the script, and store that: the audit, its id, and the script's exit code.

        ``quiet``: what the script prints on stdout goes to stderr.
        """
        ready = prepare(args)

        from auditor.store import Store
        from auditor.store.registering import register
        from auditor.stored import save

        with Store.open(args.db) as store, tempfile.TemporaryDirectory(prefix="fusion-audit-") as folder:
            recording = recorded(args, ready, Path(folder), quiet=quiet)
            remark("reading what was recorded")
            audit = audited(args, ready, Path(folder), recording, on_progress=Progress())
            run_id = save(store, audit, ready.origin)
            if ready.plan is None:  # it would run again without its plan
                register(store, run_id, args.script, args.script_args, ready.digest)
        return audit, run_id, recording.exit_code


@dataclass(frozen=True)
class Ready:
    """All that has to be right before the script runs, and what the code was then: a run can take an hour."""

    config: Config
    rules: list[Rule]
    device: Device | None
    plan: Plan | None
    digest: str
    origin: Origin


def prepare(args: argparse.Namespace) -> Ready:
    """Read settings, rules, device and plan: a mistake in one of them is told before the script runs."""
    from auditor.api import rules_of

    config = options.settings(args)
    rules, device, plan = rules_of(config), options.described_device(args), _plan(args.patch)

    from auditor.store.registering import digest
    from auditor.stored import Origin

    return Ready(config, rules, device, plan, digest(args.script), Origin.here())


def recorded(args: argparse.Namespace, ready: Ready, folder: Path, *, quiet: bool, **how: Any) -> Recording:
    """Run the script and record it into ``folder``; ``how`` are further arguments of ``record_script``."""
    from auditor.collect.launch import record_script

    with script_output_on_stderr(quiet):
        return record_script(
            args.script, args.script_args, steps=args.steps, warmup=args.warmup, folder=folder, stop=args.stop,
            **{"on_progress": Progress(), **_patching(args, ready.config), **how},
        )  # fmt: skip


def audited(
    args: argparse.Namespace, ready: Ready, folder: Path, recording: Recording, on_progress: Callable[[str], None]
) -> Audit:
    """The audit of what was recorded, with all that is known of the run."""
    from auditor.api import audit_recording, run_name
    from auditor.store.ids import is_id

    audit = audit_recording(
        folder, recording, rules=ready.rules, device=ready.device, config=ready.config,
        name=as_text(_name(args, run_name(ready.config, args.script))), on_progress=on_progress,
    )  # fmt: skip
    run = audit.document.run
    if ready.plan is not None:
        run.plan = str(args.patch.absolute())
        run.patched_from = ready.plan.run if is_id(ready.plan.run) else ""
    return audit


def _plan(path: Path | None) -> Plan | None:
    if path is None:
        return None
    from auditor.patching.plan import load_plan

    return load_plan(path)


def _name(args: argparse.Namespace, name: str) -> str:
    """A run under a plan has a name of its own: ``fix``, ``show`` and gates by name mean the script as it is."""
    return f"{name}-patched" if args.patch and not args.name else name


def _patching(args: argparse.Namespace, config: Config) -> dict[str, Any]:
    """Arguments of ``record_script`` that have a plan applied beside the recorder."""
    if not args.patch:
        return {}
    return {"patcher": "auditor.fix.apply:attach", "plan": args.patch, "options": {"rules": list(config.rules)}}


def split_at_script(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[list[str], list[str]]:
    """Our part of ``argv``, up to and with the script, and the script's part, as it is.

    Argparse's own ``REMAINDER`` would swallow a ``--`` that is meant for the script.
    """
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            return argv[: position + 2], argv[position + 2 :]
        if not word.startswith("-") or word == "-":
            return argv[: position + 1], argv[position + 1 :]
        action = parser._option_string_actions.get(word)
        position += 2 if action is not None and action.nargs != 0 else 1
    return argv, []


COMMAND = RunCommand()
