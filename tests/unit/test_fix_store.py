"""Stored fixes: with the audit after them or not at all, and found by either run."""

from __future__ import annotations

import os
from typing import Any

import pytest
from sqlalchemy.orm import Session

from auditor.document import Document, Run
from auditor.errors import AuditError
from auditor.fix_document import FixDocument, FixedSite
from auditor.store import Store


def saved(store: Store, name: str = "llama") -> str:
    return store.save(Document(run=Run(name=name, script=["llama.py"])), {})


def fix_of(run: str, **facts: Any) -> FixDocument:
    return FixDocument(run=run, sites=[FixedSite(rule="FUS201", module="norm", state="kept")], **facts)


def test_a_fix_is_stored_with_the_audit_after_it(store: Store) -> None:
    # GIVEN a stored run and what was recorded after its fix
    run = saved(store)
    after = Document(run=Run(name="llama-patched", plan="/p/plan.yaml"))

    # WHEN the fix is saved
    fix = fix_of(run, measured_us=12.5)
    store.save_fix(fix, (after, {}))

    # THEN both are there and know each other
    loaded = store.load(fix.after_run)
    assert (loaded.document.run.patched_from, loaded.document.run.plan) == (run, "/p/plan.yaml")
    assert store.load_fix(run) == store.load_fix(fix.after_run) == fix


def test_a_fix_that_kept_nothing_has_no_audit_after(store: Store) -> None:
    run = saved(store)

    store.save_fix(fix_of(run))

    assert store.load_fix("latest").after_run == ""
    assert [r.id for r in store.list_runs()] == [run]


def test_the_newest_fix_of_a_run_is_shown(store: Store) -> None:
    run = saved(store)
    for measured_us in (1.0, 2.0):
        store.save_fix(fix_of(run, measured_us=measured_us))
    assert store.load_fix(run).measured_us == 2.0


def test_a_run_without_a_fix_says_how_to_make_one(store: Store) -> None:
    run = saved(store)
    with pytest.raises(AuditError, match=f"no fix of run {run} is stored; make one with: fusion-audit fix {run}"):
        store.load_fix(run)


def test_a_failure_midway_leaves_neither(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a database that fails when rows are added
    run = saved(store)

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Session, "add_all", fail)

    # WHEN a fix is saved THEN the store is as before, files included
    with pytest.raises(MemoryError):
        store.save_fix(fix_of(run), (Document(run=Run(name="after")), {}))
    monkeypatch.undo()
    assert [r.id for r in store.list_runs()] == [run]
    assert os.listdir(store.location.artefacts) == [run]
    with pytest.raises(AuditError, match="no fix of run"):
        store.load_fix(run)


def test_a_deleted_run_takes_its_fixes_along(store: Store) -> None:
    run = saved(store)
    after = Document(run=Run(name="after"))
    fix = fix_of(run)
    store.save_fix(fix, (after, {}))

    store.delete(run)

    with pytest.raises(AuditError, match="no fix of run"):
        store.load_fix(fix.after_run)
