"""The sample repository: a model and eleven commits on it, from the patches in ``tests/fixtures/sample_repo``.

Each commit's script is recorded once, as its author would; every verdict is of that run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from auditor.cli import main

SOURCES = Path(__file__).resolve().parents[1] / "fixtures" / "sample_repo"
PATCHES = sorted(SOURCES.glob("*.patch"))
BASELINE = "fusion-baseline.json"


@dataclass(frozen=True)
class Commit:
    """A commit and the run that was recorded of it."""

    title: str
    commit: str
    run: str


@dataclass(frozen=True)
class History:
    """The repository, the store of its runs, and its commits; the first one's run is the baseline."""

    folder: Path
    store: Path
    commits: dict[str, Commit]

    @property
    def first(self) -> Commit:
        return next(iter(self.commits.values()))

    def line_of(self, title: str, file: str, text: str) -> int:
        """The line of ``file``, as it was in that commit, that holds ``text``."""
        lines = git(self.folder, "show", f"{self.commits[title].commit}:{file}").splitlines()
        (found,) = (i for i, line in enumerate(lines, 1) if text in line)
        return found


def git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false", "-c", "core.autocrlf=false"]
    done = subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def build(folder: Path) -> History:
    """Make the repository in ``folder``, which is empty and the current one, and record each commit."""
    shutil.copytree(SOURCES / "base", folder, dirs_exist_ok=True)
    store = folder / ".fusion-audit" / "audits.db"
    store.parent.mkdir()
    (folder / ".gitignore").write_text(".fusion-audit/\n__pycache__/\n")
    git(folder, "init", "-q")
    commits = {"base": _commit(folder, store, "base")}
    assert main(["baseline", "-o", BASELINE, "--db", str(store)]) == 0
    git(folder, "add", BASELINE)
    git(folder, "commit", "-qm", "baseline")
    for patch in PATCHES:
        git(folder, "apply", "--whitespace=nowarn", str(patch))
        commits[patch.stem] = _commit(folder, store, patch.stem)
    return History(folder, store, commits)


def _commit(folder: Path, store: Path, title: str) -> Commit:
    git(folder, "add", ".")
    git(folder, "commit", "-qm", title)
    run = ["run", "--steps", "1", "--warmup", "1", "--stop", "--db", str(store), "-o", os.devnull, "infer.py"]
    assert main(run) == 0
    return Commit(title, git(folder, "rev-parse", "HEAD"), _last_run(store))


def _last_run(store: Path) -> str:
    from auditor.store import Store

    with Store.open(str(store), create=False) as opened:
        return opened.load().id
