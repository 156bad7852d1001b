"""``fusion-audit rules``."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.cli import options
from auditor.cli.output import columns
from auditor.cli.parser import Command
from auditor.errors import AuditError

if TYPE_CHECKING:
    from auditor.engine.rules import Rule


class RulesCommand(Command):
    """List, explain, test or start rules.

    fusion-audit rules list            every rule, those of the project's own folders included
    fusion-audit rules show ID         what a rule looks for, why, and what to do (an id or a name)
    fusion-audit rules test [PATH...]  run the tests inside rule files (default: every rule)
    fusion-audit rules new NAME        write a rule file to start from
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|test|new")
        adders = {"list": None, "show": _add_rule, "test": _add_paths, "new": _add_name}
        for action, add in adders.items():
            sub = actions.add_parser(action, prog=f"fusion-audit rules {action}", allow_abbrev=False)
            options.add_rules(sub)
            if add is not None:
                add(sub)

    def run(self, args: argparse.Namespace) -> int:
        return {"list": _list, "show": _show, "test": _test, "new": _new}[args.action](args)


def _add_rule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", metavar="ID", help="id or name of the rule")


def _add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="rule files or folders of them")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the rule, such as unfused-rms-norm")


def _list(args: argparse.Namespace) -> int:
    rules = _rules(args)
    width = max(len(rule.name) for rule in rules)
    for rule in rules:
        print(f"{rule.id}  {rule.name:<{width}}  {rule.family:<12}{rule.status:<9}{rule.severity}")
        print(_fitting(f"{'':{len(rule.id)}}  {summary(rule)}"))
    return 0


def summary(rule: Rule) -> str:
    """The first sentence of what the rule says of itself."""
    return re.split(r"(?<=[.!?])\s", " ".join(rule.docs["what"].split()), maxsplit=1)[0]


def _fitting(line: str) -> str:
    """``line`` cut to the terminal; whole where the output goes to a file or a pipe."""
    if not sys.stdout.isatty() or len(line) <= columns():
        return line
    return line[: columns() - 1].rstrip(" ,;") + "…"


def _show(args: argparse.Namespace) -> int:
    rule = find_rule(_rules(args), args.rule)
    print(f"{rule.id} {rule.name}\n")
    print(f"{rule.family} · {rule.status} · {rule.severity} · {len(rule.tests)} tests")
    print(rule.path)
    for section, text in rule.docs.items():
        shown = text if section in CODE else _wrapped(text)
        print(f"\n{_heading(section)}\n{_indented(shown)}")
    return 0


def _test(args: argparse.Namespace) -> int:
    from auditor.engine.rules import load_rule_files
    from auditor.engine.ruletests import run_rule_tests

    rules = load_rule_files(args.paths) if args.paths else _rules(args)
    results = run_rule_tests(rules)
    failed = [result for result in results if not result.passed]
    for result in failed:
        print(f"FAILED {result.rule}: {result.test}\n{_indented(result.message)}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed, in {len(rules)} rules")
    untested = [rule.id for rule in rules if not rule.tests]
    if untested:
        print(f"without any test: {', '.join(untested)}", file=sys.stderr)
    return 1 if failed else 0


def _new(args: argparse.Namespace) -> int:
    from auditor.engine.newrule import new_rule

    folders = options.settings(args).rules
    path = new_rule(args.name, Path(folders[-1]) if folders else Path("audit_rules"))
    print(path)
    if not folders:
        print(f'now add to pyproject.toml: [tool.fusion-audit] rules = ["{path.parent}"]', file=sys.stderr)
    return 0


def _rules(args: argparse.Namespace) -> list[Rule]:
    from auditor.api import rules_of

    return rules_of(options.settings(args))


def find_rule(rules: list[Rule], wanted: str) -> Rule:
    """The rule with this id or name. Raises AuditError that lists what there is."""
    for rule in rules:
        if wanted.lower() in (rule.id.lower(), rule.name.lower()):
            return rule
    raise AuditError(f"no rule {wanted!r}; there are: {', '.join(rule.id for rule in rules)}")


CODE = ("example", "instead")
"""Sections of a rule's docs that hold Python; the others are prose."""


def _heading(section: str) -> str:
    return {"what": "What it finds", "why": "Why it costs", "instead": "Use instead"}.get(section, section.capitalize())


def _wrapped(text: str) -> str:
    width = max(40, min(columns(), 100) - 2)
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(textwrap.fill(" ".join(p.split()), width, break_on_hyphens=False) for p in paragraphs)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.strip().splitlines())


COMMAND = RulesCommand()
