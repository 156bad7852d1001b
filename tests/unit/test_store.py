"""The store: what is saved comes back, references resolve, and bad places give one clear sentence."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pyarrow
import pytest

from auditor.document import DeviceInfo, Document, Finding, Run, Saving, Totals, TotalSaving
from auditor.errors import AuditError
from auditor.store import Store, Unavailable, artefacts, ids
from auditor.store.artefacts import LEFTOVER_AGE_S, Artefacts
from auditor.store.location import locate
from auditor.store.models import HEAD, Base
from auditor.store.schema import alembic_config


def document(name: str = "llama") -> Document:
    return Document(
        run=Run(name=name, script=["llama.py", "--steps", "3"], device=DeviceInfo(name="H100", kind="cuda")),
        totals=Totals(kernels=118, unfused_kernels=40, avoidable_kernels=30, step_us=5e3, saving=TotalSaving(bytes=7)),
        findings=[Finding(rule="FUS201", name="unfused-rms-norm", family="reduction", saving=Saving(likely_us=12.5))],
    )


def table(rows: int = 3) -> pyarrow.Table:
    return pyarrow.table({"name": ["aten.add"] * rows, "dur_us": [1.5] * rows})


class TestRoundTrip:
    def test_a_saved_audit_loads_as_it_was(self, store: Store) -> None:
        # GIVEN an audit with a bulk table
        saved = document()

        # WHEN it is saved and loaded
        run = store.save(saved, {"ops": table()})
        loaded = store.load(run)

        # THEN document and table are equal, and the document knows its id and time
        assert loaded.document == saved
        assert loaded.document.run.id == run
        assert loaded.document.run.created.endswith("+00:00")
        assert loaded.tables["ops"].equals(table())

    def test_the_list_shows_the_newest_first_without_opening_documents(self, store: Store) -> None:
        first, second = store.save(document("a"), {}), store.save(document("b"), {})

        runs = store.list_runs()

        assert [run.id for run in runs] == [second, first]
        newest = runs[0]
        assert (newest.name, newest.device, newest.kernels, newest.unfused_kernels) == ("b", "H100", 118, 40)
        assert (newest.findings, newest.script, newest.step_us) == (1, ["llama.py", "--steps", "3"], 5e3)

    def test_another_process_sees_it(self, store: Store) -> None:
        run = store.save(document(), {"ops": table()})

        with Store.open(create=False) as other:
            assert other.load("latest").id == run

    def test_a_deleted_run_is_gone_with_its_files(self, store: Store) -> None:
        kept, dropped = store.save(document("a"), {"ops": table()}), store.save(document("b"), {"ops": table()})

        assert store.delete("b") == dropped

        assert [run.id for run in store.list_runs()] == [kept]
        assert os.listdir(store.location.artefacts) == [kept]

    def test_the_folder_keeps_itself_out_of_git(self, store: Store) -> None:
        assert store.location.file is not None
        assert (store.location.file.parent / ".gitignore").read_text() == "*\n"

    def test_two_databases_in_one_folder_keep_their_files_apart(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "a.db") as a, Store.open(tmp_path / "b.db") as b:
            run = a.save(document(), {"ops": table()})
            _age(Path(a.location.artefacts) / run)
            b.save(document(), {"ops": table(5)})
        with Store.open(tmp_path / "b.db"), Store.open(tmp_path / "a.db") as a:
            assert a.load("latest").table("ops").num_rows == 3


class TestReferences:
    def test_latest_id_name_and_unique_start(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        taken = iter(["1m8aaaaaaaaa", "1m8abbbbbbbb", "1m8bcccccccc"])
        monkeypatch.setattr("auditor.store.store.new_id", lambda: next(taken))
        for name in ("llama", "bert", "llama"):
            store.save(document(name), {})

        assert store.load("latest").id == "1m8bcccccccc"
        assert store.load("1m8aaaaaaaaa").id == "1m8aaaaaaaaa"
        assert store.load("bert").id == "1m8abbbbbbbb"
        assert store.load("llama").id == "1m8bcccccccc"  # the newest of that name
        assert store.load("1m8ab").id == "1m8abbbbbbbb"
        with pytest.raises(AuditError, match=r"'1m8a' is the start of 2 runs \(1m8abbbbbbbb, 1m8aaaaaaaaa\)"):
            store.load("1m8a")

    @pytest.mark.parametrize("ref", ["nothing", "", "LATEST", "%", "../audits.db"])
    def test_an_unknown_run_lists_what_exists(self, store: Store, ref: str) -> None:
        run = store.save(document("bert"), {})

        with pytest.raises(AuditError, match=rf"no run .*; there are: {run} \(bert\)"):
            store.load(ref)

    def test_an_empty_store_says_what_to_do(self, store: Store) -> None:
        with pytest.raises(AuditError, match=r"holds no audits yet; make one with: fusion-audit run"):
            store.load("latest")

    def test_an_unknown_table_lists_what_exists(self, store: Store) -> None:
        loaded = store.load(store.save(document(), {"ops": table()}))

        with pytest.raises(AuditError, match=r"has no table 'kernels'; it has: ops"):
            loaded.table("kernels")


class TestIds:
    def test_sorted_by_time_and_short(self) -> None:
        assert [len(ids.new_id(s)) for s in (0, 1.8e9, 3e10)] == [12, 12, 12]
        made = [ids.new_id(1.8e9 + i / 100) for i in range(200)]
        assert made == sorted(made)
        assert len(set(made)) == 200

    @pytest.mark.parametrize(
        "text", ["transformers", "gpt2-small-2", "1m8aaaaaaaa", "1m8aaaaaaaaaa", "1m8AAAAAAAAA", ""]
    )
    def test_ids_are_told_from_names(self, text: str) -> None:
        assert all(ids.is_id(ids.new_id(s)) for s in (0, 1.8e9, 1e10))
        assert not ids.is_id(text)

    def test_a_taken_id_is_not_used_again(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        # GIVEN a run, and a clock and dice that give its id once more
        taken = iter(["1m8aaaaaaaaa", "1m8aaaaaaaaa", "1m8abbbbbbbb"])
        monkeypatch.setattr("auditor.store.store.new_id", lambda: next(taken))
        first = store.save(document("first"), {"ops": table(1)})

        # WHEN another audit is saved
        second = store.save(document("second"), {"ops": table(2)})

        # THEN both are whole
        assert (first, second) == ("1m8aaaaaaaaa", "1m8abbbbbbbb")
        assert [store.load(run).table("ops").num_rows for run in (first, second)] == [1, 2]

    def test_an_id_whose_files_are_elsewhere_is_not_used_again(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # GIVEN a row whose files another machine holds
        taken = iter(["1m8aaaaaaaaa", "1m8aaaaaaaaa", "1m8abbbbbbbb"])
        monkeypatch.setattr("auditor.store.store.new_id", lambda: next(taken))
        store.save(document("first"), {"ops": table(1)})
        store._artefacts.delete("1m8aaaaaaaaa")

        assert store.save(document("second"), {"ops": table(2)}) == "1m8abbbbbbbb"
        assert store.load("1m8aaaaaaaaa").name == "first"


class TestLeftovers:
    def test_old_folders_without_a_row_are_swept_on_open(self, store: Store) -> None:
        # GIVEN a run, and what killed writers left: old and new, published and not
        run = store.save(document(), {"ops": table()})
        root = Path(store.location.artefacts)
        old, new, dead = root / "1m8000000000", root / "1m8000000001", root / ".new-elsewhere-1-abcd"
        for leftover in (old, new, dead):
            leftover.mkdir()
        for leftover in (old, dead, root / run):
            _age(leftover)

        # WHEN the store is opened again
        with Store.open() as again:
            # THEN the old ones are gone; the run and what may still be in the making are not
            assert sorted(os.listdir(root)) == sorted([run, new.name])
            assert again.load(run).table("ops").num_rows == 3

    def test_a_living_writer_is_never_swept(self, tmp_path: Path) -> None:
        files = Artefacts(str(tmp_path))
        mine = tmp_path / artefacts._temporary_name()
        mine.mkdir()

        assert files.sweep([], now_s=time.time() + 10 * LEFTOVER_AGE_S) == []

    def test_a_run_whose_first_sender_was_killed_can_be_sent_again(self, store: Store) -> None:
        # GIVEN the folder of a run that never got its row
        sent = document()
        sent.run.id = "1m8aaaaaaaaa"
        folder = Path(store.location.artefacts) / sent.run.id
        folder.mkdir(parents=True)

        # WHEN it is sent again at once THEN its writer may still be at work
        with pytest.raises(Unavailable, match="being stored by another process; try again in two minutes"):
            store.put(sent, {"ops": table()})

        # AND later it is stored, once
        _age(folder)
        assert store.put(sent, {"ops": table()})
        assert not store.put(sent, {"ops": table()})
        assert store.load(sent.run.id).table("ops").num_rows == 3

    def test_a_failed_write_leaves_nothing(self, store: Store) -> None:
        with pytest.raises(AuditError, match="can't name a table"):
            store.save(document(), {"ops": table(), "../evil": table()})

        assert store.list_runs() == []
        assert os.listdir(store.location.artefacts) == []

    def test_a_missing_and_a_damaged_file_are_named(self, store: Store) -> None:
        run = store.save(document(), {"ops": table(), "values": table()})
        folder = Path(store.location.artefacts) / run
        (folder / "ops.parquet").unlink()
        (folder / "values.parquet").write_bytes(b"PAR1 not parquet")

        loaded = store.load(run)

        with pytest.raises(AuditError, match=r"ops.parquet: the table 'ops' of run .* is missing"):
            loaded.table("ops")
        with pytest.raises(AuditError, match=r"values.parquet: the table 'values' of run .* can't be read"):
            loaded.table("values")


class TestSchema:
    def test_the_newest_script_is_what_the_code_expects(self) -> None:
        from alembic.script import ScriptDirectory

        assert ScriptDirectory.from_config(alembic_config()).get_heads() == [HEAD]

    def test_the_migrations_make_the_tables_of_the_models(self, store: Store) -> None:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        with store._engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []

    def test_the_way_back_leaves_nothing(self, store: Store) -> None:
        from alembic import command
        from sqlalchemy import inspect

        config = alembic_config()
        with store._engine.begin() as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "base")
            assert inspect(connection).get_table_names() == ["alembic_version"]

    @pytest.mark.parametrize("version", ["9999", "abcdef"])
    def test_a_newer_schema_is_refused(self, store: Store, version: str) -> None:
        with sqlite3.connect(str(store.location.file)) as raw:
            raw.execute("UPDATE alembic_version SET version_num = ?", (version,))
        raw.close()

        with pytest.raises(AuditError, match=rf"written by a newer Fusion Auditor \(schema {version}, .*upgrade"):
            Store.open()

    def test_an_older_document_field_set_still_loads_and_a_foreign_schema_does_not(self, store: Store) -> None:
        run = store.save(document(), {})
        with sqlite3.connect(str(store.location.file)) as raw:
            raw.execute("""UPDATE runs SET document = '{"schema": "fusion-audit/1"}'""")
        raw.close()
        assert store.load(run).document.totals.kernels == 0

        with sqlite3.connect(str(store.location.file)) as raw:
            raw.execute("""UPDATE runs SET document = '{"schema": "fusion-audit/9"}'""")
        raw.close()
        with pytest.raises(AuditError, match="has schema 'fusion-audit/9'"):
            store.load(run)


class TestPlaces:
    def test_the_variable_names_the_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FUSION_AUDIT_DIR", str(tmp_path / "elsewhere"))
        assert locate().file == tmp_path / "elsewhere" / "audits.db"

    def test_without_it_the_current_folder(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FUSION_AUDIT_DIR")
        assert locate().file == folder / ".fusion-audit" / "audits.db"

    def test_a_projects_subfolders_share_its_store(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # GIVEN a project, a folder deep in it, and one beside it
        monkeypatch.delenv("FUSION_AUDIT_DIR", raising=False)
        deep, beside = folder / "project" / "src" / "model", folder / "beside"
        deep.mkdir(parents=True)
        beside.mkdir()
        (folder / "project" / "pyproject.toml").touch()

        # THEN
        monkeypatch.chdir(deep)
        assert locate().file == folder / "project" / ".fusion-audit" / "audits.db"
        monkeypatch.chdir(beside)
        assert locate().file == beside / ".fusion-audit" / "audits.db"

        # AND a store that is nearer goes on being used; one above the project is another's
        (folder / ".fusion-audit").mkdir()
        (deep.parent / ".fusion-audit").mkdir()
        monkeypatch.chdir(deep)
        assert locate().file == deep.parent / ".fusion-audit" / "audits.db"
        (deep.parent / ".fusion-audit").rmdir()
        assert locate().file == folder / "project" / ".fusion-audit" / "audits.db"

    def test_a_server_is_not_designed_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FUSION_AUDIT_ARTEFACTS", "s3://bucket/audits")
        found = locate("postgresql+psycopg://me:secret@db.example/audits")

        assert found.file is None
        assert found.artefacts == "s3://bucket/audits"
        assert found.label == "postgresql+psycopg://me:***@db.example/audits"

    def test_an_sqlite_url_is_a_file(self, tmp_path: Path) -> None:
        assert locate(f"sqlite:///{tmp_path}/x.db").file == tmp_path / "x.db"

    def test_odd_characters_in_the_path(self, tmp_path: Path) -> None:
        odd = tmp_path / "50% größer? #1 & mehr::x"
        with Store.open(odd) as store:
            run = store.save(document(), {"ops": table()})
        with Store.open(odd, create=False) as store:
            assert store.load("latest").table("ops").num_rows == 3
            assert store.load("latest").id == run
        assert os.listdir(tmp_path) == [odd.name]

    @pytest.mark.parametrize(
        ("url", "sentence"),
        [
            ("postgres//x://y", "no driver|is not a database URL"),
            ("nosuchdb://host/x", "no driver for this database is installed"),
            ("sqlite://", "a store needs a file"),
        ],
    )
    def test_bad_urls(self, url: str, sentence: str) -> None:
        with pytest.raises(AuditError, match=sentence):
            Store.open(url)

    def test_a_reader_makes_no_store(self, tmp_path: Path) -> None:
        with pytest.raises(AuditError, match=r"no audits are stored in .*; make one with: fusion-audit run"):
            Store.open(tmp_path / "none", create=False)
        assert os.listdir(tmp_path) == []

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(
            AuditError, match=r"file/deeper: (Not a directory|File exists); name another place with --db"
        ):
            Store.open(tmp_path / "file" / "deeper")

    def test_a_folder_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "audits.db").mkdir()
        with pytest.raises(AuditError, match=r"audits.db is a folder, a database file was expected"):
            Store.open(tmp_path)

    @pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write")
    def test_a_place_that_nobody_can_write(self) -> None:
        with pytest.raises(AuditError, match=r"^/proc/fusion-audit: .*; name another place with --db"):
            Store.open("/proc/fusion-audit")

    def test_a_read_only_store_can_be_read_but_not_written(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        # GIVEN a store on a mount without write access
        run = store.save(document(), {"ops": table()})
        monkeypatch.setattr(os, "access", lambda *_: False)

        # WHEN it is opened THEN reading works and writing is refused in one sentence
        with Store.open(create=False) as mounted:
            assert mounted.load("latest").id == run
            with pytest.raises(AuditError, match=r"audits.db: the place can't be written"):
                mounted.save(document(), {})
            assert os.listdir(mounted.location.artefacts) == [run]

    @pytest.mark.parametrize("content", [b"not a database at all" * 100, None])
    def test_a_corrupt_database(self, store: Store, content: bytes | None) -> None:
        # GIVEN a database whose bytes are something else, or overwritten from the middle
        store.save(document(), {})
        assert store.location.file is not None
        whole = store.location.file.read_bytes()
        store.location.file.write_bytes(content or whole[:100] + b"\xff" * (len(whole) - 100))

        # WHEN it is opened or read THEN one sentence names the file
        sentence = r"audits.db: (this file is not a database|the database is damaged)"
        with pytest.raises(AuditError, match=sentence), Store.open() as again:
            again.load("latest")


def _age(path: Path) -> None:
    past = time.time() - 2 * LEFTOVER_AGE_S
    os.utime(path, (past, past))


def test_files_on_an_object_store() -> None:
    # GIVEN a root that is a URL WHEN a run is written, read and deleted THEN it behaves as a folder does
    files = Artefacts("memory://audits/artefacts")
    files.write("run", {"ops": table()})

    assert files.read("run", "ops").equals(table())
    with pytest.raises(FileExistsError):
        files.write("run", {"ops": table()})
    assert files.sweep(["run"]) == []
    files.delete("run")
    with pytest.raises(AuditError, match="is missing"):
        files.read("run", "ops")
