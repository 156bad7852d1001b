"""Jobs with a real worker: one at a time, within their caps, ended whole when cancelled, never lost."""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from served import until, working
from stored_runs import save, save_script, trace

from auditor.errors import AuditError
from auditor.store import Missing, Store, Unavailable
from auditor.store.jobs import JobTable
from auditor.store.location import locate
from auditor.store.machine import machine_id
from auditor.store.registering import digest, register
from auditor.store.rule_settings import RuleSetting
from auditor.store.uploads import Upload
from dashboard.jobs import processes, running
from dashboard.jobs.commands import Work, environment, work_of
from dashboard.jobs.device_lock import device_lock
from dashboard.jobs.model import ENDED, Job, Options, is_bad_file
from dashboard.jobs.output import LOG_BYTES, Output, read_log
from dashboard.jobs.place import Place
from dashboard.jobs.processes import MARK, Process, end, held_bytes, is_alive, marked, name_of, process
from dashboard.jobs.running import Caps, Runner
from dashboard.jobs.stored import MOST_WAITING, StoredJobs
from dashboard.jobs.workers import KILLED, LOST, SILENT_S, fail_abandoned, fail_lost

FOREVER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("pids.new", "w").write(f"{os.getpid()} {child.pid} {away.pid}")
os.rename("pids.new", "pids")
time.sleep(600)
"""
"""A script with a child in its group, and one that has left it."""


def pids(folder: Path) -> list[int]:
    file = folder / "pids"
    until(file.exists, "the script runs")
    return [int(pid) for pid in file.read_text().split()]


def gone(found: list[int]) -> bool:
    return all(process(pid) is None for pid in found)


def ended(jobs: StoredJobs, job: Job, timeout_s: float = 120.0) -> Job:
    return until(lambda: (now := jobs.get(job.id)).state in ENDED and now, "the job ends", timeout_s)  # type: ignore[no-any-return]


def at(store: Store) -> str:
    return str(store.location.file)


def uploaded(store: Store, data: bytes, name: str = "step.json") -> str:
    upload = Upload("1m8aaaaaaaaa", name, "json", len(data), "0" * 64, "", machine_id(), "")
    Place.beside(store.location).upload(upload.id, "json").write_bytes(data)
    store.uploads.add(upload)
    return upload.id


@pytest.fixture
def jobs(store: Store) -> StoredJobs:
    return StoredJobs(store)


class TestWork:
    def test_a_trace_is_imported(self, store: Store, jobs: StoredJobs) -> None:
        with working(at(store)):
            job = ended(jobs, jobs.submit("import", uploaded(store, trace())))
        assert (job.state, job.reason) == ("done", "")
        found = store.load(job.result_run)
        assert (found.name, found.document.run.source, found.document.totals.kernels) == ("step", "trace", 2)
        assert "stored as" in jobs.log(job.id)[0]
        assert job.created <= job.started <= job.ended

    def test_what_fails_says_why_and_can_be_retried(self, store: Store, jobs: StoredJobs) -> None:
        upload = uploaded(store, b'{"traceEvents": 3}')
        with working(at(store)):
            job = ended(jobs, jobs.submit("import", upload))
            assert job.state == "failed"
            assert job.reason.startswith("step.json: not a trace of a known form")  # not the path that it has here
            assert "\n" not in job.reason
            assert is_bad_file(job)
            assert "uploads/" not in jobs.log(job.id)[0]
            assert "step.json: not a trace" in jobs.log(job.id)[0]
            assert [found.files for found in jobs.list()] == [("step.json",)]
            Place.beside(store.location).upload(upload, "json").write_bytes(trace())
            again = ended(jobs, jobs.retry(job.id))
        assert (again.state, again.retry_of, again.options) == ("done", job.id, job.options)
        with pytest.raises(AuditError, match="is done; only one that failed or was cancelled"):
            jobs.retry(again.id)
        assert [found.id for found in jobs.list()] == [again.id, job.id]
        assert [found.id for found in jobs.list(state="failed")] == [job.id]

    def test_a_message_that_was_lost_loses_no_job(self, store: Store, jobs: StoredJobs) -> None:
        # GIVEN a job whose message is no longer in the queue, as after a kill between the two
        job = jobs.submit("import", uploaded(store, trace()))
        with sqlite3.connect(Place.beside(store.location).queue) as queue:
            assert queue.execute("delete from task").rowcount == 1
        queue.close()

        # WHEN a worker starts
        with working(at(store)):
            # THEN it is done all the same
            assert ended(jobs, job).state == "done"

    def test_a_job_that_is_already_taken_is_done_once(self, store: Store, jobs: StoredJobs) -> None:
        job = jobs.submit("import", uploaded(store, trace()))
        for _ in range(3):
            jobs._wake(job.id)
        with working(at(store)):
            assert ended(jobs, job).state == "done"
            until(lambda: _pending(store) == 0, "every message is taken")
        assert len(store.list_runs()) == 1

    def test_one_measures_at_a_time(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        # GIVEN a machine on which something measures already
        run = save_script(store, folder, "import time; time.sleep(600)")
        with device_lock() as free, working(at(store)):
            assert free
            # WHEN a job that measures comes
            job = jobs.submit("audit", run)
            # THEN it waits, and says so
            until(lambda: "waiting for another measurement" in jobs.get(job.id).progress, "the job waits")
            with device_lock() as second:
                assert not second
            # AND can be cancelled while it does
            jobs.cancel(job.id)
            assert ended(jobs, job).reason == "cancelled before the script ran"


def _pending(store: Store) -> int:
    with sqlite3.connect(Place.beside(store.location).queue) as queue:
        found: int = queue.execute("select count(*) from task").fetchone()[0]
    queue.close()
    return found


class TestEnding:
    def test_cancelling_ends_every_process(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        run = save_script(store, folder, FOREVER)
        with working(at(store)):
            job = jobs.submit("audit", run)
            found = pids(folder)
            assert not gone(found)
            assert jobs.cancel(job.id).progress == "being cancelled"
            now = ended(jobs, job)
            assert (now.state, now.reason) == ("cancelled", "cancelled while it ran")
            assert gone(found)
        assert jobs.cancel(job.id) == now  # what has ended stays as it is
        assert len(store.list_runs()) == 1

    def test_a_waiting_job_is_cancelled_at_once(self, store: Store, jobs: StoredJobs) -> None:
        job = jobs.submit("import", uploaded(store, trace()))
        assert jobs.cancel(job.id).state == "cancelled"
        with working(at(store)):
            until(lambda: _pending(store) == 0, "the message is taken")
            time.sleep(0.5)
        assert store.list_runs() == []

    def test_the_time_cap(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        run = save_script(store, folder, FOREVER)
        with working(at(store), "--job-time-s", "8"):
            job = ended(jobs, jobs.submit("audit", run))
            assert gone(pids(folder))
        assert job.state == "failed"
        assert job.reason.startswith("it ran longer than 8.00 s, the cap of a job")

    def test_the_memory_cap_counts_children(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        run = save_script(
            store, folder,
            "import subprocess, sys, time\n"
            "subprocess.Popen([sys.executable, '-c', 'x = bytearray(700_000_000); import time; time.sleep(600)'])\n"
            "time.sleep(600)\n",
        )  # fmt: skip
        with working(at(store), "--job-memory-bytes", str(600_000_000)):
            job = ended(jobs, jobs.submit("audit", run))
        assert job.state == "failed"
        assert "more than 600 MB, the cap of a job" in job.reason

    def test_a_stopped_service_puts_its_job_back(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        run = save_script(store, folder, FOREVER)
        with working(at(store)) as worker:
            job = jobs.submit("audit", run)
            found = pids(folder)
            worker.terminate()
            assert worker.wait(60) == 0
        now = jobs.get(job.id)
        assert (now.state, now.started) == ("queued", "")
        assert "the service was stopped" in now.progress
        assert gone(found)

        # AND the next worker takes it up
        (folder / "pids").unlink()
        with working(at(store)):
            assert not gone(pids(folder))
            jobs.cancel(job.id)
            assert ended(jobs, job).state == "cancelled"

    def test_a_killed_workers_job_has_failed_and_leaves_nothing(
        self, store: Store, jobs: StoredJobs, folder: Path
    ) -> None:
        # GIVEN a job at work
        run = save_script(store, folder, FOREVER)
        with working(at(store)) as worker:
            job = jobs.submit("audit", run)
            found = pids(folder)
            until(lambda: store.jobs.get(job.id).session, "the worker has said what runs")

            # WHEN its worker is killed
            worker.send_signal(signal.SIGKILL)
            worker.wait()

        # THEN whoever looks sees it failed, and its processes end
        assert jobs.list()[0].state == "failed"
        assert jobs.get(job.id).reason == KILLED
        until(lambda: gone(found), "the script and its children end, even the one that left its session")

        # AND it can be retried
        (folder / "pids").unlink()
        with working(at(store)):
            again = jobs.retry(job.id)
            pids(folder)
            jobs.cancel(again.id)
            assert ended(jobs, again).state == "cancelled"

    def test_a_worker_ends_with_its_parent(self, store: Store) -> None:
        parent = subprocess.Popen(["sleep", "600"])
        with working(at(store), "--parent", str(parent.pid)) as worker:
            parent.kill()
            parent.wait()
            assert worker.wait(30) == 0


class TestAbandoned:
    def test_only_the_jobs_of_workers_that_are_gone(self, store: Store) -> None:
        here, there = machine_id(), "another"
        now_s = time.time()
        cases = {
            f"{here}:{name_of(os.getpid())}": (now_s - 10 * SILENT_S, "running"),  # slow, but it lives
            f"{here}:{os.getpid()}:1": (now_s, "failed"),  # its number was given again
            f"{there}:1:1": (now_s, "running"),
            f"{there}:1:2": (now_s - 2 * SILENT_S, "failed"),
        }
        for worker, (heartbeat_s, _) in cases.items():
            job = store.jobs.add("import", "1m8aaaaaaaaa", "{}", here)
            store.jobs.claim(job.id, worker)
            store.jobs._change(job.id, ["running"], heartbeat_s=heartbeat_s)
        fail_abandoned(store)
        assert {job.worker: job.state for job in store.jobs.find()} == {w: state for w, (_, state) in cases.items()}

    def test_only_processes_of_the_job_are_ended(self, store: Store) -> None:
        # GIVEN a job of a worker that is gone, and a stranger who got the number of its session
        job = store.jobs.add("import", "1m8aaaaaaaaa", "{}", machine_id())
        worker = f"{machine_id()}:{os.getpid()}:1"
        store.jobs.claim(job.id, worker)
        stranger, ours = (
            subprocess.Popen(["sleep", "600"], start_new_session=True, env={**os.environ, MARK: mark})
            for mark in ("", job.id)
        )
        store.jobs.beat(job.id, worker, "", stranger.pid)

        # WHEN somebody looks
        assert fail_abandoned(store) == [job.id]

        # THEN the job's own has ended, and the stranger lives
        assert ours.wait(10) == -signal.SIGTERM
        assert stranger.poll() is None
        stranger.kill()
        stranger.wait()

    def test_what_can_not_be_killed_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "_KILL_S", 0.2)
        asked: list[int] = []
        monkeypatch.setattr(processes, "_send", lambda _left, number: asked.append(number))
        hanging = process(os.getpid())
        assert hanging
        end(lambda: [hanging], 0.1)
        assert (asked[0], asked[-1]) == (signal.SIGTERM, signal.SIGKILL)

    def test_a_process_is_known_by_its_time_of_start(self) -> None:
        mine = name_of(os.getpid())
        assert is_alive(mine)
        assert not is_alive(f"{os.getpid()}:1")
        for name in ("", "x", "1:", f"{2**22 + 1}:5"):
            assert not is_alive(name)


class TestStoreThatRefuses:
    """A worker's runner in this process, with work that needs no torch."""

    @pytest.fixture
    def runner(self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
        code = "import time; print('fusion-audit: at work', flush=True); time.sleep(1.5)"

        class Sleeping(Work):
            def command(self) -> list[str]:
                return [sys.executable, "-c", code]

        monkeypatch.setattr(running, "work_of", lambda *_: Sleeping([], tmp_path))
        monkeypatch.setattr(running, "of_job", lambda _worker: [p for j in store.jobs.find() for p in marked(j.id)])
        monkeypatch.setattr(running, "BEAT_S", 0.1)
        monkeypatch.setattr(running, "_RETRY_S", 0.05)
        return Runner(store, Place.beside(store.location), "me", Caps())

    def refusing(self, monkeypatch: pytest.MonkeyPatch, table: object, name: str, calls: range) -> None:
        """Calls with these numbers find no store."""
        real, count = getattr(table, name), itertools.count()

        def call(*args: object) -> object:
            if next(count) in calls:
                raise Unavailable("the database stayed locked")
            return real(*args)

        monkeypatch.setattr(table, name, call)

    def test_for_a_while_ends_no_job(self, store: Store, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        job = store.jobs.add("import", "1m8aaaaaaaaa", "{}", machine_id())
        self.refusing(monkeypatch, store.jobs, "beat", range(3))
        self.refusing(monkeypatch, store.jobs, "get", range(1, 3))
        self.refusing(monkeypatch, store.jobs, "end", range(4))
        runner(job.id)
        now = store.jobs.get(job.id)
        assert (now.state, now.progress) == ("failed", "at work")
        assert now.reason.startswith("it ended well but left no result")
        assert runner.current == ""

    def test_when_the_service_stops_it_is_not_waited_for(
        self, store: Store, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.refusing(monkeypatch, store.jobs, "put_back", range(1000))
        job = store.jobs.add("import", "1m8aaaaaaaaa", "{}", machine_id())
        threading.Timer(0.5, runner.stopping.set).start()
        runner(job.id)
        assert store.jobs.get(job.id).state == "running"  # whoever comes next finds that its worker is gone

    def test_a_job_that_was_given_to_another_is_left_to_it(
        self, store: Store, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = store.jobs.add("import", "1m8aaaaaaaaa", "{}", machine_id())
        monkeypatch.setattr(store.jobs, "claim", lambda job, _me: JobTable.claim(store.jobs, job, "another"))
        runner(job.id)
        now = store.jobs.get(job.id)
        assert (now.state, now.worker, now.progress) == ("running", "another", "")
        assert marked(job.id) == []

    def test_a_job_that_was_taken_without_a_word_has_failed(self, store: Store) -> None:
        taken, lost, other = (store.jobs.add("import", "1m8aaaaaaaaa", "{}", machine_id()) for _ in range(3))
        for job, worker in ((taken, "me"), (lost, "me"), (other, "another")):
            store.jobs.claim(job.id, worker)
        assert fail_lost(store, "me", lambda: taken.id) == [lost.id]
        assert [store.jobs.get(job.id).state for job in (taken, lost, other)] == ["running", "failed", "running"]
        assert store.jobs.get(lost.id).reason == LOST


class TestSubmitting:
    def test_why_not(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        imported, mine = save(store, source="trace"), save_script(store, folder, "print()")
        assert "is no run of a script" in jobs.why_not("fix", imported)
        assert jobs.why_not("fix", mine) == ""
        assert "no run 'none'" in jobs.why_not("fix", "none")
        assert "no upload" in jobs.why_not("import", "1m8bbbbbbbbb")
        with pytest.raises(AuditError, match="is no run of a script"):
            jobs.submit("fix", imported)
        (folder / "script.py").unlink()
        assert "script.py is not there any more" in jobs.why_not("fix", mine)

    @pytest.mark.parametrize("select", [["FUS501"], ["fus501"], ["unfused-sibling-gemms"], ["FUS5"]])
    def test_a_rule_that_is_switched_off_here_is_not_applied(
        self, select: list[str], store: Store, jobs: StoredJobs, folder: Path
    ) -> None:
        run, options = save_script(store, folder, "print()"), Options(select=select)
        assert jobs.why_not("fix", run, options) == ""
        store.rule_settings.put(RuleSetting("FUS501", enabled=False))
        assert jobs.why_not("fix", run, options).startswith("FUS501 is switched off here")
        with pytest.raises(AuditError, match="FUS501 is switched off here"):
            jobs.submit("fix", run, options)
        for others in (Options(), Options(select=["FUS202"]), Options(select=["FUS501", "FUS202"])):
            assert jobs.why_not("fix", run, others) == ""
        assert jobs.why_not("audit", run, options) == ""

    def test_an_equal_job_is_refused_while_the_first_waits(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        # GIVEN a job that waits
        run = save_script(store, folder, "print()")
        first = jobs.submit("fix", run, Options(select=["FUS202"]))

        # WHEN the same is asked for again, by whatever name of the run
        for ref in (run, "latest"):
            with pytest.raises(AuditError, match=f"job {first.id} does the same and is queued"):
                jobs.submit("fix", ref, Options(select=["FUS202"]))

        # THEN only what is the very same is refused, and only until it ends
        jobs.submit("fix", run, Options(select=["FUS501"]))
        jobs.submit("audit", run)
        jobs.cancel(first.id)
        again = jobs.retry(first.id)
        with pytest.raises(AuditError, match=f"job {again.id} does the same"):
            jobs.retry(first.id)

    def test_of_equal_jobs_that_are_asked_for_at_once_one_is_queued(
        self, store: Store, jobs: StoredJobs, folder: Path
    ) -> None:
        run = save_script(store, folder, "print()")

        def submit(_: int) -> bool:
            try:
                return bool(jobs.submit("audit", run))
            except AuditError:
                return False

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(submit, range(8))) == 1
        assert len(store.jobs.find(run=run)) == 1

    def test_a_run_of_another_script_than_was_registered_is_not_run_again(
        self, store: Store, jobs: StoredJobs, folder: Path
    ) -> None:
        (folder / "script.py").write_text("print()")
        run = save(store, script=["other.py", "--seed", "1"])
        register(store, run, "script.py", ["--seed", "1"], digest(folder / "script.py"))
        assert "is not of the script that was registered for it here" in jobs.why_not("fix", run)

    def test_the_audit_after_a_fix_is_fixed_through_its_first_run(
        self, store: Store, jobs: StoredJobs, folder: Path
    ) -> None:
        mine = save_script(store, folder, "print()")
        after = save(store, patched_from=mine)
        assert jobs.why_not("fix", after) == ""
        job = jobs.submit("fix", after)
        work = work_of(store.jobs.get(job.id), store, Place.beside(store.location), 60.0)
        assert work.arguments[:2] == ["fix", mine]

    @pytest.mark.parametrize(
        "options", [Options(select=["a b"]), Options(min_gain=-1), Options(limit=-1), Options(steps=0)]
    )
    def test_options_are_checked_here_too(self, options: Options, store: Store, jobs: StoredJobs, folder: Path) -> None:
        with pytest.raises(AuditError, match="expected"):
            jobs.submit("fix", save_script(store, folder, "print()"), options)

    def test_a_queue_has_an_end(self, store: Store, jobs: StoredJobs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store.jobs, "counts", lambda: {"queued": MOST_WAITING})
        with pytest.raises(AuditError, match=f"{MOST_WAITING} jobs are waiting already"):
            jobs.submit("import", uploaded(store, trace()))
        assert store.jobs.find() == []

    def test_a_queue_that_fails_loses_no_job_and_doubles_none(
        self, store: Store, jobs: StoredJobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_job: str) -> None:
            raise sqlite3.OperationalError("database is locked")

        monkeypatch.setattr(jobs, "_wake", broken)
        job = jobs.submit("import", uploaded(store, trace()))
        assert [found.id for found in store.jobs.find(state="queued")] == [job.id]

    def test_a_jobs_process_finds_the_store_from_any_folder(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = "postgresql+psycopg://u@h/d"
        for said, meant in (
            ("files", folder / "files"),
            ("", folder / ".fusion-audit/artefacts"),
            ("s3://a", "s3://a"),
        ):
            monkeypatch.setenv("FUSION_AUDIT_ARTEFACTS", said)
            monkeypatch.setenv("FUSION_AUDIT_DIR", ".fusion-audit")
            given = environment(SimpleNamespace(location=locate(url)), "1m8aaaaaaaaa")  # type: ignore[arg-type]
            assert (given["FUSION_AUDIT_DB"], given["FUSION_AUDIT_ARTEFACTS"]) == (url, str(meant))
            assert given[MARK] == "1m8aaaaaaaaa"

    def test_rules_that_are_off_are_left_out(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        (folder / "pyproject.toml").write_text('[tool.fusion-audit]\nignore = ["FUS501"]\n')
        store.rule_settings.put(RuleSetting("FUS101", enabled=False))
        job = jobs.submit("fix", save_script(store, folder, "print()"), Options(limit=2, min_gain=0.01, keep_all=True))
        work = work_of(store.jobs.get(job.id), store, Place.beside(store.location), 60.0)
        asked = " ".join(work.arguments)
        assert "--ignore FUS501,FUS101" in asked
        assert "--limit 2" in asked
        assert "--min-gain 0.01" in asked
        assert "--keep-all" in asked
        assert "--time-cap 60s" in asked

    @pytest.mark.parametrize("name", ["latest.json", "1m8aaaaaaaaa.json.gz", "-x", "--db=evil"])
    def test_a_trace_can_be_called_anything(self, name: str, store: Store, jobs: StoredJobs) -> None:
        from auditor.cli.parser import parse

        job = jobs.submit("import", uploaded(store, trace(), name))
        work = work_of(store.jobs.get(job.id), store, Place.beside(store.location), 60.0)
        _, args = parse(work.arguments)
        assert args.db is None
        assert args.name in ("trace-latest", "trace-1m8aaaaaaaaa", "-x", "--db=evil")

    def test_a_plan_is_there_once_it_is_written(self, store: Store, jobs: StoredJobs, folder: Path) -> None:
        job = jobs.submit("fix", save_script(store, folder, "print()"))
        with pytest.raises(Missing, match="has no plan"):
            jobs.plan(job.id)
        place = Place.beside(store.location)
        place.job(job.id)
        place.plan(job.id).write_text("sites: []\n")
        assert jobs.plan(job.id) == "sites: []\n"


class TestLogs:
    def test_a_log_is_read_in_parts_without_breaking_a_character(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes("aé".encode()[:2])
        assert read_log(log, 0) == ("a", 1)
        log.write_bytes("aé\n漢".encode())
        assert read_log(log, 1) == ("é\n漢", 7)
        log.write_bytes(b"\xff\xe9")
        text, end = read_log(log, 0)
        assert (text.replace("\N{REPLACEMENT CHARACTER}", "?"), end) == ("?", 1)

    def test_a_log_has_an_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from io import BytesIO

        from dashboard.jobs import output

        assert LOG_BYTES >= 1_000_000
        monkeypatch.setattr(output, "LOG_BYTES", 100)
        text = b"x" * 99 + b"\nfusion-audit: still said\nerror: \x1b[31mwhy\n"
        reader = output.Output(BytesIO(text), tmp_path / "log")  # type: ignore[arg-type]
        reader.run()
        assert (tmp_path / "log").read_bytes().startswith(text[:100] + b"\nfusion-audit: the log is full")
        assert (reader.said, reader.error) == ("still said", r"\x1b[31mwhy")

    def test_a_full_disk_does_not_stop_the_reading(self) -> None:
        from io import BytesIO

        reader = Output(BytesIO(b"fusion-audit: far\n" * 10_000 + b"error: why\n"), Path("/dev/full"))  # type: ignore[arg-type]
        reader.run()
        assert (reader.said, reader.error) == ("far", "why")

    def test_digest_of_what_can_not_be_read(self, tmp_path: Path) -> None:
        assert digest(tmp_path / "none") == ""
        assert digest(tmp_path) == ""

    def test_digest_of_a_pipe_does_not_wait_for_it(self, tmp_path: Path, store: Store) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert digest(tmp_path / "pipe") == ""
        assert digest("/dev/zero") == ""
        # AND a run of one can't be run again
        run = save(store)
        register(store, run, tmp_path / "pipe", [], digest(tmp_path / "pipe"))
        assert store.registrations.get(run, machine_id()) is None

    def test_a_damaged_queue_is_made_anew(self, store: Store) -> None:
        place = Place.beside(store.location)
        place.queue.write_bytes(os.urandom(4096))
        StoredJobs(store, place)
        assert place.queue.read_bytes().startswith(b"SQLite format 3")

    def test_a_place_that_can_not_be_used_is_told_in_a_sentence(self, store: Store) -> None:
        place = Place.beside(store.location)
        place.root.write_text("a file")
        with pytest.raises(Unavailable, match="the service can't keep files here: File exists"):
            StoredJobs(store, place)


def test_memory_that_processes_share_counts_once() -> None:
    # GIVEN 64 MB that three processes share
    nbytes = 64_000_000
    with mmap.mmap(-1, nbytes) as shared:
        shared.write(b"x" * nbytes)
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                sum(shared[at] for at in range(0, nbytes, 4096))
                time.sleep(60)
                os._exit(0)
            children.append(pid)
        try:
            deadline_s = time.monotonic() + 30
            found: list[Process] = []
            while time.monotonic() < deadline_s and not (found and all(p.resident_bytes > nbytes for p in found)):
                time.sleep(0.1)
                found = [one for one in map(process, [os.getpid(), *children]) if one is not None]
            resident = sum(one.resident_bytes for one in found)
            # THEN they are counted together where it matters, and not looked at closely where it doesn't
            assert resident > 3 * nbytes
            assert held_bytes(found, resident) == resident
            assert held_bytes(found, nbytes) < resident - 1.5 * nbytes
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
