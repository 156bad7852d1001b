"""The store and the service on PostgreSQL, for real: what holds on SQLite holds there."""

from __future__ import annotations

import pytest
from stored_runs import document, save, tables

from auditor.errors import AuditError
from auditor.fix_document import FixDocument, FixedSite
from auditor.store import Missing, RunFilter, Store
from auditor.store.models import Base
from auditor.store.rule_settings import RuleSetting


def test_migrations_make_what_the_code_expects(postgres: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with Store.open(postgres) as store, store._engine.connect() as connection:
        assert connection.dialect.driver == "psycopg"
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_what_is_saved_comes_back(place: str) -> None:
    # GIVEN a run with tables and a fix with the audit after it
    with Store.open(place) as store:
        run = save(store)
        fix = FixDocument(run=run, sites=[FixedSite(rule="FUS101", module="m", state="kept")])
        store.save_fix(fix, (document("llama-patched"), tables()))

    # WHEN another process of the program opens the store
    with Store.open(place, create=False) as store:
        loaded, after = store.load(run), store.load(fix.after_run)

        # THEN all of it is there
        assert loaded.document.findings[0].saving.likely_us == 12.5
        assert loaded.tables["ops"].equals(tables()["ops"])
        assert after.document.run.patched_from == run
        assert store.load_fix(run).after_run == fix.after_run
        assert [found.run for found in store.fixes(run)] == [run]

        # AND what is deleted is gone, and no other
        store.delete(run)
        assert [found.id for found in store.list_runs()] == [fix.after_run]


def test_lists_are_filtered_sorted_and_paged_by_the_database(place: str) -> None:
    with Store.open(place) as store:
        ids = [save(store, f"model-{i % 3}", project="a" if i < 4 else "b") for i in range(6)]

        assert [run.id for run in store.list_runs()] == ids[::-1]
        assert [run.id for run in store.list_runs(limit=2, offset=1)] == [ids[4], ids[3]]
        assert [run.id for run in store.list_runs(RunFilter(project="b"))] == [ids[5], ids[4]]
        assert [run.id for run in store.list_runs(RunFilter(text="MODEL-1"))] == [ids[4], ids[1]]
        assert [run.name for run in store.list_runs(sort="name", descending=False)][:2] == ["model-0", "model-0"]
        assert store.list_runs(RunFilter(text="model_")) == []  # no wildcard
        assert store.count_runs(RunFilter(name="model-2")) == 2
        assert store.values_of("project") == ["a", "b"]
        newest = store.summary("latest")
        assert (newest.memory_bound_us, newest.device_us, newest.likely_us) == (30.0, 30.0, 12.5)
        assert store.resolve("model-0") == ids[3]
        assert store.resolve(ids[0]) == ids[0]
        for nothing in ("nothing", "", "a\0b", "model-%"):
            with pytest.raises(Missing, match="no run"):
                store.resolve(nothing)
        with pytest.raises(AuditError, match="can't be sorted by 'document'"):
            store.list_runs(sort="document")


def test_a_job_is_taken_by_one(place: str) -> None:
    with Store.open(place) as store:
        # GIVEN a job that waits
        job = store.jobs.add("fix", "1m8aaaaaaaaa", "{}", "here")
        assert (job.state, job.cancelling) == ("queued", False)

        # WHEN two workers want it
        taken = [store.jobs.claim(job.id, "one"), store.jobs.claim(job.id, "two")]

        # THEN one has it, and the other can't touch it
        assert taken == [True, False]
        assert not store.jobs.end(job.id, "two", "done")
        store.jobs.beat(job.id, "two", "mine", 1)
        assert store.jobs.get(job.id).progress == ""
        assert store.jobs.cancel(job.id) == "running"
        assert store.jobs.get(job.id).cancelling
        assert store.jobs.end(job.id, "one", "cancelled", "asked to")
        assert not store.jobs.end(job.id, "one", "done")
        assert store.jobs.counts() == {"cancelled": 1}
        assert [found.id for found in store.jobs.find(state="cancelled", run="1m8aaaaaaaaa")] == [job.id]
        with pytest.raises(Missing, match="no job 'x'"):
            store.jobs.get("x")


def test_tokens_and_settings_are_kept(place: str) -> None:
    with Store.open(place) as store:
        known, text = store.tokens.new("ci")
        store.rule_settings.put(RuleSetting("FUS101", enabled=False))
        store.rule_settings.put(RuleSetting("FUS101", enabled=True, severity="info"))
    with Store.open(place) as store:
        assert store.tokens.check(text) == known.id
        assert store.tokens.list()[0].used
        assert store.rule_settings.get("FUS101").severity == "info"
        assert store.rule_settings.get("FUS999") == RuleSetting("FUS999")


def test_names_that_a_database_refuses_are_stored_all_the_same(place: str) -> None:
    with Store.open(place) as store:
        run = store.save(document("a\0b"), {})
        assert store.summary(run).name == "a\N{REPLACEMENT CHARACTER}b"
        assert store.load(run).document.run.name == "a\0b"


def test_a_server_that_is_gone_is_one_sentence() -> None:
    with pytest.raises(AuditError, match="postgresql"), Store.open("postgresql://nobody@127.0.0.1:1/none"):
        pass
