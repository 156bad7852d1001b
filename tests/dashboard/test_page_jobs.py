"""Jobs: the list, and one that is followed until it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from audited import save
from memory_jobs import MemoryJobs
from shown import links, page, parts, text

from auditor.store import Store
from dashboard.context import Context, install
from dashboard.jobs.model import Options

pytestmark = pytest.mark.usefixtures("browsing")


def test_jobs_are_listed_and_narrowed(store: Store, memory_jobs: MemoryJobs) -> None:
    assert "No jobs yet." in text(page("jobs").layout())
    run = save(store)
    first = memory_jobs.submit("fix", run, Options(select=["FUS202"]))
    memory_jobs.move(first.id, state="failed", reason="the worker was killed")
    memory_jobs.submit("audit", run)

    everything, failed = page("jobs").layout(), page("jobs").layout(state="failed")

    assert text(everything).index("Audit again") < text(everything).index("Apply and re-measure")
    assert "the worker was killed" in text(failed)
    assert "Audit again" not in text(failed)
    assert "No job is done." in text(page("jobs").layout(state="done"))
    assert links(everything)["Apply and re-measure"] == f"/jobs/{first.id}"


def test_jobs_without_a_worker(browsing: Context) -> None:
    install(replace(browsing, jobs=None))

    assert "No worker runs here" in text(page("jobs").layout())
    assert "No worker runs here" in text(page("job").layout(job_id="job0"))


def test_a_job_that_is_not_there() -> None:
    assert "no job 'nope'" in text(page("job").layout(job_id="nope"))


def poll(job: str, part: dict[str, Any], was: str) -> tuple[Any, ...]:
    from dashboard.components.job_panel import _poll

    return _poll(1, part, was, True, {"type": "job-clock", "job": job})


def test_a_job_is_followed_until_it_ends(store: Store, memory_jobs: MemoryJobs) -> None:
    job = memory_jobs.submit("fix", save(store))
    memory_jobs.logs[job.id] = "\x1b[32mpatching\x1b[0m\n"
    memory_jobs.move(job.id, state="running", progress="patching: 10 s", started="2026-11-30T10:00:00+00:00")

    status, controls, part, state, stop = poll(job.id, {"text": "", "after": 0}, "queued")

    assert "patching: 10 s" in text(status)
    assert [(text(b), b.hidden) for b in controls] == [("Cancel", False), ("Try again", True)]
    assert (part["text"], part["after"], state, stop) == ("patching\n", 18, "running", False)

    memory_jobs.logs[job.id] += "done\u202e\n"
    memory_jobs.move(job.id, state="done", result_run="1m8aaaaaaaaa", ended="2026-11-30T10:01:05+00:00")
    status, controls, part, state, stop = poll(job.id, part, "running")

    assert "took 1 min 5 s" in text(status)
    assert links(status)["What came of it"] == "/run/1m8aaaaaaaaa"
    assert all(b.hidden for b in controls)
    assert (part["text"], state, stop) == ("done\\u202e\n", "done", False)
    assert poll(job.id, part, "done")[-1]


def test_a_long_log_is_read_to_its_end(store: Store, memory_jobs: MemoryJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a job that ended with more log than comes at once
    job = memory_jobs.submit("fix", save(store))
    memory_jobs.move(job.id, state="done")
    monkeypatch.setattr(memory_jobs, "log", lambda _job, after: ("x" * min(10, 25 - after), min(after + 10, 25)))

    # WHEN it is followed
    part: dict[str, Any] = {"text": "", "after": 0}
    shown, polls, stop = "", 0, False
    while not stop:
        *_, part, _, stop = poll(job.id, part, "done")
        shown, polls = shown + part["text"], polls + 1

    # THEN all of it is shown, and then no more is asked
    assert (shown, polls) == ("x" * 25, 4)


NAME = "<b>step</b>\u202e.json"


def imported(memory_jobs: MemoryJobs, **changes: Any) -> str:
    job = memory_jobs.submit("import", "1m8uuuuuuuuu")
    return memory_jobs.move(job.id, files=(NAME,), **changes).id


def test_an_import_is_shown_by_the_name_of_its_file_beside_its_id(memory_jobs: MemoryJobs) -> None:
    job = imported(memory_jobs)

    for shown in (page("jobs").layout(), page("job").layout(job_id=job)):
        assert "<b>step</b>\\u202e.json   1m8uuuuuuuuu" in text(shown)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"state": "failed", "reason": f"{NAME}: the file is empty; record the trace again."}, False),
        ({"state": "failed", "reason": "the worker was killed; retry the job"}, True),
        ({"state": "cancelled", "reason": "cancelled by the user"}, True),
    ],
)
def test_a_file_that_can_not_be_read_is_not_tried_again(
    memory_jobs: MemoryJobs, change: dict[str, Any], again: bool
) -> None:
    shown = page("job").layout(job_id=imported(memory_jobs, **change))

    buttons = {text(part): not part.hidden for part in parts(shown) if type(part).__name__ == "Button"}
    assert buttons["Try again"] is again


def test_a_failed_job_can_be_tried_again(store: Store, memory_jobs: MemoryJobs) -> None:
    job = memory_jobs.submit("fix", save(store))
    memory_jobs.move(job.id, state="failed", reason="the worker was killed")

    shown = page("job").layout(job_id=job.id)

    assert "the worker was killed" in text(shown)
    buttons = {text(part): part.hidden for part in parts(shown) if type(part).__name__ == "Button"}
    assert buttons == {"Cancel": True, "Try again": False}
