"""The command line: verbs, and the options of one of them."""

from __future__ import annotations

import argparse
import difflib
import inspect
from abc import ABC, abstractmethod
from importlib import import_module
from typing import NoReturn

VERBS = {
    "run": "auditor.cli.run",
    "import": "auditor.cli.import_",
    "runs": "auditor.cli.runs",
    "show": "auditor.cli.show",
    "fix": "auditor.cli.fix",
    "gate": "auditor.cli.gate",
    "baseline": "auditor.cli.baseline",
    "diff": "auditor.cli.diff",
    "rules": "auditor.cli.rules",
    "devices": "auditor.cli.devices",
    "why-not": "auditor.cli.why_not",
    "graph": "auditor.cli.graph",
    "doctor": "auditor.cli.doctor",
    "serve": "auditor.cli.serve",
    "push": "auditor.cli.push",
    "token": "auditor.cli.token",
}
"""Verb → its module, whose ``COMMAND`` is a :class:`Command`. Imported when the verb, or its help, is asked for."""


class Command(ABC):
    """One verb. The docstring of the class is its help text; the first line stands in the list of verbs."""

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Do the work; returns the exit code, raises AuditError for bad input."""

    def parse(self, parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
        return parser.parse_args(argv)


class Parser(argparse.ArgumentParser):
    """Argparse in this program's manner of speaking: ``error: …`` in one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        from auditor.cli.output import visible

        self.exit(2, f"error: {visible(message)}; see: {self.prog} --help\n")


def parse(argv: list[str]) -> tuple[Command, argparse.Namespace]:
    """The command that ``argv`` names, and its arguments. Help, version and mistakes end in ``SystemExit``."""
    top = _top_parser()
    if not argv:
        top.print_help()
        top.exit(2)
    verb = argv[0]
    if verb.startswith("-"):
        top.parse_args(argv[:1])  # --help and --version end here
        top.error(f"{verb} is not an option; a verb comes first")
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the verbs are {', '.join(VERBS)}"
        top.error(f"there is no verb {verb!r}; {hint}")
    command = load(verb)
    return command, command.parse(parser_of(verb), argv[1:])


def parser_of(verb: str) -> Parser:
    """What reads the arguments of ``verb``, and prints its help."""
    command = load(verb)
    parser = Parser(
        prog=f"fusion-audit {verb}", description=inspect.getdoc(type(command)), allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_options(parser)
    return parser


def load(verb: str) -> Command:
    command: Command = import_module(VERBS[verb]).COMMAND
    return command


def _top_parser() -> Parser:
    from auditor import __version__

    parser = _Top(
        prog="fusion-audit", usage="fusion-audit VERB [options]", allow_abbrev=False,
        description="The kernels of a PyTorch model that should be one kernel, and what that costs.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"fusion-audit {__version__}")
    return parser


class _Top(Parser):
    """Adds the verbs when the help is printed, and not before: that imports their modules."""

    def format_help(self) -> str:
        lines = [f"  {verb:<10}{_summary(verb)}" for verb in VERBS]
        return super().format_help() + "\nverbs (each has its own --help):\n" + "\n".join(lines) + "\n"


def _summary(verb: str) -> str:
    return (inspect.getdoc(type(load(verb))) or "").split("\n", 1)[0].rstrip(".")
