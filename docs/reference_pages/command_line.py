"""docs/reference/cli.md: every verb with its options, from the parsers themselves."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from unittest.mock import patch

from auditor.cli.parser import VERBS, load, parser_of
from reference_pages.text import code, fence, page, table

EXIT_CODES = """\
Exit codes of every verb: 0 done, 1 the run is over its budget (`gate`) or a test failed (`rules test`), 2 bad input or
usage, with one sentence on stderr. `run` passes the script's own exit code on when the script fails."""
ENVIRONMENT = (
    ("FUSION_AUDIT_DIR", "folder of the store, instead of `.fusion-audit`"),
    ("FUSION_AUDIT_DB", "address of a database with the runs, such as `postgresql+psycopg://user@host/audits`"),
    ("FUSION_AUDIT_ARTEFACTS", "folder of what lies beside such a database"),
    ("FUSION_AUDIT_TOKEN", "token for a service: `push`, and `gate` with a service's address"),
    ("FUSED_REPLACEMENTS_CPU", "`reference`: replacements run their definitions on a CPU, and compile nothing"),
)


def pages() -> dict[str, str]:
    listed = table(("verb", "what it does"), ((f"[{verb}](#{verb})", _first(verb)) for verb in VERBS))
    variables = table(("variable", "meaning"), ((code(name), meaning) for name, meaning in ENVIRONMENT))
    verbs = [part for verb in VERBS for part in _verb(verb)]
    parts = [fence("text", "fusion-audit VERB [options]"), listed, EXIT_CODES, *verbs, "## Environment", variables]
    return {"cli.md": page("Command line", *parts)}


def _first(verb: str) -> str:
    return (inspect.getdoc(type(load(verb))) or "").split("\n", 1)[0]


def _verb(verb: str) -> Iterator[str]:
    with patch.dict("os.environ", {"COLUMNS": "100"}):  # the width of a usage line
        parser = parser_of(verb)
        yield f"## {verb}"
        first, _, rest = (parser.description or "").partition("\n")
        yield first
        yield fence("text", _usage(parser))
        yield fence("text", rest) if _is_drawn(rest) else rest.strip()
        yield _options(parser)
        for name, sub in _actions(parser):
            yield f"### {verb} {name}"
            yield fence("text", _usage(sub))
            yield _options(sub)


def _usage(parser: argparse.ArgumentParser) -> str:
    return parser.format_usage().removeprefix("usage: ").replace("\n       ", "\n")


def _is_drawn(text: str) -> bool:
    """Whether the help has columns of its own, which running text would lose."""
    return any("   " in line.strip() for line in text.splitlines())


def _options(parser: argparse.ArgumentParser) -> str:
    rows = []
    for action in parser._actions:
        if isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)) or action.help == argparse.SUPPRESS:
            continue
        assert action.help, f"{parser.prog}: {action.dest} has no help"
        rows.append((_name(action), action.help))
    return table(("option", "meaning"), rows)


def _name(action: argparse.Action) -> str:
    metavar = action.metavar or action.dest.upper()
    value = "|".join(action.choices) if action.choices else str(metavar)
    if not action.option_strings:
        return code(str(metavar))
    takes = "" if action.nargs == 0 else f" {value}"
    return ", ".join(code(f"{option}{takes}") for option in action.option_strings)


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()
