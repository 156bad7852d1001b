"""The gate over the history of a repository: at each commit its verdict is right, in every format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from sample_repo import BASELINE, PATCHES, History, build
from sarif_schema import SCHEMA

from auditor.gate_document import GateDocument
from auditor.report import GATE_FORMATS
from auditor.store import Store

Cli = Callable[..., Any]  # gives (code, out, err)

REFACTORS = (
    "01-rename-variables",
    "02-comments-types-and-line-breaks",
    "03-move-the-model-into-a-package",
    "04-extract-helper-functions",
    "05-rename-modules-and-count-layers-from-1",
    "06-compute-values-before-keys-and-queries",
    "07-wrap-modules-in-a-decorator",
    "08-another-eps",  # what could be fused is the same for every eps
    "10-give-the-last-norm-back-to-pytorch",
)
FIGURES = ("unfused_kernels", "avoidable_kernels", "kernels", "bytes", "peak_memory")


@dataclass(frozen=True)
class Worse:
    """What a commit makes worse: the limits that it breaks, what came and where."""

    broken: tuple[str, ...]
    rule: str
    file: str
    code: str
    module: str
    words: str


GROWN = tuple(f"max_increase.{key}" for key in ("unfused_kernels", "avoidable_kernels", "kernels", "bytes"))
WORSE = {
    "09-write-the-last-norm-by-hand": Worse(
        GROWN, "FUS203", "decoder/__init__.py", "centered = x - x.mean", "model.last_norm",
        "grew from 43 to 52: 9 more (+21 %), no increase is allowed",
    ),
    "11-compute-attention-by-parts": Worse(
        (*GROWN, "require[1]"), "FUS601", "decoder/layers.py", "scores = (q * self.scale)",
        "model.layers.1.self_attention", "no kernel of it ran, at least 2 must; what ran instead: aten.clone × 8",
    ),
}  # fmt: skip
LIMITS = {
    "max_increase.unfused_kernels": "unfused_kernels = 0", "max_increase.avoidable_kernels": "avoidable_kernels = 0",
    "max_increase.kernels": "kernels = 0", "max_increase.bytes": "bytes = 0",
    "require[1]": "[[tool.fusion-audit.require]]",
}  # fmt: skip
"""The line of pyproject.toml that sets each."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Built once: what a run says does not depend on which format asks."""
    folder = tmp_path_factory.mktemp("sample")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        patch.chdir(folder)
        yield build(folder)


@pytest.fixture
def gate(history: History, fusion_audit: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The gate on the run of a commit, against the committed baseline."""
    monkeypatch.chdir(history.folder)

    def run(title: str, fmt: str = "text", *words: str) -> Any:
        run = history.commits[title].run
        return fusion_audit("gate", run, "--db", history.store, "--baseline", BASELINE, "--format", fmt, *words)

    return run


def test_every_commit_is_expected_to_be_one_or_the_other() -> None:
    assert sorted([*REFACTORS, *WORSE]) == [patch.stem for patch in PATCHES]
    assert set(GATE_FORMATS) == set(SAYS)


@pytest.mark.parametrize("title", REFACTORS)
def test_what_changes_nothing_passes_and_every_finding_is_the_same(gate: Cli, title: str) -> None:
    done = gate(title, "json")

    said = json.loads(done.out)
    assert (done.code, said["passed"]) == (0, True)
    assert {check["status"] for check in said["checks"]} == {"passed"}
    assert [change["change"] for change in said["comparison"]["findings"]] == ["same"] * 6
    assert {m["key"]: m["verdict"] for m in said["comparison"]["measures"] if m["counted"]} == dict.fromkeys(
        FIGURES, "same"
    )
    assert said["next"] == []


@pytest.mark.parametrize("title", REFACTORS)
def test_fingerprints_survive(history: History, title: str) -> None:
    """The baseline's own, not only those that a comparison matched."""
    kept = json.loads((history.folder / BASELINE).read_text())["findings"]
    assert {found["fingerprint"] for found in kept} == fingerprints(history, title)


def fingerprints(history: History, title: str) -> set[str]:
    with Store.open(str(history.store), create=False) as store:
        return {finding.fingerprint for finding in store.load(history.commits[title].run).document.findings}


@pytest.mark.parametrize(
    ("title", "count"), [("09-write-the-last-norm-by-hand", 2), ("11-compute-attention-by-parts", 2)]
)
def test_another_computation_has_other_fingerprints(history: History, title: str, count: int) -> None:
    assert len(fingerprints(history, title) - fingerprints(history, "base")) == count


@pytest.mark.parametrize("title", ["base", *REFACTORS])
@pytest.mark.parametrize("fmt", GATE_FORMATS)
def test_each_format_says_that_it_passed(history: History, gate: Cli, title: str, fmt: str) -> None:
    done = gate(title, fmt)

    assert (done.code, done.err) == (0, "")
    assert SAYS[fmt](done.out) == []
    if fmt in ("text", "json", "markdown"):
        assert history.first.commit[:12] in done.out


@pytest.mark.parametrize("title", WORSE)
@pytest.mark.parametrize("fmt", GATE_FORMATS)
def test_each_format_says_what_got_worse_and_where(history: History, gate: Cli, title: str, fmt: str) -> None:
    worse = WORSE[title]
    done = gate(title, fmt)

    # the verdict, by what the format has for it
    assert (done.code, done.err) == (1, "")
    assert sorted(SAYS[fmt](done.out)) == sorted(worse.broken)
    # what got worse, where in that commit's source, since which commit, by which limits, and what to type
    line = history.line_of(title, worse.file, worse.code)
    settings = (history.folder / "pyproject.toml").read_text().splitlines()
    told = [
        worse.rule, worse.words, worse.module, history.first.commit[:12],
        *(f"pyproject.toml:{settings.index(LIMITS[mark]) + 1}" for mark in worse.broken),
        f"fusion-audit diff {history.first.run} {history.commits[title].run}",
    ]  # fmt: skip
    shown = flat(done.out)
    if fmt == "json":  # for programs: the same as data
        assert_data(done.out, worse, line, history)
        told = [worse.rule, worse.words, worse.module, history.first.commit]
    else:
        told.append(f"{worse.file}:{line} in forward")
    assert [part for part in told if part not in shown] == []


def flat(text: str) -> str:
    """Without the line breaks and escapes of a format."""
    plain = text.replace("%25", "%").replace("\\u2192", "→").replace("\\u00d7", "×").replace("&#215;", "×")
    return " ".join(plain.replace("%0A", " ").replace("\\n", " ").split())


def assert_data(out: str, worse: Worse, line: int, history: History) -> None:
    said = json.loads(out)
    assert said["comparison"]["before"]["commit"] == history.first.commit
    for check in (c for c in said["checks"] if c["status"] == "failed"):
        assert Path(check["file"]) == history.folder / "pyproject.toml"
        assert check["line"] > 0
        first = check["culprits"][0]
        assert (first["rule"], first["module"]) == (worse.rule, worse.module)
        assert (Path(first["source"]["file"]), first["source"]["line"]) == (history.folder / worse.file, line)
    assert said["next"][0].startswith("fusion-audit diff ")


# Each gives the ids of the limits that are broken, as the format itself holds them.


def of_text(out: str) -> list[str]:
    assert ("within budget: 6 limits kept" in out) != ("over budget: " in out)
    return re.findall(r"^error\[(\S+)\]", out, re.MULTILINE)


def of_json(out: str) -> list[str]:
    read = msgspec.json.decode(out, type=GateDocument)
    assert read.passed == (not any(check.status == "failed" for check in read.checks))
    return [check.id for check in read.checks if check.status == "failed"]


def of_junit(out: str) -> list[str]:
    root = ET.fromstring(out)
    failed = [case.get("name", "") for case in root.iter("testcase") if case.find("failure") is not None]
    assert (root.get("tests"), root.get("failures")) == ("6", str(len(failed)))
    return [name.partition(": ")[0] for name in failed]


def named(issues: Iterable[str]) -> list[str]:
    """Limits that issues name: each finding once, with all that it breaks, a line each."""
    texts = list(issues)
    firsts = [text.split("\nbreaks: ")[0] for text in texts]
    assert len(set(firsts)) == len(firsts)
    found = re.findall(r"^(?:breaks: .*\(|limit: )(\S+), [^()\n]+\)?$", "\n".join(texts), re.MULTILINE)
    return list(dict.fromkeys(found))


def of_sarif(out: str) -> list[str]:
    data = json.loads(out)
    jsonschema.validate(data, SCHEMA, jsonschema.Draft202012Validator)
    errors = [result for result in data["runs"][0]["results"] if result["level"] == "error"]
    assert bool(errors) == bool(data["runs"][0]["results"])
    return named(result["message"]["text"] for result in errors)


def of_github(out: str) -> list[str]:
    lines = out.splitlines()
    assert lines[-1].startswith("::notice title=fusion gate of infer")
    assert all(line.startswith("::") for line in lines)
    return named(line.replace("%0A", "\n") for line in lines if line.startswith("::error"))


def of_gitlab(out: str) -> list[str]:
    issues = json.loads(out)
    assert {issue["severity"] for issue in issues} <= {"major"}
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    return named(issue["description"] for issue in issues)


def of_markdown(out: str) -> list[str]:
    assert ("✅ **within budget: 6 limits kept**" in out) != ("❌ **over budget: " in out)
    return re.findall(r"^- \*\*limit\*\* `(\S+),", out, re.MULTILINE)


SAYS = {
    "text": of_text, "json": of_json, "junit": of_junit, "sarif": of_sarif, "github": of_github, "gitlab": of_gitlab,
    "markdown": of_markdown,
}  # fmt: skip
