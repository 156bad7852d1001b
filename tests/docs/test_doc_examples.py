"""Every fenced block of the README and of the pages runs, or says why it can't here."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

import pytest
from doc_examples import ROOT, documents, examples, in_this_process, printed, unknown_languages

MOST_SKIPPED = 20
"""Blocks in all that may be marked as not running here. Lower it when one of them runs."""
SLOW = ("docs/tutorial.md",)
NAMES = [
    pytest.param(
        path, id=str(path.relative_to(ROOT)), marks=[pytest.mark.slow] if str(path.relative_to(ROOT)) in SLOW else []
    )
    for path in documents()
]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this machine's calibration is kept: the pages need it once."""
    return tmp_path_factory.mktemp("state")


@pytest.mark.filterwarnings("ignore:::lightning")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # of torch 2.13, at lightning 2.6
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of SQLAlchemy 2.1, at mlflow 3
@pytest.mark.parametrize("path", NAMES)
@pytest.mark.usefixtures("folder", "reference_path")
def test_the_examples_of_a_page_run(
    path: Path, state: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FUSION_AUDIT_DIR")  # as in a user's folder
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("COLUMNS", "100")
    shutil.copytree(ROOT / "examples", "examples")  # as in a checkout
    for example in examples(path, lambda words: in_this_process(words, capfd.readouterr)):
        with suppress(SkipTest):
            example.evaluate()


def test_no_more_blocks_are_skipped_than_agreed() -> None:
    marks = [
        line for path in documents() for line in path.read_text(encoding="utf-8").splitlines() if "<!-- skip" in line
    ]
    assert all(line.startswith('<!-- skip: next "') for line in marks), "one reason for each block"
    assert len(marks) <= MOST_SKIPPED


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_has_a_language_that_is_checked(path: Path) -> None:
    assert unknown_languages(path) == []


def test_what_is_shown_is_compared_by_counts_and_bytes() -> None:
    out = "step 8.1 ms (7 %)\n  kernels  24 in all · 3.68 MB · stored as 1m8pg746ewnj\n"
    assert printed("step 9 µs (12 %)\nkernels 24 in all · 3.68 MB · …", out)
    assert not printed("step 9 µs (12 %)\nkernels 25 in all · 3.68 MB · …", out)
    assert not printed("step 9 µs (12 %)\nkernels 24 in all · 3.69 MB · …", out)
    assert not printed("step 9 µs (12 %)", out)
