"""Broken files in the dashboard: each is refused in one sentence, at the door or by its job, and no run comes of it."""

from __future__ import annotations

import codecs
import gzip
import json
import os
from io import BytesIO
from typing import Any

import pytest
from shown import text
from starlette.testclient import TestClient
from stored_runs import trace

from auditor.cli import main
from auditor.store import Store
from dashboard.api.service import Service
from dashboard.components.job_panel import controls, status
from dashboard.context import Context, installed
from dashboard.jobs.commands import environment, work_of
from dashboard.jobs.model import Job
from dashboard.jobs.output import Output
from dashboard.jobs.running import Caps, Runner, _failure
from dashboard.jobs.stored import StoredJobs

URL = "/api/v1/uploads"
PACKED = gzip.compress(trace(), mtime=0)


def changed(**fields: Any) -> bytes:
    """The trace with these fields in its first event."""
    found = json.loads(trace())
    found["traceEvents"][0] |= fields
    return json.dumps(found).encode()


def read_by_a_job(store: Store, service: Service, upload: str, capfd: pytest.CaptureFixture[str]) -> Job:
    """What a worker makes of the import of ``upload``; its command runs in this process, where it costs no second."""
    jobs = StoredJobs(store)
    job = jobs.submit("import", upload).id
    assert store.jobs.claim(job, "worker")
    work = work_of(store.jobs.get(job), store, service.place, 60.0)
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(work.folder)
        for name, value in environment(store).items():
            patched.setenv(name, value)
        code = main(work.arguments)
    output = Output(BytesIO("".join(capfd.readouterr()).encode()), service.place.log(job))
    output.run()
    Runner(store, service.place, "worker", Caps())._conclude(store.jobs.get(job), _failure(code, output))
    return jobs.get(job)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the upload is neither JSON nor gzip: it is empty; send a trace of torch.profiler, .json or .json.gz"),
        (b"dear diary", "the upload is neither JSON nor gzip; send a trace"),
        (b"PK\x03\x04", "the upload is neither JSON nor gzip but a zip archive (unpack it first); send a trace"),
        (trace().decode().encode("utf-16"), "the upload is neither JSON nor gzip but UTF-16 text (save it as UTF-8)"),
        (b"NaN", "the upload is neither JSON nor gzip; send a trace"),
    ],
    ids=["empty", "text", "zip", "utf-16", "nan"],
)  # fmt: skip
def test_what_is_no_trace_by_its_first_bytes_is_refused_at_the_door(
    body: bytes, sentence: str, service: Service, api: TestClient
) -> None:
    answer = api.post(URL, params={"name": "step.json"}, content=body)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(sentence)
    assert (os.listdir(service.place.uploads), service.store.uploads.list(), service.store.count_runs()) == ([], [], 0)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (PACKED[:-40], "gzip is cut off after "),
        (PACKED[:60] + b"\0" * 40 + PACKED[100:], "damaged gzip after "),
        (gzip.compress(b""), "the file is empty; record the trace again."),
        (gzip.compress(bytes(200 << 20), 9), "unpacks to more than 200 times its size"),
        (trace()[:-50], ", line 1: the JSON is cut off here"),
        (b"{" + b" " * 80, ", line 1: the JSON is cut off here"),
        (b'{"traceEvents": [}]}', ", line 1 (byte 17): not valid JSON"),
        (b'{"a": 1}', "no traceEvents in it, so not a profiler trace"),
        (b"[1, 2, 3]", "not a trace of a known form"),
        (b"[]", "holds no ops and no kernels"),
        (b'{"schema": "1.1.1", "nodes": []}', "is an execution trace, not a profiler's"),
        (b"[" * 100_000, "is nested deeper than any profiler writes"),
    ],
    ids=["cut gzip", "damaged gzip", "packed nothing", "bomb", "cut", "brace", "comma", "other json", "numbers",
         "no events", "execution trace", "deep"],
)  # fmt: skip
def test_what_its_job_can_not_read_is_said_in_one_sentence_and_no_run_comes_of_it(
    body: bytes, sentence: str, store: Store, service: Service, api: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a file that begins as a trace may WHEN it was uploaded and its job is through
    sent = api.post(URL, params={"name": "step.json"}, content=body)
    assert sent.status_code == 201
    job = read_by_a_job(store, service, sent.json()["id"], capfd)

    # THEN the job's page has the reason under the name that the sender knows, in one line, and no run is there
    separator = "" if sentence.startswith(",") else ": "
    assert (job.state, job.result_run, store.count_runs()) == ("failed", "", 0)
    assert job.reason.startswith(f"step.json{separator}{sentence}")
    assert "\n" not in job.reason
    assert str(service.place.uploads) not in job.reason
    assert job.reason in text(status(job))

    # AND as the file stays what it is no other try is offered
    with installed(Context(store=store, may_change=lambda: True)):
        assert [button.hidden for button in controls(job, retry=True)] == [True, True]


@pytest.mark.parametrize(
    "body",
    [
        codecs.BOM_UTF8 + trace(),
        gzip.compress(codecs.BOM_UTF8 + trace()),
        changed(pid="rank 0", tid="thread A"),
        changed(dur=float("nan")),
        changed(ts=float("-inf")),
        changed(name="a\ud800b"),
        trace()[:-2] + b",\n]}",
    ],
    ids=["mark", "packed mark", "string pids", "nan", "infinity", "half a character", "comma"],
)
def test_what_profilers_and_editors_do_to_a_trace_is_read(
    body: bytes, store: Store, service: Service, api: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = api.post(URL, params={"name": "step.json"}, content=body)
    job = read_by_a_job(store, service, sent.json()["id"], capfd)
    assert (job.state, job.reason) == ("done", "")
    assert store.load(job.result_run).document.totals.kernels == 2
