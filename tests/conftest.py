"""Fixtures that several rooms' tests share. What only one file needs stays in that file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

from auditor.store import Store

# A build fails for what changed, not for a new random example: those are for the developer's machine.
# No example has a deadline: how long it takes says more of what else the machine does.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.fixture(autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may write `.fusion-audit` into the checkout or the machine's id, or read what another test stored."""
    monkeypatch.setenv("FUSION_AUDIT_DIR", str(tmp_path_factory.mktemp("store") / ".fusion-audit"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for name in ("FUSION_AUDIT_DB", "FUSION_AUDIT_ARTEFACTS", "FUSION_AUDIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def reference_path() -> Iterator[None]:
    """Replacements run their definitions, which compile nothing; Dynamo forgets afterwards what it traced."""
    import torch

    from fused_replacements import cpu_path

    torch.manual_seed(0)
    with cpu_path("reference"):
        yield
    torch._dynamo.reset()


@pytest.fixture
def store() -> Iterator[Store]:
    """The store that commands of the same test use too (`FUSION_AUDIT_DIR`), empty."""
    with Store.open() as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder: for scripts, traces and pyproject files that a test writes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Outcome(NamedTuple):
    """What a command of the command line did."""

    code: int
    out: str
    err: str


@pytest.fixture
def fusion_audit(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `fusion-audit` in this process; the text is what a user would see, that of child processes included."""
    from auditor.cli import main

    def run(*args: str | Path) -> Outcome:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run
