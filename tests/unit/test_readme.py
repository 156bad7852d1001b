"""The README says what the program does: every rule, verb and option that it names exists, and none is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from auditor.cli import main
from auditor.engine.rules import load_rules
from auditor.gate.budget import file_demands
from fused_replacements import cpu_path
from fused_replacements._registry import HOME

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_table_of_rules_is_complete() -> None:
    rows = dict(re.findall(r"^\| (FUS\d+) \| ([a-z-]+) \|", README, re.MULTILINE))
    assert rows == {rule.id: rule.name for rule in load_rules()}


def test_every_verb_and_option_of_the_synopsis_exists(capsys: pytest.CaptureFixture[str]) -> None:
    synopsis = README.split("## Commands", 1)[1].split("```")[1]
    verbs = re.findall(r"^fusion-audit ([a-z-]+)", synopsis, re.MULTILINE)
    assert verbs == [
        "run",
        "import",
        "runs",
        "show",
        "fix",
        "gate",
        "baseline",
        "diff",
        "rules",
        "why-not",
        "graph",
        "serve",
        "push",
        "token",
        "doctor",
    ]
    options: dict[str, set[str]] = {}
    verb = ""
    for line in synopsis.splitlines():
        named = re.match(r"fusion-audit ([a-z-]+)", line)
        verb = named.group(1) if named else verb
        options.setdefault(verb, set()).update(re.findall(r"--[a-z-]+", line.split("  why")[0]))
    for verb, named_options in options.items():
        if not verb:
            continue
        assert main([verb, "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(option in shown for option in named_options), verb


def test_the_budgets_of_the_example_are_read(tmp_path: Path) -> None:
    block = next(block.split("```")[0] for block in README.split("```toml")[1:] if "max_increase" in block)
    (tmp_path / "pyproject.toml").write_text(block)
    demands = file_demands(tmp_path / "pyproject.toml", [(rule.id, rule.name) for rule in load_rules()])
    assert (len(demands.limits), len(demands.required)) == (7, 1)


def test_the_table_of_replacements_is_complete() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(docs/replacements/(\w+)\.md\) \|.*\| (\w+) \|$", README, re.MULTILINE)
    assert all(name == page for name, page, _ in rows)
    assert {name: family for name, _, family in rows} == dict(HOME)
    assert all((Path(__file__).resolve().parents[2] / "docs" / "replacements" / f"{name}.md").exists() for name in HOME)


def test_the_example_of_replacements_runs() -> None:
    blocks = [block.split("```")[0] for block in README.split("```python")[1:]]
    code = next(block for block in blocks if "fused_replacements" in block)
    with cpu_path("reference"):
        exec(compile(code, "README.md", "exec"), {})
