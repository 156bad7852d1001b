"""What git says of a folder, and that nothing fails for want of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from auditor.commit import commit_of, repository_of, short


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_the_commit_and_whether_tracked_files_were_changed(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    (repository / "new.txt").write_text("untracked")
    assert commit_of(repository) == head

    (repository / "a.py").write_text("2\n")
    assert commit_of(repository) == f"{head}-dirty"
    assert short(commit_of(repository)) == f"{head[:12]}-dirty"
    inner = repository / "inner"
    inner.mkdir()
    assert repository_of(inner) == repository.resolve()


def test_outside_of_git_and_before_the_first_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""
    assert repository_of(tmp_path) == tmp_path
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) == ""


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert (commit_of(repository), repository_of(repository)) == ("", repository)
