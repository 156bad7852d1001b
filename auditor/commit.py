"""What git says of a folder. Without git, or outside of a repository, it says nothing, and nothing fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_TIMEOUT_S = 10.0
DIRTY = "-dirty"


def commit_of(folder: Path) -> str:
    """The commit that is checked out in ``folder``, ``-dirty`` behind it where tracked files were changed.

    Empty outside of git, before the first commit, and where git is missing or does not answer in 10 s.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}{DIRTY}" if changed else commit


def repository_of(folder: Path) -> Path:
    """The root of the repository that ``folder`` belongs to; the folder itself outside of git."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    return Path(root) if root else folder.absolute()


def short(commit: str) -> str:
    """The first 12 characters of a commit, ``-dirty`` kept."""
    return commit[:12] + (DIRTY if commit.endswith(DIRTY) else "")


def _git(folder: Path, *words: str) -> str:
    # No lock is taken (another git may be at work), and no program that the repository's settings name is started
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, env=environment,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
