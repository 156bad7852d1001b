"""Each example runs as a plain script, says what to look for, and its audit finds that."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditor.store import Store

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

SMALL = {
    "llama_block": ["--hidden", "64", "--layers", "2", "--length", "16", "--vocabulary", "128"],
    "bert_encoder": ["--hidden", "48", "--layers", "2", "--length", "16"],
    "custom_architecture": ["--width", "32", "--cells", "2", "--length", "16"],
    "training_loop": ["--width", "32", "--depth", "2", "--batch", "32"],
    "hf_llama": ["--hidden", "64", "--layers", "2", "--length", "16"],
}
"""Options that make an example quick."""

EXPECTED = {
    # two norms a layer and the last one; the first has no residual add before it
    "llama_block": {"FUS201": 1, "FUS202": 4, "FUS206": 2, "FUS207": 4, "FUS501": 4},
    "bert_encoder": {"FUS203": 5, "FUS301": 3, "FUS501": 2, "FUS601": 2},
    "custom_architecture": {"FUS501": 2},
    "training_loop": {"FUS201": 2},
    "hf_llama": {"FUS201": 1, "FUS202": 4, "FUS206": 2, "FUS207": 4, "FUS501": 4},
}
"""Sites that an audit of the small example must find, by rule; in a training loop those of the forward pass."""


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES} == set(SMALL) == set(EXPECTED)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_its_text_says_how_to_audit_it_and_what_to_look_for(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert f"fusion-audit run examples/{path.name}" in text
    assert len(text.splitlines()) > 5


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_by_itself(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *SMALL[path.stem], "--steps", "2"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 steps")


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_its_audit_finds_what_its_text_says(fusion_audit: Callable[..., Any], store: Store, path: Path) -> None:
    code, out, err = fusion_audit("run", "--steps", "2", path, *SMALL[path.stem], "--steps", "14")

    assert code == 0, err
    assert path.name in out
    found: dict[str, int] = {}
    for finding in store.load().document.findings:
        if finding.phase == "forward":
            found[finding.rule] = found.get(finding.rule, 0) + finding.sites
    assert {rule: found.get(rule, 0) for rule in EXPECTED[path.stem]} == EXPECTED[path.stem], found
