"""The reference is written from the code: nothing stale, nothing missing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import jsonschema
import msgspec
import pytest
from gate_factory import graph, save
from reference_pages import FOLDER, __main__, attributes, command_line, configuration, documents, pages, text

import auditor
from auditor.cli.parser import VERBS, Command, Parser, parser_of
from auditor.document import Document
from auditor.engine.rules import load_rules
from auditor.report import render
from auditor.store import Store
from fused_replacements.docs import stale


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return pages()


def test_pages_in_the_repository_are_fresh(written: dict[str, str]) -> None:
    assert stale(FOLDER, written) == [], "run `make docs`"


def test_every_verb_and_option_has_its_line(written: dict[str, str]) -> None:
    for verb in VERBS:
        assert f"\n## {verb}\n" in written["cli.md"]
        for option in _options(parser_of(verb)):
            assert f"`{option}" in written["cli.md"], f"{verb} {option}"


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _options(sub)
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            yield from action.option_strings


def test_every_rule_public_name_and_key_is_there(written: dict[str, str]) -> None:
    assert all(f"## {rule.id} {rule.name}" in written["rules.md"] for rule in load_rules())
    named = [name for name in auditor.__all__ if not name.startswith("__")]
    assert all(f":: auditor.{name}\n" in written["python.md"] + "\n" for name in named)
    assert all(f"| `{key}` |" in written["configuration.md"] for key in auditor.config.Config.__struct_fields__)


def test_every_path_of_the_api_is_there(written: dict[str, str]) -> None:
    from reference_pages.http_api import _document

    for path, operations in _document()["paths"].items():
        for method in operations:
            assert f"## {method.upper()} {path}\n" in written["http-api.md"]


@pytest.mark.parametrize("name", [documents._file(kind) for _, kind, _ in documents.KINDS])
def test_the_schemas_are_schemas(name: str, written: dict[str, str]) -> None:
    schema = json.loads(written[f"schema/{name}"])
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid({"schema": schema["title"], "more": 1}) == (
        not schema["$defs"][schema["$ref"].rsplit("/", 1)[1]]["required"]
    )


def test_a_document_is_valid_and_a_broken_one_is_not(written: dict[str, str], store: Store) -> None:
    save(store, graph())
    document = json.loads(render(store.load("latest").document, None, "json"))
    validator = jsonschema.Draft202012Validator(json.loads(written["schema/fusion-audit-1.json"]))
    assert list(validator.iter_errors(document)) == []
    document["totals"]["kernels"] = "many"
    assert [list(error.path) for error in validator.iter_errors(document)] == [["totals", "kernels"]]


def test_a_new_option_a_new_key_and_a_new_field_change_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class More(Command):
        """Do more."""

        def add_options(self, parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--more", metavar="N", help="how much more")

        def run(self, args: argparse.Namespace) -> int:
            return int(args.more)

    def parser_with_more(verb: str) -> Parser:
        parser = parser_of(verb)
        More().add_options(parser)
        return parser

    before = command_line.pages()["cli.md"]
    monkeypatch.setattr(command_line, "parser_of", parser_with_more)
    assert before != command_line.pages()["cli.md"]
    assert "| `--more N` | how much more |" in command_line.pages()["cli.md"]


def test_an_option_or_key_without_a_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(verb: str) -> Parser:
        parser = parser_of(verb)
        parser.add_argument("--silent")
        return parser

    monkeypatch.setattr(command_line, "parser_of", silent)
    with pytest.raises(AssertionError, match="silent has no help"):
        command_line.pages()
    with pytest.raises(AssertionError, match="quiet has no text under it"):
        configuration._keys([attributes.Attribute("quiet", "str", "''", "")])


def test_structs_are_read_with_what_stands_under_their_fields() -> None:
    found = {attribute.name: attribute for attribute in attributes.attributes(Document)}
    assert list(found) == list(Document.__struct_fields__)
    assert found["schema"].default == "SCHEMA"
    totals = {a.name: a for a in attributes.attributes(msgspec.inspect.type_info(Document).fields[4].type.cls)}
    assert totals["peak_bytes"].meaning.startswith("Largest sum of the bytes")


def test_the_command_tells_what_is_stale(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "pages", lambda: {"cli.md": "other"})
    assert __main__.main(["--check"]) == 1
    assert "cli.md" in capsys.readouterr().out


def test_docstrings_become_markdown() -> None:
    assert text.prose("A :class:`~a.B` of ``c``. As::\n\n    x = 1\n\n    y = 2\n\nEnd.") == (
        "A `a.B` of `c`. As:\n\n```text\nx = 1\n\ny = 2\n```\n\nEnd."
    )
    assert text.cell("a |\n b") == "a \\| b"
