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

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
        "devices",
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
    page = (ROOT / "docs" / "how-to" / "gate.md").read_text(encoding="utf-8")
    block = next(block.split("```")[0] for block in page.split("```toml")[1:] if "max_increase" in block)
    (tmp_path / "pyproject.toml").write_text(block)
    demands = file_demands(tmp_path / "pyproject.toml", [(rule.id, rule.name) for rule in load_rules()])
    assert (len(demands.limits), len(demands.required)) == (7, 1)


def test_the_table_of_replacements_is_complete() -> None:
    linked: dict[str, str] = {}
    for family, links in re.findall(r"^\| (\w+) \| (\[.*) \|$", README, re.MULTILINE):
        for name, page in re.findall(r"\[(\w+)\]\(docs/replacements/(\w+)\.md\)", links):
            assert name == page
            assert (ROOT / "docs" / "replacements" / f"{name}.md").exists()
            linked[name] = family
    assert linked == dict(HOME)


def test_it_stays_short_enough_to_be_read() -> None:
    lines = README.splitlines()
    assert len(lines) <= 360, "move detail to docs/"
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_the_example_of_replacements_runs() -> None:
    blocks = [block.split("```")[0] for block in README.split("```python")[1:]]
    code = next(block for block in blocks if "fused_replacements" in block)
    with cpu_path("reference"):
        exec(compile(code, "README.md", "exec"), {})
