"""``kill -9`` of server and worker in the middle of an upload, a job, a migration; then the next start."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from served import Served, serving, start, until
from stored_runs import document, save_script, trace
from test_jobs import FOREVER, gone, pids

from auditor.store import Store, connection
from auditor.store.location import locate
from auditor.store.models import HEAD
from dashboard.jobs.place import Place
from dashboard.jobs.workers import KILLED

pytestmark = pytest.mark.slow


def half_an_upload(served: Served) -> http.client.HTTPConnection:
    """A connection on which half of a body was sent."""
    parts = urlsplit(served.url)
    sending = http.client.HTTPConnection(parts.hostname or "", parts.port)
    sending.putrequest("POST", "/api/v1/uploads?name=half.json")
    sending.putheader("Authorization", f"Bearer {served.token}")
    sending.putheader("Content-Length", str(6_000_000))
    sending.endheaders(b"{" + b" " * 3_000_000)
    return sending


def uploads(place: str) -> list[str]:
    return sorted(os.listdir(Place.beside(locate(place)).uploads))


def test_in_the_middle_of_an_upload(place: str, tmp_path: Path) -> None:
    # GIVEN a whole upload, and half of one
    whole = tmp_path / "whole.json"
    whole.write_bytes(trace())
    served = start(place, "--no-worker")
    kept = served.client.upload(whole)
    sending = half_an_upload(served)
    until(lambda: len(uploads(place)) == 2, "the half is on the disk")

    # WHEN the server is killed
    served.kill()
    sending.close()

    # THEN after the next start what was acknowledged is there, and nothing of the half
    with serving(place, "--no-worker") as again:
        assert uploads(place) == [f"{kept['id']}.json"]
        assert (Place.beside(locate(place)).uploads / uploads(place)[0]).read_bytes() == trace()
        with Store.open(place) as store:
            assert [upload.id for upload in store.uploads.list()] == [kept["id"]]
        assert again.client.health()["status"] == "ok"


def test_a_sender_that_goes_away_leaves_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    with serving(place, "--no-worker") as served:
        sending = half_an_upload(served)
        until(lambda: len(uploads(place)) == 1, "the half is on the disk")
        sending.close()
        until(lambda: uploads(place) == [], "the half is gone")


def test_the_server_in_the_middle_of_a_job(place: str, folder: Path) -> None:
    # GIVEN a job at work
    with Store.open(place) as store:
        run = save_script(store, folder, FOREVER)
    served = start(place)
    job = served.client.submit("audit", run)["id"]
    found = pids(folder)

    # WHEN the server alone is killed
    served.kill()

    # THEN its worker goes on with the job, and the next server shows it and can cancel it
    with serving(place) as again:
        assert again.client.job(job)["state"] == "running"
        assert not gone(found)
        again.client.cancel(job)
        assert again.client.wait(job, timeout_s=60)["state"] == "cancelled"
        until(lambda: gone(found), "its processes are gone")


def test_server_and_worker_in_the_middle_of_a_job(place: str, folder: Path) -> None:
    # GIVEN a job at work and one that waits
    with Store.open(place) as store:
        run = save_script(store, folder, FOREVER)
        served = start(place)
        job, waiting = (served.client.submit("audit", run, steps=steps)["id"] for steps in (5, 6))
        found = pids(folder)
        session = until(lambda: store.jobs.get(job).session, "the worker has said what runs")
        worker = int(store.jobs.get(job).worker.split(":")[1])

        # WHEN both are killed
        served.kill()
        os.kill(worker, signal.SIGKILL)
        assert session

    # THEN the next start shows the job as failed, ends what it left, and takes up the one that waited
    (folder / "pids").unlink()
    with serving(place) as again:
        shown = until(lambda: (now := again.client.job(job))["state"] != "running" and now, "it is no longer running")
        assert (shown["state"], shown["reason"]) == ("failed", KILLED)
        until(lambda: gone(found), "the script and its children are gone")
        pids(folder)
        assert again.client.job(waiting)["state"] == "running"
        again.client.cancel(waiting)
        again.client.wait(waiting, timeout_s=60)
        assert again.client.retry(job)["retry_of"] == job


def test_the_worker_alone_is_started_again(tmp_path: Path, folder: Path) -> None:
    place = str(tmp_path / "store")
    with Store.open(place) as store:
        run = save_script(store, folder, FOREVER)
        with serving(place) as served:
            job = served.client.submit("audit", run)["id"]
            found = pids(folder)
            until(lambda: store.jobs.get(job).session, "the worker has said what runs")
            os.kill(int(store.jobs.get(job).worker.split(":")[1]), signal.SIGKILL)
            assert served.client.wait(job, timeout_s=60)["reason"] == KILLED
            until(lambda: served.client.health()["worker"], "another worker runs")
            (folder / "pids").unlink()
            again = served.client.retry(job)["id"]
            more = pids(folder)
            served.client.cancel(again)
            served.client.wait(again, timeout_s=60)
            assert gone(more)
            until(lambda: gone(found), "what the first left is gone, too")


OLD = """
import sys
from sqlalchemy import text
from auditor.store import connection, location, schema
from auditor.store.schema import alembic_config
from alembic import command

place = location.locate(sys.argv[1])
engine = connection.connect(place)
with connection.writing(engine.connect()) as opened, opened.begin():
    config = alembic_config()
    config.attributes["connection"] = opened
    command.upgrade(config, "0002")
    for number in range(120):
        opened.execute(text(
            "INSERT INTO runs (id, name, source, created, script, device, exit_code, findings, kernels, "
            "unfused_kernels, avoidable_kernels, step_us, step_saving_us, artefacts, document) VALUES (:id, 'old', "
            "'profile', '2026-01-01T00:00:00+00:00', '[]', 'cpu', 0, 0, 0, 0, 0, 0, 0, '[]', :document)"
        ), {"id": f"1m8{number:09d}", "document": sys.argv[2] if number else "{damaged"})
"""
"""A store as the version before the service left it."""

KILLED_IN_IT = """
import os, signal, sys
from alembic import op
from auditor.store import Store

real, calls = op.create_table, []
def create_table(name, *args, **kwargs):
    calls.append(name)
    if name == "tokens":
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(name, *args, **kwargs)
op.create_table = create_table
Store.open(sys.argv[1])
"""


def test_in_the_middle_of_a_migration(place: str) -> None:
    # GIVEN a store of the version before, with 120 runs, one of them damaged
    import msgspec

    location = locate(place)
    if location.file is not None:
        location.file.parent.mkdir()
        location.file.touch()
    known = document("old", script=["models/llama/train.py"], project="")
    known.run.patched_from = "1m8000000000"
    old = subprocess.run([sys.executable, "-c", OLD, place, msgspec.json.encode(known).decode()], check=False)
    assert old.returncode == 0

    # WHEN the process that brings it up to date is killed after the runs were filled in
    died = subprocess.run([sys.executable, "-c", KILLED_IN_IT, place], capture_output=True, text=True, check=False)
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "killed\n")
    assert _version(place) == "0002"

    # THEN the next start does all of it, and every run is there
    with Store.open(place) as store:
        assert _version(place) == HEAD
        runs = {run.id: run for run in store.list_runs()}
        assert len(runs) == 120
        whole = runs["1m8000000119"]
        assert (whole.memory_bound_us, whole.device_us, whole.likely_us) == (30.0, 30.0, 12.5)
        assert (whole.project, whole.patched_from) == ("llama", "1m8000000000")
        assert runs["1m8000000000"].device_us == 0.0
        assert store.jobs.find() == []


def _version(place: str) -> str:
    from sqlalchemy import text

    engine = connection.connect(locate(place))
    with engine.connect() as opened:
        found = str(opened.execute(text("SELECT version_num FROM alembic_version")).scalar())
    engine.dispose()
    return found


@pytest.mark.parametrize("moment", ["before the row", "after the row"])
def test_between_a_file_and_its_row(moment: str, tmp_path: Path) -> None:
    # GIVEN a service that dies between the file of an upload and its row, or right after it
    code = (
        "import os, signal, sys\nfrom auditor.store.uploads import UploadTable\nreal = UploadTable.add\n"
        "def add(self, upload):\n"
        f"    if {moment == 'after the row'}: real(self, upload)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "UploadTable.add = add\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    place, file = str(tmp_path / "store"), tmp_path / "a.json"
    file.write_bytes(trace())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        served = start(place, "--no-worker")
    with pytest.raises(Exception, match="broke off"):
        served.client.upload(file)
    served.process.wait()
    served.close()

    # THEN what is listed is whole, whatever was acknowledged
    with serving(place, "--no-worker"), Store.open(place) as store:
        listed = store.uploads.list()
        assert len(listed) == (moment == "after the row")
        for upload in listed:
            assert Place.beside(store.location).upload(upload.id, upload.kind).read_bytes() == trace()
