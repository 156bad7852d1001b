"""Uploads: streamed to the disk, there when they are whole, and otherwise not at all."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from api_client import installed_client
from starlette.testclient import TestClient
from stored_runs import document, save, save_script, tables, trace

from auditor.document import Site
from auditor.errors import AuditError
from auditor.fix_document import FixDocument
from auditor.graph.tables import KERNELS
from auditor.store import Store, rank_tables
from auditor.store import bundle as bundle_module
from auditor.store.bundle import read_bundle, write_bundle
from dashboard.api.app import create_service
from dashboard.api.models import Stored
from dashboard.api.receive import sweep
from dashboard.api.routes import runs
from dashboard.api.service import Service
from dashboard.api.settings import Settings
from dashboard.components.when import moment

URL = "/api/v1/uploads"


def kernels(ops: list[int], name: str) -> pyarrow.Table:
    """A table of kernels, one for each of these rows of ops."""
    rows = [{"op": op, "name": name, "start_us": 0.0, "dur_us": 1.0, "stream": 7, "device": 0} for op in ops]
    return pyarrow.Table.from_pylist(rows, schema=KERNELS)


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

    def test_what_a_waiting_import_reads_is_not_removed(self, api: TestClient) -> None:
        def sent(**more: str) -> str:
            answer = api.post("/api/v1/uploads", params={"name": "a.json", **more}, content=b"{}")
            return str(answer.json()["id"])

        trace = sent()
        main = sent(execution_trace=trace)
        job = api.post("/api/v1/jobs", json={"kind": "import", "run": main}).json()["id"]
        for upload in (trace, main):
            answer = api.delete(f"/api/v1/uploads/{upload}")
            assert (answer.status_code, answer.json()["error"]) == (
                409, f"job {job} reads upload {upload}; cancel it first",
            )  # fmt: skip
        assert api.post(f"/api/v1/jobs/{job}/cancel").status_code == 200
        assert api.delete(f"/api/v1/uploads/{trace}").status_code == 204

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

    @pytest.mark.parametrize(
        ("path", "number", "sentence"),
        [
            ("coverage.steps", "9" * 400, "has a number in coverage.steps that no run has"),
            ("totals.bytes", "9" * 400, "has a number in totals.bytes that no run has"),
            ("totals.peak_bytes", "-" + "9" * 400, "has totals.peak_bytes below 0"),
            ("totals.memory_bound_us", "-1", "has totals.memory_bound_us below 0"),
            ("totals.device_us", "5e-324", "has totals.device_us below 1e-12"),
            ("totals.saving.ideal_us", "1e300", "has a number in totals.saving.ideal_us that no run has"),
            ("coverage.steps", "-1", "has coverage.steps below 0"),
            ("ranks", '[{"rank": 1, "totals": {"kernels": 1' + "0" * 400 + "}}]", "number in ranks[0].totals.kernels"),
            ("ranks", '[{"rank": -1}]', "has ranks twice, or that are none of its 2"),
            ("ranks", '[{"rank": 1}, {"rank": 1}]', "has ranks twice, or that are none of its 2"),
            ("findings", '[{"rule": "R", "name": "r", "family": "f", "places": [{"ops": [], "kernels": -3}]}]',
             "has findings[0].places[0].kernels below 0"),
            ("run.rank", "2", "is of rank 2 of 2, which no job has"),
            ("run.world_size", "9" * 18, "which no job has"),
        ],
    )  # fmt: skip
    def test_numbers_that_no_run_has(
        self, path: str, number: str, sentence: str, store: Store, api: TestClient
    ) -> None:
        # GIVEN a document with one of them, as that of a run, and as that of another rank of a run
        run: dict[str, Any] = {"id": "1m8aaaaaaaaa", "world_size": 2}
        whole: dict[str, Any] = {"run": run}
        at, keys = whole, path.split(".")
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = "NUMBER"
        text = json.dumps(whole).replace('"NUMBER"', number)

        # WHEN they are sent
        sent = [self.bundle_of(text)]
        if keys[0] in ("coverage", "totals", "findings"):
            sent.append(self.bundle_of(json.dumps({"run": run}), [(1, text)]))
        answers = [api.post("/api/v1/runs", content=data) for data in sent]

        # THEN neither is stored, and the field is named
        assert [answer.status_code for answer in answers] == [422] * len(sent)
        assert all(sentence in answer.json()["error"] for answer in answers)
        assert "the document of rank 1 has" in answers[1].text if len(sent) > 1 else True
        assert store.list_runs() == []

    @pytest.mark.parametrize(
        ("rows", "sentence"),
        [
            ([(None, "{}")], "the table of ranks has rank None twice, or it is none"),
            ([(-1, "{}")], "the table of ranks has rank -1 twice, or it is none"),
            ([(1, "{}"), (1, "{}")], "the table of ranks has rank 1 twice"),
            ([(0, "{}")], "the bundle's table of ranks has a rank 0, which is the run's own"),
            ([(3, "{}")], "the bundle's table of ranks has a rank 3, which is none of its 3"),
            ([(1, None)], "the document of rank 1 can't be read"),
            ([(1, "[" * 200_000)], "the document of rank 1 can't be read"),
            ([(1, '{"zzz": ' + "[" * 200_000)], "the document of rank 1 can't be read"),
            ([(1, '{"schema": "fusion-audit/9"}')], "the document of rank 1 has schema"),
        ],
    )
    def test_ranks_that_are_none(
        self, rows: list[tuple[int | None, str | None]], sentence: str, store: Store, api: TestClient
    ) -> None:
        text = json.dumps({"run": {"id": "1m8aaaaaaaaa", "world_size": 3}})
        answer = api.post("/api/v1/runs", content=self.bundle_of(text, rows))
        assert answer.status_code == 422
        assert answer.json()["error"].startswith(sentence)
        assert store.list_runs() == []
        assert api.post("/api/v1/runs", content=self.bundle_of(text, [(2, "{}"), (1, "{}")])).status_code == 201

    def test_options_of_a_fix_are_bounded_too(self, tmp_path: Path) -> None:
        options = '{"\\u001b[31m": [' + "9" * 400 + "]}"
        site = f'{{"rule": "R", "module": "m", "options": {options}}}'
        members = {
            "document.json": '{"run": {"id": "1m8aaaaaaaaa"}}',
            "fixes/0000.json": f'{{"run": "1m8aaaaaaaaa", "sites": [{site}]}}',
        }
        sent = self.archive([(tarfile.TarInfo(name), text.encode()) for name, text in members.items()])
        sentence = r"a fix in the bundle has a number in 'sites\[0\]\.options\.\\x1b\[31m\[0\]' that no run has"
        self.refused(tmp_path / "bundle", sent, sentence)

    @pytest.mark.parametrize("name", ["rank01_ops", "rank\u0661_ops"])
    def test_a_rank_has_one_spelling(self, name: str, tmp_path: Path) -> None:
        sent = self.archive([(tarfile.TarInfo(f"tables/{name}.parquet"), b"x")])
        self.refused(tmp_path / "bundle", sent, "which is no part of a run")

    def bundle_of(self, text: str, ranks: list[tuple[int | None, str | None]] | None = None) -> bytes:
        members = [(tarfile.TarInfo("document.json"), text.encode())]
        if ranks is not None:
            file = BytesIO()
            columns = [list(column) for column in zip(*ranks, strict=True)]
            pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, schema=rank_tables.schema()), file)
            members.append((tarfile.TarInfo("tables/ranks.parquet"), file.getvalue()))
        return self.archive(members)

    def refused(self, path: Path, data: bytes, sentence: str) -> None:
        path.write_bytes(data)
        with pytest.raises(AuditError, match=sentence):
            read_bundle(path)

    def archive(self, members: list[tuple[tarfile.TarInfo, bytes]], **kind: Any) -> bytes:
        file = BytesIO()
        with tarfile.open(fileobj=file, mode="w", **kind) as archive:
            for member, data in members:
                member.size = len(data)
                archive.addfile(member, BytesIO(data))
        return file.getvalue()

    def test_a_sparse_member_is_not_read(self, tmp_path: Path) -> None:
        # GIVEN a document that says it is a terabyte of nothing
        member = tarfile.TarInfo("document.json")
        member.pax_headers = {
            "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "document.json",
            "GNU.sparse.size": str(10**12), "GNU.sparse.numblocks": "1", "GNU.sparse.map": f"{10**12 - 1},1",
        }  # fmt: skip
        self.refused(tmp_path / "bundle", self.archive([(member, b"x")], format=tarfile.PAX_FORMAT), "no part of a run")

    @pytest.mark.parametrize("size", [-512, 10**12])
    def test_a_size_that_the_file_can_not_have(self, size: int, tmp_path: Path) -> None:
        member = tarfile.TarInfo("tables/ops.parquet")
        member.size = size
        header = member.tobuf(format=tarfile.GNU_FORMAT)
        self.refused(tmp_path / "bundle", header + bytes(10240), "ends inside of tables/ops.parquet")

    def test_a_member_comes_once(self, tmp_path: Path) -> None:
        twice = [(tarfile.TarInfo("document.json"), b'{"run": {"id": "1m8aaaaaaaaa"}}') for _ in range(2)]
        self.refused(tmp_path / "bundle", self.archive(twice), "holds document.json twice")

    def test_documents_have_a_size_together(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bundle_module, "_MOST_JSON_BYTES", 100)
        documents = [
            (tarfile.TarInfo(f"fixes/000{n}.json"), b'{"run": "1m8aaaaaaaaa"' + b" " * 20 + b"}") for n in "123"
        ]
        self.refused(tmp_path / "bundle", self.archive(documents), "are larger than 100 bytes")

    def test_a_table_that_grows_when_it_is_read(
        self, elsewhere: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # GIVEN many rows of one long name: a file of some kB
        of = tables() | {"kernels": kernels([0] * 20_000, "k" * 1000)}
        data = self.bundle(elsewhere, elsewhere.save(document(), of))
        monkeypatch.setattr(bundle_module, "_MOST_TABLE_BYTES", 10_000_000)
        assert len(data) < 1_000_000
        self.refused(tmp_path / "bundle", data, "needs 1.,...,... bytes of memory")

    def test_json_that_is_too_deep(self, tmp_path: Path) -> None:
        deep = b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        sent = self.archive([(tarfile.TarInfo("document.json"), deep)])
        self.refused(tmp_path / "bundle", sent, "document.json can't be read")

    @pytest.mark.parametrize("row", [-1, 3])
    def test_kernels_of_ops_that_are_not_there(self, row: int, elsewhere: Store, tmp_path: Path) -> None:
        run = elsewhere.save(document(), tables() | {"kernels": kernels([row], "k")})
        self.refused(tmp_path / "bundle", self.bundle(elsewhere, run), "kernels.parquet names an op")

    @pytest.mark.parametrize("row", [-1, 3])
    def test_sites_of_ops_that_are_not_there(self, row: int, elsewhere: Store, tmp_path: Path) -> None:
        of = document()
        of.findings[0].places = [Site(ops=[row])]
        self.refused(tmp_path / "bundle", self.bundle(elsewhere, elsewhere.save(of, tables())), "names an op")

    @pytest.mark.parametrize("created", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-05:00", "yesterday"])
    def test_a_time_that_is_none(self, created: str, elsewhere: Store, tmp_path: Path) -> None:
        run = save(elsewhere, created=created)
        self.refused(tmp_path / "bundle", self.bundle(elsewhere, run), "no time of creation")
        assert moment(created) is None
        other = save(elsewhere)
        elsewhere.save_fix(FixDocument(run=other, created=created))
        self.refused(tmp_path / "bundle", self.bundle(elsewhere, other), "a fix that is none of its run")

    def test_one_bundle_is_read_at_a_time(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        token, at_once, most = service.sessions.new_start_token(), 0, 0

        def slow(_store: Store, _upload: object) -> Stored:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            time.sleep(0.1)
            at_once -= 1
            return Stored(id="1m8aaaaaaaaa", new=True)

        async def send() -> list[int]:
            app, answers = create_service(service, pages=False), list[int]()

            async def body() -> dict[str, Any]:
                return {"type": "http.request", "body": b"x", "more_body": False}

            async def answered(message: Any) -> None:
                answers.extend([message["status"]] if "status" in message else [])

            headers = [(b"host", b"127.0.0.1:8050"), (b"authorization", f"Bearer {token}".encode())]
            asked = {"type": "http", "method": "POST", "path": "/api/v1/runs", "query_string": b"", "scheme": "http",
                     "client": ("127.0.0.1", 4000), "http_version": "1.1", "root_path": ""}  # fmt: skip
            sent = (app({**asked, "headers": list(headers)}, body, answered) for _ in range(4))
            await asyncio.gather(*sent)
            return answers

        monkeypatch.setattr(runs, "_store_bundle", slow)
        assert asyncio.run(send()) == [201] * 4
        assert most == 1

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
