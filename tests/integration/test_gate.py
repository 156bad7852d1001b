"""The gate end to end: a script is recorded, kept as the baseline, made worse, and refused in every format."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from gate_factory import graph, save
from sarif_schema import SCHEMA

from auditor.store import Store

Cli = Callable[..., Any]  # gives (code, out, err)

SCRIPT = """
import torch

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(64))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Norm(), torch.nn.Identity()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.second(self.linear(self.first(x)))

model = Model()
with torch.no_grad():
    for step in range(12):
        model(torch.rand(32, 64))
"""
BUDGET = """
[project]
name = "demo"

[tool.fusion-audit]
max_kernels = 100

[tool.fusion-audit.max_increase]
unfused_kernels = 0
"""


def git(*words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *author, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(folder: Path) -> Path:
    """A repository with a model and its budget, committed."""
    (folder / "model.py").write_text(SCRIPT)
    (folder / "pyproject.toml").write_text(BUDGET)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return folder


def test_from_the_first_run_to_the_refused_one(
    fusion_audit: Cli, project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a run that is kept as the baseline: it names its commit, and passes against itself
    commit = git("rev-parse", "HEAD")
    assert fusion_audit("run", "--stop", "model.py").code == 0
    assert store.load().document.run.commit == commit
    first = store.load().id
    assert fusion_audit("baseline", "-o", "base.json").code == 0
    assert json.loads((project / "base.json").read_text())["findings"][0]["source"]["file"] == "model.py"
    clean = fusion_audit("gate", "--baseline", "base.json")
    assert (clean.code, "within budget: 2 limits kept" in clean.out) == (0, True)
    assert "The run is of a CPU" in clean.out

    # AND another run of the same program has the same figures and findings
    assert fusion_audit("run", "--stop", "model.py").code == 0
    counted = [
        m for m in json.loads(fusion_audit("diff", first, "latest", "--format", "json").out)["measures"] if m["counted"]
    ]
    assert {m["verdict"] for m in counted} == {"same"}
    assert fusion_audit("gate", "--baseline", first).code == 0

    # WHEN a second norm is written by hand
    (project / "model.py").write_text(SCRIPT.replace("torch.nn.Identity()", "Norm()"))
    assert fusion_audit("run", "--stop", "model.py").code == 0
    second = store.load().id
    assert store.load().document.run.commit == f"{commit}-dirty"

    # THEN the gate fails and says what got worse, by how much, where, since which commit, by which limit, what next
    told = (
        "grew from 6 to 12: 6 more (+100 %), no increase is allowed", "FUS201", "1 → 2 sites", "model.py:10 in forward",
        "first", "of the step", commit[:12], "pyproject.toml:9", f"fusion-audit diff {first} {second}",
    )  # fmt: skip
    for fmt in ("text", "junit", "github", "gitlab", "sarif", "markdown"):
        done = fusion_audit("gate", "--baseline", "base.json", "--format", fmt)
        assert (done.code, done.err) == (1, "")
        shown = " ".join(done.out.replace("%25", "%").replace("\\u2192", "→").split())  # the text is wrapped
        assert [part for part in told if part not in shown] == [], fmt

    gate = json.loads(fusion_audit("gate", "--baseline", first, "--format", "json").out)
    assert (gate["passed"], gate["baseline"]) == (False, f"run {first}")
    assert [c["id"] for c in gate["checks"] if c["status"] == "failed"] == ["max_increase.unfused_kernels"]
    assert (
        ET.fromstring(fusion_audit("gate", "--baseline", "base.json", "--format", "junit").out).get("failures") == "1"
    )
    sarif = json.loads(fusion_audit("gate", "--baseline", "base.json", "--format", "sarif").out)
    jsonschema.validate(sarif, SCHEMA, jsonschema.Draft202012Validator)

    # AND the summary of a workflow's step gets the Markdown, also where the report goes to a file
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project / "summary.md"))
    done = fusion_audit("gate", "--baseline", "base.json", "--format", "github", "-o", "report.txt")
    assert (done.code, done.out) == (1, "")
    assert (project / "summary.md").read_text().startswith("### Fusion gate of `model (")
    assert (project / "report.txt").read_text().startswith("::error file=model.py,line=10,")

    # AND the two runs can be compared, the file without a store as well
    assert "findings: 1 larger" in fusion_audit("diff", first, second).out
    assert fusion_audit("diff", "base.json", "base.json", "--db", "nowhere").code == 0


@pytest.mark.parametrize(
    ("arguments", "settings", "sentence"),
    [
        ((), "", "there is no budget and no baseline to hold the run to; set limits in pyproject.toml"),
        ((), "max_kernel = 1", "pyproject.toml:2: tool.fusion-audit has no key 'max_kernel'; did you mean"),
        (("--budget", "gone.yaml"), "", "gone.yaml: No such file or directory"),
        (("--baseline", "gone.json"), "", "no file gone.json; write a baseline with: fusion-audit baseline RUN"),
        (("--baseline", "nothing"), "", "baseline: no run 'nothing'"),
        (("nothing",), "max_kernels = 1", "no run 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    fusion_audit: Cli, folder: Path, store: Store, arguments: tuple[str, ...], settings: str, sentence: str
) -> None:
    save(store, graph(1))
    (folder / "pyproject.toml").write_text(f"[tool.fusion-audit]\n{settings}\n")

    done = fusion_audit("gate", *arguments)

    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1
