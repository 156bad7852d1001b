"""Uploads: streamed to the disk, there when they are whole, and otherwise not at all."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from api_client import installed_client
from starlette.testclient import TestClient
from stored_runs import save, save_script, trace

from auditor.errors import AuditError
from auditor.fix_document import FixDocument
from auditor.store import Store
from auditor.store.bundle import read_bundle, write_bundle
from dashboard.api.receive import sweep
from dashboard.api.service import Service
from dashboard.api.settings import Settings

URL = "/api/v1/uploads"


def files(service: Service) -> list[str]:
    return sorted(os.listdir(service.place.uploads))


class TestTraces:
    def test_an_upload_lies_on_the_disk_as_it_was_sent(self, service: Service, api: TestClient) -> None:
        # GIVEN a trace with its checksum, sent in pieces and without a length
        data = gzip.compress(trace())
        digest = hashlib.sha256(data).hexdigest()

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(data), 50):
                yield data[start : start + 50]

        # WHEN it is sent
        answer = api.post(URL, params={"name": "step.json.gz", "sha256": digest.upper()}, content=pieces())

        # THEN it is listed by an id of ours, and its bytes are these
        assert answer.status_code == 201
        upload = answer.json()
        assert (upload["name"], upload["kind"], upload["nbytes"]) == ("step.json.gz", "json.gz", len(data))
        assert files(service) == [f"{upload['id']}.json.gz"]
        assert (service.place.uploads / files(service)[0]).read_bytes() == data
        assert api.get(URL).json()["uploads"] == [upload]

        # AND once it is deleted it is gone
        assert api.delete(f"{URL}/{upload['id']}").status_code == 204
        assert (files(service), api.get(URL).json()["uploads"]) == ([], [])

    @pytest.mark.parametrize(
        ("asked", "body", "status", "sentence"),
        [
            ({"name": "a.json", "sha256": "0" * 64}, b"{}", 422, "the upload's SHA-256 is 44136fa355b3678a"),
            ({"name": "a.json"}, b"PK\x03\x04", 422, "the upload is neither JSON nor gzip"),
            ({"name": "a.json"}, b"", 422, "the upload is neither JSON nor gzip"),
            ({"name": ""}, b"{}", 422, "query name: "),
            ({"name": "a.json", "sha256": "abc"}, b"{}", 422, "query sha256: "),
            ({"name": "a.json", "execution_trace": "1m8aaaaaaaaa"}, b"{}", 404, "no upload '1m8aaaaaaaaa'"),
            ({"name": "a.json", "execution_trace": "../../etc"}, b"{}", 422, "query execution_trace: "),
        ],
    )
    def test_what_is_refused_leaves_nothing(
        self, asked: dict[str, str], body: bytes, status: int, sentence: str, service: Service, api: TestClient
    ) -> None:
        answer = api.post(URL, params=asked, content=body)
        assert answer.status_code == status
        assert answer.json()["error"].startswith(sentence)
        assert (files(service), service.store.uploads.list()) == ([], [])

    @pytest.mark.parametrize("declared", [True, False])
    def test_one_byte_more_than_the_limit(self, store: Store, declared: bool) -> None:
        service = Service(store, Settings(max_upload_bytes=1000))
        token = service.sessions.new_start_token()
        with installed_client(service) as api:
            api.headers["Authorization"] = f"Bearer {token}"
            body = b"{" + b" " * 1000
            answer = api.post(
                URL, params={"name": "a.json"}, content=body if declared else iter([body[:600], body[600:]])
            )
            assert answer.status_code == 413
            assert "larger than 1,000 bytes" in answer.json()["error"]
            assert api.post(URL, params={"name": "a.json"}, content=body[:1000]).status_code == 201
        assert len(files(service)) == 1

    @pytest.mark.parametrize(
        "name", ["../../../etc/passwd.json", "/etc/passwd", "a\nb.json", "x" * 250, "\x1b[31m.json"]
    )
    def test_a_name_is_never_a_path(self, name: str, service: Service, api: TestClient) -> None:
        upload = api.post(URL, params={"name": name}, content=b"{}").json()
        assert "/" not in upload["name"]
        assert upload["name"].isprintable()
        assert files(service) == [f"{upload['id']}.json"]

    def test_a_disk_without_room_is_told(
        self, service: Service, api: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import shutil

        monkeypatch.setattr(shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(10**9, 10**9, 10**8))
        answer = api.post(URL, params={"name": "a.json"}, content=b"{}")
        assert answer.status_code == 503
        assert "has 100,000,000 bytes left" in answer.json()["error"]
        assert files(service) == []

    def test_a_file_whose_row_could_not_be_stored_is_no_upload(
        self, service: Service, api: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_upload: object) -> None:
            raise AuditError("the disk is full")

        monkeypatch.setattr(service.store.uploads, "add", full)
        assert api.post(URL, params={"name": "a.json"}, content=b"{}").json() == {"error": "the disk is full"}
        assert files(service) == []

    def test_what_a_living_process_receives_is_not_swept(self, service: Service) -> None:
        import socket

        from dashboard.jobs.processes import name_of

        mine = service.place.uploads / f".new-{socket.gethostname()}-{name_of(os.getpid())}-00"
        gone = service.place.uploads / f".new-{socket.gethostname()}-{os.getpid()}:1-00"
        other = service.place.uploads / f".new-elsewhere-{os.getpid()}:1-00"
        for path in (mine, gone, other):
            path.touch()
        sweep(service.place.uploads)
        assert [path.exists() for path in (mine, gone, other)] == [True, False, True]


class TestRuns:
    def bundle(self, store: Store, run: str) -> bytes:
        file = BytesIO()
        write_bundle(store, run, file)
        return file.getvalue()

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Iterator[Store]:
        with Store.open(tmp_path / "elsewhere") as opened:
            yield opened

    def test_a_run_of_another_store_is_the_same_run_here(self, elsewhere: Store, store: Store, api: TestClient) -> None:
        # GIVEN a run there, sent here
        run = save(elsewhere)
        sent = self.bundle(elsewhere, run)
        assert api.post("/api/v1/runs", content=sent).json() == {"id": run, "new": True}

        # WHEN it is sent again, with a fix that was made meanwhile
        elsewhere.save_fix(FixDocument(run=run, model="m"))
        for _ in range(2):
            again = api.post("/api/v1/runs", content=self.bundle(elsewhere, run))
            assert (again.status_code, again.json()) == (200, {"id": run, "new": False})

        # THEN it is here once, as it is there, with that fix once
        assert [found.id for found in store.list_runs()] == [run]
        assert store.load(run).document == elsewhere.load(run).document
        assert store.load(run).tables["kernels"].equals(elsewhere.load(run).tables["kernels"])
        assert [fix.model for fix in store.fixes(run)] == ["m"]

    def test_another_run_of_the_same_id_is_refused(self, elsewhere: Store, store: Store, api: TestClient) -> None:
        run = save(elsewhere)
        assert api.post("/api/v1/runs", content=self.bundle(elsewhere, run)).status_code == 201
        changed = elsewhere.load(run)
        elsewhere.delete(run)
        changed.document.totals.kernels = 99
        elsewhere.put(changed.document, {})
        answer = api.post("/api/v1/runs", content=self.bundle(elsewhere, run))
        assert answer.status_code == 409
        assert store.summary(run).kernels == 3

    def test_a_run_that_says_it_came_from_one_recorded_here_is_refused(
        self, elsewhere: Store, store: Store, api: TestClient, folder: Path
    ) -> None:
        # GIVEN a run of this machine, and one elsewhere that names it
        ours = save_script(store, folder, "print()")
        sent = self.bundle(elsewhere, save(elsewhere, patched_from=ours))

        # WHEN that is sent
        answer = api.post("/api/v1/runs", content=sent)

        # THEN it is not stored
        assert answer.status_code == 409
        assert answer.json()["error"].startswith(f"run {ours} was recorded here")
        assert [found.id for found in store.list_runs()] == [ours]

    @pytest.mark.parametrize(
        ("members", "sentence"),
        [
            ({}, "the bundle has no document.json"),
            ({"../../../etc/cron.d/x": b"x"}, "the bundle holds '../../../etc/cron.d/x'"),
            ({"/etc/passwd": b"x"}, "the bundle holds '/etc/passwd'"),
            ({"tables/secrets.parquet": b"x"}, "the bundle holds 'tables/secrets.parquet'"),
            ({"tables/ops.parquet": b"PAR1"}, "the bundle's tables/ops.parquet can't be read"),
            ({"document.json": b"{"}, "the bundle's document.json can't be read"),
            ({"document.json": b'{"schema": "fusion-audit/9"}'}, "the bundle's document.json has schema"),
            ({"document.json": b"{}"}, "the bundle's document names no run by an id"),
            ({"document.json": b'{"run": {"id": "../../../../x"}}'}, "the bundle's document names no run by an id"),
            (
                {"document.json": b'{"run": {"id": "1m8aaaaaaaaa"}, "totals": {"kernels": 9999999999999}}'},
                "the bundle's document has totals that can't be stored",
            ),
            (
                {"document.json": b'{"run": {"id": "1m8aaaaaaaaa"}}', "fixes/0000.json": b'{"run": "1m8bbbbbbbbb"}'},
                "the bundle holds a fix that is none of its run",
            ),
        ],
    )
    def test_a_bundle_that_is_none_leaves_nothing(
        self, members: dict[str, bytes], sentence: str, store: Store, service: Service, api: TestClient
    ) -> None:
        file = BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, BytesIO(data))
        answer = api.post("/api/v1/runs", content=file.getvalue())
        assert answer.status_code == 422
        assert answer.json()["error"].startswith(sentence)
        assert (store.list_runs(), files(service)) == ([], [])

    def test_a_link_in_a_bundle_is_not_followed(self, api: TestClient) -> None:
        file = BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            member = tarfile.TarInfo("document.json")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
        assert api.post("/api/v1/runs", content=file.getvalue()).status_code == 422

    @pytest.mark.parametrize("cut", [10, 700, 3000])
    def test_a_bundle_that_is_cut_off(self, cut: int, elsewhere: Store, api: TestClient) -> None:
        answer = api.post("/api/v1/runs", content=self.bundle(elsewhere, save(elsewhere))[:cut])
        assert answer.status_code == 422

    def test_what_is_written_can_be_read(self, elsewhere: Store, tmp_path: Path) -> None:
        run = save(elsewhere)
        path = tmp_path / "bundle"
        path.write_bytes(self.bundle(elsewhere, run))
        found = read_bundle(path)
        assert found.document == elsewhere.load(run).document
        assert sorted(found.tables) == ["kernels", "ops", "values"]
