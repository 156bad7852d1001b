"""The plan and the diff: given out only where they are this machine's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from audited import save, save_fix
from memory_jobs import MemoryJobs
from shown import text

from auditor import AuditError
from auditor.document import Finding
from auditor.fix_document import FixDocument
from auditor.patching.plan import Plan, PlanSite, load_plan
from auditor.store import Store
from auditor.store.registering import register
from dashboard.components.downloads import diff_text, plan_text
from dashboard.components.source import source_view, why_not_here

pytestmark = pytest.mark.usefixtures("browsing")

GONE = "is not on this machine any more"


def plan_file(folder: Path, run: str) -> Path:
    path = folder / "fusion-plan.yaml"
    Plan(run=run, model="Llama", sites=[PlanSite(rule="FUS202", module="norm", fingerprint="f")]).save(path)
    return path


def test_the_plan_of_a_fix_is_what_was_written(store: Store, tmp_path: Path) -> None:
    run = save(store)
    path = plan_file(tmp_path, run)

    given = plan_text(save_fix(store, run, plan=str(path)))

    (tmp_path / "again.yaml").write_text(given)
    assert load_plan(tmp_path / "again.yaml") == load_plan(path)


def test_a_plan_of_another_run_is_not_given(store: Store, tmp_path: Path) -> None:
    run = save(store)
    path = plan_file(tmp_path, "1m8another00")

    with pytest.raises(AuditError, match=GONE):
        plan_text(save_fix(store, run, plan=str(path)))


@pytest.mark.parametrize("kind", ["secret", "folder", "pipe", "missing", "device", "none"])
def test_a_document_can_not_have_another_file_read(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: hunter2")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = {"secret": str(secret), "device": "/dev/zero", "none": ""}.get(kind, str(tmp_path / kind))

    with pytest.raises(AuditError, match=GONE) as raised:
        plan_text(FixDocument(run="1m8aaaaaaaaa", plan=path))

    assert "hunter2" not in str(raised.value)
    assert "password" not in str(raised.value)


def written(folder: Path) -> Path:
    source = folder / "model.py"
    source.write_text("\n".join(f"y = {i}" for i in range(40)))
    os.utime(source, (0, 0))
    return source


def recorded(store: Store, tmp_path: Path) -> str:
    """A run of this machine's command line, whose findings lie in a file that is there."""
    run = save(store, source=str(written(tmp_path)))
    register(store, run, "train.py", [], "0" * 64)
    return run


def first(store: Store, run: str) -> Finding:
    return store.load(run).document.findings[0]


def test_source_lines_are_shown_where_the_run_may_be_run_again(
    store: Store, tmp_path: Path, memory_jobs: MemoryJobs
) -> None:
    run = recorded(store, tmp_path)
    finding = store.load(run).document.findings[0]
    assert finding.source is not None

    assert f"y = {finding.source.line - 1}" in text(source_view(store.load(run).document, finding.source))
    memory_jobs.refuse = "Run was pushed from another machine."
    shown = text(source_view(store.load(run).document, finding.source))
    assert "y = " not in shown
    assert f"model.py:{finding.source.line}" in shown
    with pytest.raises(AuditError, match="No source is read here: Run was pushed from another machine"):
        diff_text(run, finding)


def test_the_diff_suggests_changes_of_own_files(store: Store, tmp_path: Path) -> None:
    run = recorded(store, tmp_path)

    diff = diff_text(run, first(store, run))

    assert diff.startswith("--- a/")
    assert "add_rms_norm" in diff


def test_the_diff_applies_in_the_folder_of_the_script_from_wherever_the_service_runs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a script that was run in a project's folder, and a service that was started elsewhere
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    source = written(project / "models")
    run = save(store, source=str(source))
    monkeypatch.chdir(project)
    register(store, run, "train.py", [], "0" * 64)
    monkeypatch.chdir(tmp_path)

    diff = diff_text(run, first(store, run))

    # THEN it names the file from there, and changes it
    assert diff.startswith("--- a/models/model.py\n+++ b/models/model.py\n")
    subprocess.run(["git", "apply", "--check", "-p1"], cwd=project, input=diff.encode(), check=True)
    subprocess.run(["git", "apply", "-p1"], cwd=project, input=diff.encode(), check=True)
    assert "add_rms_norm" in source.read_text()


def test_the_diff_is_of_one_finding(store: Store, tmp_path: Path) -> None:
    # GIVEN a run with two findings in one file
    one = store.load(recorded(store, tmp_path))
    finding = one.document.findings[0]
    other = msgspec.structs.replace(finding, rule="FUS206", name="unfused-gated-activation", fingerprint="other",
                                    replacement="act_mul")  # fmt: skip
    one.document.findings.append(other)
    run = store.save(one.document, dict(one.tables))
    register(store, run, "train.py", [], "0" * 64)

    for own, foreign in ((finding, other), (other, finding)):
        diff = diff_text(run, own)
        assert f"fusion-audit: {own.rule} " in diff
        assert foreign.rule not in diff


def test_nothing_to_suggest_is_said(store: Store) -> None:
    run = save(store, source="/nowhere/model.py")
    register(store, run, "train.py", [], "0" * 64)
    with pytest.raises(AuditError, match="nothing to suggest a change of"):
        diff_text(run, first(store, run))


def test_no_file_is_read_for_a_run_that_only_says_it_came_from_one_of_ours(store: Store, tmp_path: Path) -> None:
    # GIVEN a run of this machine, and one from elsewhere that names it and a file here
    ours = recorded(store, tmp_path)
    theirs = save(store, source=str(tmp_path / "model.py"), patched_from=ours)
    document = store.load(theirs).document

    # THEN nothing of the file is shown
    assert "y = " not in text(source_view(document, document.findings[0].source))
    with pytest.raises(AuditError, match="was not recorded on this machine"):
        diff_text(theirs, document.findings[0])


def test_the_audit_after_a_fix_made_here_keeps_its_lines(store: Store, tmp_path: Path) -> None:
    fix = save_fix(store, recorded(store, tmp_path))
    assert why_not_here(fix.after_run) == ""
