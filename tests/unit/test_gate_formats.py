"""The gate's verdict in every format, with names that nobody should trust."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from report_factory import HOSTILE
from sarif_schema import SCHEMA

from auditor.gate_document import (
    Check,
    Comparison,
    Culprit,
    FindingChange,
    GateDocument,
    Head,
    Measure,
    Place,
    Point,
    RuleText,
)
from auditor.report import GATE_FORMATS, GateFormat, render_diff, render_gate
from auditor.report.gate_facts import in_repository
from auditor.report.gate_markdown import sparkline


def change(kind: Any = "new", name: str = "unfused-rms-norm", file: str = "/repo/src/model.py") -> FindingChange:
    pair = (0.0, 2.0) if kind == "new" else (2.0, 0.0) if kind == "fixed" else (1.0, 2.0)
    kernels = (6 * pair[0], 6 * pair[1])
    return FindingChange(
        change=kind, fingerprint=f"mark-{kind}", rule="FUS201", name=name, module_class="Norm",
        source=Place(file=file, line=11, function="forward"), modules=["first"], sites=pair, kernels=kernels,
        avoidable=kernels, bytes=kernels, device_us=(0.0, 0.0), likely_us=(0.0, 0.0), step_us=(0.0, 0.0),
    )  # fmt: skip


def verdict(name: str = "llama", file: str = "/repo/src/model.py", module: str = "first") -> GateDocument:
    before = Head(id="1m7", name=name, commit="b" * 40, device="H100", kind="cuda", created="2026-11-29T10:00:00+00:00")
    after = Head(id="1m8", name=name, commit="a" * 40 + "-dirty", device="H100", kind="cuda", torch="2.13.0")
    grown = Measure(
        key="unfused_kernels", label="unfused kernels", unit="count", counted=True, before=6, after=18, verdict="worse"
    )
    bound = Measure(
        key="memory_bound_share", label="memory-bound share", unit="share", counted=False, before=0.5, after=None,
        verdict="unknown",
    )  # fmt: skip
    culprit = Culprit(
        fingerprint="mark-new", rule="FUS201", name=name, what="new: 2 sites, 12 kernels, 10 avoidable",
        module=module, source=Place(file=file, line=11, function="forward"), step_us=1200.0, likely_us=900.0,
    )  # fmt: skip
    return GateDocument(
        passed=False,
        run=after,
        baseline="baseline base.json",
        comparison=Comparison(
            before=before, after=after, measures=[grown, bound], remarks=["The devices differ."],
            findings=[change("new", name, file), change("more"), change("fixed")],
        ),
        checks=[
            Check(
                id="max_increase.unfused_kernels", key="unfused_kernels", title="unfused kernels against the baseline",
                status="failed", value=18, limit=6, before=6, file="/repo/pyproject.toml", line=5, culprits=[culprit],
                message="grew from 6 to 18: 12 more (+200 %), no increase is allowed",
            ),
            Check(
                id="max_memory_bound_share", key="memory_bound_share", title="memory-bound share", status="warned",
                unit="share", value=0.7, limit=0.6, file="/repo/pyproject.toml", line=6,
                message="70 %, 10.0 points more than the 60 % allowed",
            ),
            Check(id="max_kernels", key="kernels", title="kernels", status="passed", message="40 of at most 50"),
            Check(id="max_bytes", key="bytes", title="bytes", status="skipped", message="not known"),
        ],
        remarks=[f"A remark on {name}."],
        next=["fusion-audit diff 1m7 1m8", "fusion-audit fix 1m8"],
        rules=[RuleText(id="FUS201", name="unfused-rms-norm", what="Finds RMS norms. By hand.", why="Eight kernels.")],
        trend=[
            Point(id=str(i), created="", kernels=40 + i, unfused_kernels=6 * i, avoidable_kernels=5, step_us=100.0 + i)
            for i in range(4)
        ],
        root="/repo",
    )  # fmt: skip


EVERYTHING = (
    "unfused kernels against the baseline",  # what got worse
    "grew from 6 to 18: 12 more (+200 %)",  # by how much
    "src/model.py:11 in forward",  # where
    "first",
    "1.20 ms of the step",  # what it costs
    "bbbbbbbbbbbb",  # which commit the baseline is of
    "pyproject.toml:5",  # which line holds the limit
    "fusion-audit diff 1m7 1m8",  # the next command
)


@pytest.mark.parametrize("fmt", [fmt for fmt in GATE_FORMATS if fmt != "json"])
def test_every_format_says_what_a_reader_needs(fmt: GateFormat) -> None:
    text = render_gate(verdict(), fmt, width=200)
    if fmt in ("github", "sarif", "gitlab"):
        text = text.replace("%25", "%").replace("\\u2026", "…")
    for part in EVERYTHING:
        assert part in text, part


def test_the_text() -> None:
    assert render_gate(verdict(), "text", width=100) == TEXT


TEXT = """\
fusion gate of llama (1m8)
  run       commit aaaaaaaaaaaa-dirty · H100 · torch 2.13.0
  against   baseline base.json, llama (1m7) · commit bbbbbbbbbbbb · 2026-11-29 10:00 · H100
  verdict   over budget: 1 of 3 limits broken, 1 warning

error[max_increase.unfused_kernels] unfused kernels against the baseline: grew from 6 to 18: 12 more
(+200 %), no increase is allowed
 = finding   FUS201 llama, new: 2 sites, 12 kernels, 10 avoidable
 = at        src/model.py:11 in forward · first
 = costs     1.20 ms of the step, 900 µs of kernel time (estimated)
 = limit     max_increase.unfused_kernels, /repo/pyproject.toml:5

warning[max_memory_bound_share] memory-bound share: 70 %, 10.0 points more than the 60 % allowed
 = limit     max_memory_bound_share, /repo/pyproject.toml:6

findings: 1 new, 1 larger, 1 fixed
  new  FUS201 llama: 2 sites, 12 kernels, at src/model.py:11 in forward
  more  FUS201 unfused-rms-norm: 1 → 2 sites, 6 → 12 kernels, at src/model.py:11 in forward
  fixed  FUS201 unfused-rms-norm: 2 sites, 12 kernels, at src/model.py:11 in forward

  passed  kernels: 40 of at most 50
  not held  bytes: not known

  note  A remark on llama.

what next
  fusion-audit diff 1m7 1m8
  fusion-audit fix 1m8
"""


def test_json_is_the_document() -> None:
    assert msgspec.json.decode(render_gate(verdict(), "json"), type=GateDocument) == verdict()


class TestSarif:
    def read(self, gate: GateDocument) -> Any:
        data = json.loads(render_gate(gate, "sarif"))
        jsonschema.validate(data, SCHEMA, jsonschema.Draft202012Validator)
        return data["runs"][0]

    def test_rules_results_places_and_fingerprints(self) -> None:
        run = self.read(verdict())

        rules = run["tool"]["driver"]["rules"]
        assert [rule["id"] for rule in rules] == ["gate/memory_bound_share", "FUS201"]
        assert rules[1]["shortDescription"]["text"] == "Finds RMS norms"
        assert rules[1]["help"]["text"] == "Finds RMS norms. By hand.\n\nEight kernels."
        results = run["results"]
        assert [(each["ruleId"], each["level"]) for each in results] == [
            ("FUS201", "error"), ("gate/memory_bound_share", "warning"), ("FUS201", "warning"),
        ]  # fmt: skip
        assert all(rules[each["ruleIndex"]]["id"] == each["ruleId"] for each in results)
        assert [_place(each) for each in results] == [
            ("src/model.py", 11), ("pyproject.toml", 6), ("src/model.py", 11),
        ]  # fmt: skip
        assert [each["partialFingerprints"]["fusionAudit/v1"] for each in results] == [
            "mark-new", "max_memory_bound_share/llama", "mark-more",
        ]  # fmt: skip

    def test_source_outside_of_the_repository_is_told_at_the_limit(self) -> None:
        run = self.read(verdict(file="/opt/venv/lib/site-packages/lib/model.py"))
        assert _place(run["results"][0]) == ("pyproject.toml", 5)
        assert "lib/model.py:11 in forward" in run["results"][0]["message"]["text"]

    def test_what_lies_in_no_file_of_the_repository_is_told_of_the_project(self) -> None:
        gate = verdict(file="/opt/lib/model.py")
        gate.checks = [msgspec.structs.replace(gate.checks[0], file="", line=0)]
        assert _place(self.read(gate)["results"][0]) == ("pyproject.toml", 1)

    def test_a_clean_run_has_no_results(self) -> None:
        run = self.read(GateDocument(run=Head(name="llama")))
        assert run["results"] == []


def _place(result: Any) -> tuple[str, int]:
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
    return physical["artifactLocation"]["uri"], physical["region"]["startLine"]


def test_junit_has_a_case_for_each_limit() -> None:
    root = ET.fromstring(render_gate(verdict(), "junit"))

    (suite,) = root.findall("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "1")
    cases = {str(case.get("name")).split(":")[0]: case for case in suite.findall("testcase")}
    assert [[child.tag for child in case] for case in cases.values()] == [
        ["failure"], ["system-out"], ["system-out"], ["skipped"],
    ]  # fmt: skip
    failed = cases["max_increase.unfused_kernels"]
    assert (failed.get("file"), failed.get("line")) == ("pyproject.toml", "5")
    assert str(failed[0].get("message")).startswith("unfused kernels against the baseline: grew from 6 to 18")
    assert str(cases["max_memory_bound_share"][0].text).startswith("warning: memory-bound share: 70 %")


def test_github_annotates_the_source_and_the_limit() -> None:
    lines = render_gate(verdict(), "github").splitlines()

    assert len(lines) == 3
    assert lines[0].startswith(
        "::error file=src/model.py,line=11,title=fusion gate%3A FUS201 llama::finding: FUS201 llama, new"
    )
    assert "%0Abreaks: unfused kernels against the baseline: grew from 6 to 18" in lines[0]
    assert "(+200 %25)" in lines[0]
    assert lines[1].startswith("::warning file=pyproject.toml,line=6,title=")
    assert lines[2] == ("::notice title=fusion gate of llama (1m8)::over budget: 1 of 3 limits broken, 1 warning")


def test_gitlab_issues_keep_their_fingerprint_when_lines_move() -> None:
    issues = json.loads(render_gate(verdict(), "gitlab"))

    assert [(each["check_name"], each["severity"], each["location"]) for each in issues] == [
        ("fusion-gate/FUS201", "major", {"path": "src/model.py", "lines": {"begin": 11}}),
        ("fusion-gate/memory_bound_share", "minor", {"path": "pyproject.toml", "lines": {"begin": 6}}),
    ]
    moved = verdict()
    moved.checks[0] = msgspec.structs.replace(
        moved.checks[0],
        culprits=[
            msgspec.structs.replace(moved.checks[0].culprits[0], source=Place(file="/repo/src/model.py", line=99))
        ],
    )
    again = json.loads(render_gate(moved, "gitlab"))
    assert [each["fingerprint"] for each in again] == [each["fingerprint"] for each in issues]
    assert len({each["fingerprint"] for each in issues}) == 2
    assert json.loads(render_gate(GateDocument(), "gitlab")) == []


def twelve() -> GateDocument:
    """One regression of two findings that breaks twelve limits, the first of which only warns."""
    gate = verdict()
    culprits = [
        msgspec.structs.replace(
            gate.checks[0].culprits[0],
            fingerprint=f"mark-{mark}",
            name=f"norm-{mark}",
            source=Place(file="/repo/src/model.py", line=line),
        )
        for mark, line in (("new", 11), ("more", 30))
    ]
    gate.checks = [
        msgspec.structs.replace(gate.checks[0], id=f"limit-{i}", culprits=culprits, status="failed" if i else "warned")
        for i in range(12)
    ]
    return gate


def test_a_finding_that_breaks_twelve_limits_is_annotated_once_and_names_them_all() -> None:
    *lines, _ = render_gate(twelve(), "github").splitlines()
    issues = json.loads(render_gate(twelve(), "gitlab"))
    results = TestSarif().read(twelve())["results"]

    assert [line.split("::")[1].split(",title")[0] for line in lines] == [
        "error file=src/model.py,line=11", "error file=src/model.py,line=30",
    ]  # fmt: skip
    assert [(each["severity"], each["location"]["lines"]["begin"]) for each in issues] == [("major", 11), ("major", 30)]
    assert [(each["level"], _place(each)[1]) for each in results] == [("error", 11), ("error", 30)]
    told = [line.replace("%0A", "\n") for line in lines]
    told += [each["description"] for each in issues] + [each["message"]["text"] for each in results]
    for text in told:
        assert [f"(limit-{i}, " in text for i in range(12)] == [True] * 12
        assert text.count("breaks: ") == 12
        assert ("norm-new" in text, "norm-more" in text) in ((True, False), (False, True))


@pytest.mark.parametrize("fmt", ["text", "markdown"])
def test_findings_that_break_several_limits_are_told_at_the_first(fmt: GateFormat) -> None:
    text = render_gate(twelve(), fmt, width=120)

    assert [text.count(part) for part in ("norm-new, new", "norm-more, new", "1.20 ms of the step")] == [1, 1, 2]
    assert text.count("the same findings as for limit-1") == 11
    assert all(f"limit-{i}, " in text for i in range(12))
    # AND where a limit has but some of them, it says which
    gate = twelve()
    gate.checks = [gate.checks[1], msgspec.structs.replace(gate.checks[2], culprits=gate.checks[2].culprits[:1])]
    some = render_gate(gate, fmt, width=120)
    assert [some.count(part) for part in ("norm-new, new", "norm-more, new", "1.20 ms of the step")] == [2, 1, 2]
    assert "the same finding" not in some


def test_junit_tells_each_limit_in_full() -> None:
    cases = ET.fromstring(render_gate(twelve(), "junit")).findall("testsuite/testcase")
    assert ["norm-more, new" in "".join(case.itertext()) for case in cases] == [True] * 12


def test_markdown_has_a_trend_with_figures() -> None:
    text = render_gate(verdict(), "markdown")

    assert "| unfused kernels | ▁▃▆█ | 0 | 18 |" in text
    assert "| avoidable kernels | ▄▄▄▄ | 5 | 5 |" in text
    assert "❌ **over budget: 1 of 3 limits broken, 1 warning**" in text
    one = verdict()
    one.trend = one.trend[:1]
    assert "▁" not in render_gate(one, "markdown")


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5]) == "▄▄"
    assert sparkline([]) == ""


@pytest.mark.parametrize("fmt", GATE_FORMATS)
def test_names_of_a_run_steer_nothing(fmt: GateFormat) -> None:
    gate = verdict(name=HOSTILE, file=f"/repo/{HOSTILE}.py", module=HOSTILE)

    text = render_gate(gate, fmt, width=120)

    # No format lets a control character or an override through; JSON's own escapes are text
    odd = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char != "\n"}
    assert odd == set()
    if fmt == "junit":
        assert "<script>" not in text
        assert "<script>" in str(ET.fromstring(text)[0].get("name"))
    if fmt == "github":
        assert all(re.match(r"::(error|warning|notice) [^:]*::", line) for line in text.splitlines())
    if fmt == "sarif":
        jsonschema.validate(json.loads(text), SCHEMA, jsonschema.Draft202012Validator)
    if fmt == "markdown":
        bare = re.sub(r"(`+).+?\1", "", text.replace("<details><summary>", "").replace("</summary>", ""))
        assert "<script>" not in bare
        assert "@someone" not in bare


@pytest.mark.parametrize("fmt", ["text", "markdown", "json"])
def test_a_comparison(fmt: Any) -> None:
    found = verdict().comparison
    assert found is not None

    text = render_diff(found, fmt)

    for part in ("llama", "1m7", "FUS201", "The devices differ."):
        assert part in text
    if fmt == "text":
        assert "unfused kernels     6       18     +12     worse" in text
        assert "memory-bound share  50 %    –      –       measured" in text
        assert "findings: 1 new, 1 larger, 1 fixed" in text
    if fmt == "json":
        assert msgspec.json.decode(text, type=Comparison) == found


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/repo/src/a b/ü.py", "src/a b/ü.py"), ("src/model.py", "src/model.py"), ("/etc/passwd", ""), ("", ""),
        ("/repo/../etc/passwd", ""), ("../model.py", ""), ("/repo", ""), ("C:\\Users\\me\\model.py", ""),
        ("\\\\server\\share\\model.py", ""),
    ],
)  # fmt: skip
def test_only_files_of_the_repository_are_named(file: str, place: str) -> None:
    gate = verdict(file=file)
    assert in_repository(gate, file) == place
    uri = json.loads(render_gate(gate, "sarif"))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert uri["artifactLocation"]["uri"] == quote(place or "pyproject.toml")
