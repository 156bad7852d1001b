"""Ranks of a job: who they are, how they meet, what their audits become together, and how a gate holds them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gate_factory import audited, graph, rules

from auditor.audit import Audit
from auditor.document import Document
from auditor.errors import AuditError
from auditor.gate.baseline import Baseline, written
from auditor.gate.budget import Demands, file_demands
from auditor.gate.comparable import check_comparable
from auditor.gate.compare import compare
from auditor.gate.snapshot import head_of, snapshot_of
from auditor.gate.verdict import judge
from auditor.gate_document import Snapshot
from auditor.graph.model import OpGraph
from auditor.ranks import meeting as meetings
from auditor.ranks.api import join_ranks
from auditor.ranks.meeting import Meeting
from auditor.ranks.part import Part, Process, _began
from auditor.ranks.whole import join, part_of
from auditor.ranks.world import World, world
from auditor.report import ranks as words
from auditor.report import render
from auditor.store import Store, StoredRun
from auditor.store.bundle import read_bundle, write_bundle
from auditor.store.location import locate
from auditor.store.rank_tables import rank_of

Cli = Callable[..., Any]  # gives (code, out, err)
TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


def here(rank: int, size: int = 2, job: str = "job") -> World:
    return World(rank=rank, size=size, local_rank=rank, local_size=size, job=job)


def audit(of: OpGraph, **run: object) -> Audit:
    return Audit(audited(of, **run), of)


def whole(*graphs: OpGraph | None, missing: dict[int, str] | None = None) -> Audit:
    """The audit of a job whose ranks have ``graphs``; None is a rank of which nothing came."""
    audits = [audit(of) if of is not None else None for of in graphs]
    parts = {}
    for rank, one in enumerate(audits):
        if one is not None:
            parts[rank] = part_of(one, here(rank, len(graphs)))
            parts[rank].tables = one.tables()
    first = audits[0]
    assert first is not None
    made = join(first, parts.pop(0), parts, missing or {}, len(graphs))
    assert made is not None
    return made


@contextmanager
def sleeping() -> Iterator[Process]:
    """A process of this machine that runs as long as this lasts."""
    one = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    with one:
        assert one.stdout is not None
        one.stdout.readline()
        try:
            yield Process(host=Process.this().host, pid=one.pid, began=_began(one.pid))
        finally:
            one.kill()


def kill_leader(meeting: Meeting) -> None:
    """Leave the folder as a rank 0 does that is killed."""
    with sleeping() as gone:
        job = meetings.Job(mark=meeting._mark, process=gone)
    (meeting.folder / "job.json").write_bytes(msgspec.json.encode(job))


def save(store: Store, made: Audit) -> StoredRun:
    return store.load(store.save(made.document, made.tables()))


class TestWorld:
    def test_what_torchrun_says(self) -> None:
        found = world(TORCHRUN)
        assert found is not None
        assert (found.rank, found.size, found.local_rank, found.local_size) == (1, 2, 1, 2)

    @pytest.mark.parametrize(
        "without", [{"RANK": ""}, {"WORLD_SIZE": "1"}, {"RANK": "x"}, {"TORCHELASTIC_RUN_ID": "", "MASTER_ADDR": ""}]
    )
    def test_a_process_by_itself_is_no_rank(self, without: dict[str, str]) -> None:
        assert world(TORCHRUN | without) is None

    def test_jobs_and_their_restarts_are_told_apart(self) -> None:
        jobs = [
            world(TORCHRUN | change)
            for change in (
                {}, {"RANK": "0", "LOCAL_RANK": "0"}, {"MASTER_PORT": "29501"}, {"TORCHELASTIC_RESTART_COUNT": "1"},
                {"TORCHELASTIC_RUN_ID": "b"},
            )
        ]  # fmt: skip
        marks = [job.job for job in jobs if job]
        assert marks[0] == marks[1]
        assert len(set(marks)) == 4

    def test_machines_and_agents_of_one_loopback_address_are_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def job(**change: str) -> str:
            found = world(TORCHRUN | change)
            assert found is not None
            return found.job

        def log(agent: str, rank: int) -> str:
            return f"/tmp/torchelastic_{agent}/none_{agent}/attempt_0/{rank}/error.json"

        one = job(TORCHELASTIC_ERROR_FILE=log("a", 1))
        assert one == job(TORCHELASTIC_ERROR_FILE=log("a", 0), RANK="0", LOCAL_RANK="0")
        assert one != job(TORCHELASTIC_ERROR_FILE=log("b", 1))
        # Two agents make one job where each started a part of it, here of one machine and of two
        halves = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
        far = halves | {"MASTER_ADDR": "10.0.0.1"}
        assert job(**halves, TORCHELASTIC_ERROR_FILE=log("a", 1)) == job(**halves, TORCHELASTIC_ERROR_FILE=log("b", 1))
        before = job(), job(MASTER_ADDR="127.0.0.1"), job(**far)

        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")

        after = job(), job(MASTER_ADDR="127.0.0.1"), job(**far)
        assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]

    @pytest.mark.parametrize(
        ("odd", "sentence"),
        [
            ({"RANK": "9" * 5000}, "RANK is a number of 5000 digits; start the ranks with torchrun"),
            ({"WORLD_SIZE": "300000000"}, "WORLD_SIZE=300000000 is more than the 1,000,000 ranks that a job can have"),
            ({"LOCAL_WORLD_SIZE": "1" * 19}, "LOCAL_WORLD_SIZE is a number of 19 digits"),
        ],
    )
    def test_numbers_that_no_job_has(self, odd: dict[str, str], sentence: str) -> None:
        with pytest.raises(AuditError, match=sentence):
            world(TORCHRUN | odd)

    def test_a_local_world_larger_than_the_world_costs_nothing(self) -> None:
        found = world(TORCHRUN | {"LOCAL_WORLD_SIZE": "9" * 18, "LOCAL_RANK": "9" * 17})
        assert found is not None
        assert found.neighbours() == [0]

    def test_a_rank_outside_of_its_world_is_refused(self) -> None:
        with pytest.raises(AuditError, match="RANK=2 is none of WORLD_SIZE=2; start the ranks with torchrun"):
            world(TORCHRUN | {"RANK": "2"})

    def test_neighbours_are_the_ranks_of_the_machine(self) -> None:
        found = world(TORCHRUN | {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
        assert found is not None
        assert found.neighbours() == [4, 6, 7]


def test_the_gate_records_no_ranks(monkeypatch: pytest.MonkeyPatch, folder: Path, fusion_audit: Cli) -> None:
    (folder / "pyproject.toml").write_text('[tool.fusion-audit]\nscript = "x.py"\nmax_kernels = 1\n')
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    done = fusion_audit("gate", "--record")
    assert (done.code, "--record runs the script in one process; under torchrun record it" in done.err) == (2, True)


class TestMeeting:
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(meetings, "ARRIVAL_S", 0.3)
        monkeypatch.setattr(meetings, "_POLL_S", 0.01)

    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Meeting, Meeting]:
        location = locate(tmp_path / "store")
        first, second = Meeting(here(0), location), Meeting(here(1), location)
        first.arrive()
        second.arrive()
        return first, second

    def test_parts_come_whole_and_nothing_stays_behind(self, pair: tuple[Meeting, Meeting]) -> None:
        first, second = pair
        given = part_of(audit(graph(2)), here(1))
        assert second.hand_in(given)

        (got,) = first.collect(5.0).values()

        assert (got.rank, got.process, got.document) == (1, given.process, given.document)
        assert {name: table.num_rows for name, table in got.tables.items()} == {"ops": 14, "values": 17, "kernels": 14}
        first.close()
        assert not first.folder.exists()
        assert not first.folder.parent.exists()
        second.wait_until_closed(5.0)  # returns at once: the meeting is over
        assert not second.hand_in(given)
        assert not first.folder.exists()

    def test_a_rank_whose_process_ended_is_not_waited_for(self, pair: tuple[Meeting, Meeting]) -> None:
        first, second = pair
        gone = subprocess.Popen([sys.executable, "-c", ""])
        process = Process(host=Process.this().host, pid=gone.pid, began=1)
        gone.wait()
        (second.folder / "rank-1.json").write_bytes(msgspec.json.encode(process))
        began_s = time.monotonic()
        assert first.collect(60.0) == {}
        assert time.monotonic() - began_s < 10
        assert first.missing == {
            1: f"its process ({gone.pid} on {process.host}) ended before it handed in its part"
        }  # fmt: skip

    def test_another_process_of_the_same_number_is_not_it(self) -> None:
        mine = Process.this()
        assert not mine.ended()
        assert Process(host=mine.host, pid=mine.pid, began=mine.began + 1).ended() == bool(mine.began)
        assert not Process(host="another.example", pid=2**30).ended()  # nobody knows

    def test_a_rank_that_is_never_seen_is_named_soon(self, tmp_path: Path) -> None:
        meeting = Meeting(here(0, 3), locate(tmp_path / "store"))
        meeting.arrive()
        assert meeting.collect(60.0) == {}
        assert set(meeting.missing) == {1, 2}
        assert meeting.missing[1].startswith(
            f"nothing of it was seen in {meeting.folder.parent} within 0 s: it runs on"
        )

    def test_a_rank_that_works_too_long_is_left_out(self, pair: tuple[Meeting, Meeting]) -> None:
        assert pair[0].collect(0.2) == {}
        assert pair[0].missing == {1: "it did not hand in its part within 0 s"}

    def test_who_is_asked_to_end_waits_a_moment_only(
        self, pair: tuple[Meeting, Meeting], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(meetings, "_LAST_S", 0.1)
        told: list[str] = []
        assert pair[0].collect(600.0, on_progress=told.append, asked_to_end=lambda: True) == {}
        assert told[0] == "waiting for rank 1"

    def test_what_a_killed_job_left_is_neither_read_nor_waited_for(self, tmp_path: Path) -> None:
        location = locate(tmp_path / "store")
        before = [Meeting(here(rank), location) for rank in (0, 1)]
        for meeting in before:
            meeting.arrive()
        before[1].hand_in(Part(rank=1, process=Process.this(), failure="boom", exit_code=1, at_s=1.0))
        assert before[0].failed() == "rank 1: boom"

        again = Meeting(here(0), location)
        again.arrive()

        assert again.failed() == ""
        assert again.collect(0.2) == {}  # and rank 1, alive by its process, is waited for as long as that

    def test_a_live_job_of_the_same_name_is_refused(self, pair: tuple[Meeting, Meeting], tmp_path: Path) -> None:
        with sleeping() as other:
            for rank, name in ((0, "job.json"), (1, "rank-1.json")):
                process: Any = other if rank else meetings.Job(mark="other", process=other)
                (pair[0].folder / name).write_bytes(msgspec.json.encode(process))
                with pytest.raises(AuditError, match=rf"process {other.pid} is rank {rank} of a job with this one's"):
                    Meeting(here(rank), locate(tmp_path / "store")).arrive()
            # What took our place all the same, from a machine of which nothing is known, keeps it
            assert pair[0].collect(60.0) == {}
            assert pair[0].missing[1].startswith("another job of the same name took its place in ")
            pair[0].close()
            assert (pair[0].folder / "job.json").exists()
        Meeting(here(0), locate(tmp_path / "store")).arrive()  # over, it hinders nobody

    def test_failures_of_a_job_that_is_over_end_no_script(self, pair: tuple[Meeting, Meeting], tmp_path: Path) -> None:
        pair[1].hand_in(Part(rank=1, process=Process.this(), failure="boom", exit_code=1, at_s=1.0))
        kill_leader(pair[0])
        late = Meeting(here(1), locate(tmp_path / "store"))  # of the next job, whose rank 0 is not there yet
        late.arrive()
        assert late.failed() == ""

    def test_who_waits_for_a_killed_rank_0_leaves_at_once_and_the_last_one_clears_up(self, tmp_path: Path) -> None:
        location = locate(tmp_path / "store")
        first, second, third = (Meeting(here(rank, 3), location) for rank in range(3))
        for meeting in (first, second, third):
            meeting.arrive()
        failed = Part(rank=2, process=Process.this(), failure="boom", exit_code=1, at_s=1.0)
        assert third.hand_in(failed)
        kill_leader(first)
        began_s = time.monotonic()
        assert not second.hand_in(Part(rank=1, process=Process.this()), wait_s=60.0)
        assert second.folder.exists()  # rank 2 is still there
        third.wait_until_closed(60.0)
        assert time.monotonic() - began_s < 10
        assert not second.folder.parent.exists()

    def test_rank_0_is_waited_for_where_an_older_one_was_killed(self, pair: tuple[Meeting, Meeting]) -> None:
        first, second = pair
        kill_leader(first)
        second.arrive()
        threading.Timer(0.2, first.arrive).start()
        assert second.hand_in(Part(rank=1, process=Process.this()), wait_s=20.0)
        assert list(first.collect(5.0)) == [1]

    def test_the_folder_of_a_job_whose_processes_all_ended_goes_with_the_next_job(self, tmp_path: Path) -> None:
        location = locate(tmp_path / "store")
        old = Meeting(here(0, job="old"), location)
        old.arrive()
        kill_leader(old)
        (old.folder / "rank-1.json").write_bytes(msgspec.json.encode(Process.this()))
        Meeting(here(0, job="new"), location).arrive()
        assert old.folder.exists()
        (old.folder / "rank-1.json").write_bytes((old.folder / "job.json").read_bytes())
        Meeting(here(0, job="newer"), location).arrive()
        assert not old.folder.exists()

    def test_a_folder_that_nobody_closed_goes_after_a_day(self, tmp_path: Path) -> None:
        location = locate(tmp_path / "store")
        old = Meeting(here(0, job="old"), location)
        old.arrive()
        os.utime(old.folder, (1.0, 1.0))
        Meeting(here(0, job="new"), location).arrive()
        assert not old.folder.exists()

    def test_without_rank_0_a_part_finds_nobody_and_the_folder_goes(self, tmp_path: Path) -> None:
        alone = Meeting(here(1), locate(tmp_path / "store"))
        alone.arrive()
        assert not alone.hand_in(Part(rank=1, process=Process.this()), wait_s=0.1)
        assert not alone.folder.exists()

    def test_rank_0_can_look_without_waiting(self, pair: tuple[Meeting, Meeting]) -> None:
        first, second = pair
        began_s = time.monotonic()
        assert not first.all_there()
        assert time.monotonic() - began_s < 0.3
        time.sleep(0.5)
        assert not first.all_there()  # it was seen, and may take its time
        second.hand_in(part_of(audit(graph(2)), here(1)))
        time.sleep(0.02)
        assert first.all_there()
        assert list(first.collect(0.0)) == [1]

    def test_waiting_begins_when_somebody_waits(self, pair: tuple[Meeting, Meeting]) -> None:
        first, _ = pair
        assert not first.all_there()
        time.sleep(0.3)
        began_s = time.monotonic()
        assert first.collect(0.2) == {}
        assert time.monotonic() - began_s > 0.15
        assert first.missing[1].startswith("it did not hand in its part")

    def test_a_rank_that_never_arrives_is_given_up_by_looking(self, tmp_path: Path) -> None:
        meeting = Meeting(here(0), locate(tmp_path / "store"))
        meeting.arrive()
        assert not meeting.all_there()
        time.sleep(0.4)
        assert meeting.all_there()
        assert set(meeting.missing) == {1}

    def test_a_damaged_part_is_told(self, pair: tuple[Meeting, Meeting]) -> None:
        (pair[1].folder / "part-1.json").write_text("{")
        assert pair[0].collect(5.0) == {}
        assert "the part of rank 1 can't be read" in pair[0].missing[1]

    def test_a_place_that_is_not_writable_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "audits.ranks").write_text("a file")
        with pytest.raises(AuditError, match=r"the ranks of a job meet beside the store: name another place with --db"):
            Meeting(here(0), locate(tmp_path / "audits.db")).arrive()


class TestJoining:
    def test_alike_ranks(self) -> None:
        made = whole(graph(2), graph(2)).document
        assert (made.run.world_size, made.run.rank, made.run.notes) == (2, 0, [])
        assert [(rank.rank, rank.status, rank.totals.kernels, rank.differs) for rank in made.ranks] == [
            (0, "recorded", 14, []), (1, "recorded", 14, []),
        ]  # fmt: skip
        assert words.sentences(made)[0] == "All 2 have the same kernels and findings."

    def test_ranks_that_differ_say_in_what(self) -> None:
        made = whole(graph(1), graph(1, fused=1), graph(0, fused=1)).document
        assert made.ranks[1].differs[:2] == ["9 kernels, not 7", "1 already fused kernels, not 0"]
        assert "lacks 1 finding of rank 0" in made.ranks[2].differs
        told = words.sentences(made)
        assert any(s.startswith("Only on ranks 0 and 1: FUS201 unfused-rms-norm: 1 site, 6 kernels") for s in told)

    def test_the_slowest_rank_is_named_where_it_is_slower(self) -> None:
        slow = graph(1)
        slow.step_us = 2000.0
        (sentence,) = [s for s in words.sentences(whole(graph(1), slow, graph(1)).document) if "slowest" in s]
        assert sentence == (
            "A step takes 1.00 ms to 2.00 ms, 1.00 ms in the median: rank 1 is slowest, ×2.00 the median."
        )
        assert any("no rank is slower" in s for s in words.sentences(whole(graph(1), graph(1)).document))

    def test_a_missing_and_a_failed_rank_are_noted(self) -> None:
        first, failed = audit(graph(1)), Part(rank=1, process=Process.this(), exit_code=3, failure="ValueError: boom")
        made = join(first, part_of(first, here(0, 3)), {1: failed}, {2: "it did not come"}, 3)
        assert made is not None
        assert made.document.run.notes == [
            "Rank 1 of 3 failed: ValueError: boom; no step of it was recorded.",
            "Rank 2 of 3 is missing: it did not come.",
        ]
        assert made.document.run.exit_code == 3
        assert [row[-3] for row in words.rows(made.document)] == ["–", "failed", "missing"]
        assert words.sentences(made.document)[0] == "Steps were recorded of 1 of 3 ranks."

    def test_the_first_rank_that_recorded_something_leads(self) -> None:
        nothing = Part(rank=0, process=Process.this(), exit_code=2, failure="no model was called")
        other = part_of(audit(graph(2)), here(1))
        made = join(None, nothing, {1: other}, {}, 2)
        assert made is not None
        assert (made.document.run.rank, made.kernels, len(made.graph.ops)) == (1, 14, 14)
        assert join(None, nothing, {}, {}, 2) is None

    @pytest.mark.parametrize("fmt", ["text", "markdown", "html", "json"])
    def test_every_report_has_a_row_for_each_rank(self, fmt: str) -> None:
        made = whole(graph(1), graph(2))
        made.document.ranks[1].host = "evil\x1b[31m<script>|`"
        shown = render(made.document, made.graph, fmt)  # type: ignore[arg-type]
        assert ("2 ranks, details of rank 0" in shown) == (fmt != "json")
        assert "\x1b" not in shown
        assert "evil" in shown
        assert fmt != "html" or "<script>" not in shown  # in Markdown inside a code span, in a terminal harmless
        assert "Rank 1 differs from rank 0: 14 kernels, not 7" in " ".join(shown.split()) or fmt == "json"

    def test_a_job_of_many_ranks_shows_those_that_tell_something(self) -> None:
        document = whole(graph(1), graph(2)).document
        alike, other = document.ranks
        document.ranks = [msgspec.structs.replace(alike, rank=i) for i in range(99)]
        document.ranks.append(msgspec.structs.replace(other, rank=99))
        assert [row[0] for row in words.rows(document)][-1] == "99"
        assert len(words.rows(document)) == words.MOST
        assert words.sentences(document)[-1].startswith("The table shows 64 of 100 ranks")


class TestJoinRanks:
    def test_a_process_by_itself_gets_its_audit_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RANK", raising=False)
        one = audit(graph(1))
        assert join_ranks(one) is one

    def test_rank_0_gets_the_audit_of_all(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name, value in (TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"}).items():
            monkeypatch.setenv(name, value)
        location = locate(tmp_path / "store")
        got: list[Audit | None] = []

        def first() -> None:
            got.append(join_ranks(audit(graph(1)), wait_s=20.0, db=tmp_path / "store"))

        thread = threading.Thread(target=first)
        thread.start()
        folder = location.artefacts.replace(".artefacts", ".ranks")
        while not list(Path(folder).glob("*/job.json")):
            time.sleep(0.01)
        (place,) = Path(folder).iterdir()
        name, _, number = place.name.rpartition("-")
        other = Meeting(here(1, job=name), location, int(number))
        other.arrive()
        assert other.hand_in(part_of(audit(graph(2)), here(1)))
        thread.join(20)

        (made,) = got
        assert made is not None
        assert [rank.totals.kernels for rank in made.document.ranks] == [7, 14]
        assert sorted(made.tables()) == [
            "kernels", "ops", "rank1_kernels", "rank1_ops", "rank1_values", "ranks", "values"
        ]  # fmt: skip
        assert not place.exists()


class TestStored:
    def test_another_rank_is_there_whole(self, store: Store) -> None:
        run = save(store, whole(graph(1), graph(2)))
        assert run.tables["ops"].num_rows == 7
        document, tables = rank_of(run, 1)
        assert (document.run.id, document.run.rank, document.totals.kernels) == (run.id, 1, 14)
        assert tables()["ops"].num_rows == 14
        assert rank_of(run, 0)[0] is run.document

    def test_a_rank_that_is_not_there_is_one_sentence(self, store: Store) -> None:
        run = save(store, whole(graph(1), None, missing={1: "it did not come"}))
        with pytest.raises(AuditError, match=f"run {run.id} has no rank 2: it has ranks 0 to 1"):
            rank_of(run, 2)
        with pytest.raises(AuditError, match=f"run {run.id} holds nothing of rank 1: it did not come"):
            rank_of(run, 1)
        one = audit(graph(1))
        alone = store.load(store.save(one.document, one.tables()))
        with pytest.raises(AuditError, match="has no rank 1: it is of one process"):
            rank_of(alone, 1)

    def test_a_bundle_carries_all_ranks(self, store: Store, tmp_path: Path) -> None:
        run = save(store, whole(graph(1), graph(2)))
        with (tmp_path / "bundle").open("wb") as file:
            write_bundle(store, run.id, file)
        read = read_bundle(tmp_path / "bundle")
        assert set(read.tables) == set(run.table_names)
        assert read.document == run.document


class TestGate:
    def judged(self, store: Store, made: Audit, budget: str, baseline: Snapshot | None = None) -> dict[str, str]:
        run = save(store, made)
        if budget:
            file = store.location.file.parent / "budget.yaml"  # type: ignore[union-attr]
            file.write_text(budget)
            demands = file_demands(file, [(rule.id, rule.name) for rule in rules()])
        else:
            demands = Demands()
        against = Baseline(baseline, "baseline b.json") if baseline else None
        found = self.gate = judge(run, demands, against, rules(), store=store, root=Path("/repo"))
        assert not any(step.startswith("fusion-audit fix") for step in found.next)
        return {check.id: f"{check.status}: {check.message}" for check in found.checks}

    def test_the_worst_rank_counts_and_is_named(self, store: Store) -> None:
        found = self.judged(
            store, whole(graph(1), graph(3), graph(2)),
            "max_kernels: 20\nbudgets: [{rule: FUS201, max_unfused_kernels: 18},"
            " {modules: 'layers.2.*', max_unfused_kernels: 5}]",
        )  # fmt: skip
        assert found == {
            "max_kernels": "failed: on rank 1: 21, 1 more than the 20 allowed",
            "budgets[1].max_unfused_kernels": "passed: on rank 1: 18 of at most 18",
            "budgets[2].max_unfused_kernels": "failed: on rank 1: 6, 1 more than the 5 allowed",
        }

    def test_alike_ranks_are_not_named(self, store: Store) -> None:
        assert self.judged(store, whole(graph(1), graph(1)), "max_kernels: 7") == {
            "max_kernels": "passed: 7 of at most 7"
        }

    def test_a_row_of_the_own_rank_hides_nothing(self, store: Store) -> None:
        made = whole(graph(3), graph(1))
        made.others[0] = (audit(graph(0)).document, {})
        assert self.judged(store, made, "max_kernels: 20")["max_kernels"].startswith("failed: on rank 0: 21")

    def test_a_required_kernel_has_to_be_live_on_one_rank(self, store: Store) -> None:
        budget = "require: [{replacement: rms_norm}]"
        assert self.judged(store, whole(graph(1), graph(0, fused=1)), budget) == {
            "require[1]": "passed: on rank 1: 1 kernel of it ran"
        }
        assert self.judged(store, whole(graph(1), graph(1)), budget)["require[1]"].startswith("failed: no kernel")

    def test_each_rank_is_compared_with_its_own(self, store: Store) -> None:
        # The largest rank stays as it was: only rank by rank the growth of the other one is seen
        before = snapshot_of(whole(graph(1), graph(4)).document)
        found = self.judged(store, whole(graph(2), graph(4)), "", before)
        assert found["max_increase.kernels"] == (
            "failed: on rank 0: grew from 7 to 14: 7 more (+100 %), no increase is allowed"
        )

    def test_a_baseline_file_keeps_the_ranks_that_differ(self) -> None:
        snapshot = snapshot_of(whole(graph(1), graph(4), graph(4), graph(1)).document)
        assert [part.ranks for part in snapshot.ranks] == [[1, 2]]
        read = msgspec.json.decode(written(snapshot, Path("/repo")), type=Snapshot)
        of = [read.of_rank(rank) for rank in range(4)]
        assert [part and (part.run.rank, part.figures.kernels) for part in of] == [(0, 7), (1, 28), (2, 28), (3, 7)]
        assert of[1] is not None
        assert of[1].findings[0].source is not None
        assert of[1].findings[0].source.file == "model.py"

    def test_the_file_says_of_which_rank_it_is_and_which_are_lost(self) -> None:
        made = whole(graph(1), None, graph(4), missing={1: "it did not come"})
        read = msgspec.json.decode(written(snapshot_of(made.document), Path("/repo")), type=Snapshot)
        assert (read.run.rank, read.run.unrecorded) == (0, [1])
        assert read.of_rank(1) is None
        assert read.of_rank(2) is not None

    def test_a_rank_that_the_baseline_lost_is_held_to_absolute_limits_only(self, store: Store) -> None:
        lost = snapshot_of(whole(graph(1), None, missing={1: "it did not come"}).document)
        found = self.judged(store, whole(graph(1), graph(4)), "max_kernels: 27\nmax_increase: {kernels: 0}", lost)
        assert found == {
            "max_kernels": "failed: on rank 1: 28, 1 more than the 27 allowed",
            "max_increase.kernels": "passed: on rank 0: stayed 7",
        }
        (remark,) = (each for each in self.gate.remarks if "limits on increases" in each)
        assert remark.startswith("The baseline recorded nothing of rank 1: limits on increases are not held there")

    def test_a_rank_that_the_run_lost_warns(self, store: Store) -> None:
        kept = snapshot_of(whole(graph(1), graph(4)).document)
        found = self.judged(store, whole(graph(1), None, missing={1: "it did not come"}), "", kept)
        assert found["ranks"] == (
            "warned: nothing was recorded of rank 1, which the baseline holds: no limit is held there"
        )
        both = whole(graph(1), None, missing={1: "it did not come"})
        assert "ranks" not in self.judged(store, both, "", snapshot_of(both.document))

    def test_the_rank_that_is_shown_is_compared_with_its_own(self) -> None:
        before, after = (snapshot_of(whole(graph(n), graph(4)).document) for n in (1, 2))
        second = msgspec.structs.replace(
            after, figures=after.ranks[0].figures, run=msgspec.structs.replace(after.run, rank=1, unrecorded=[0])
        )
        kernels = {m.key: (m.before, m.after) for m in compare(before, second).measures}["kernels"]
        assert kernels == (28, 28)
        turned = compare(second, after)
        assert any("Nothing was recorded of rank 0 before" in remark for remark in turned.remarks)

    def test_a_finding_of_a_rank_that_lost_its_place_is_still_known(self) -> None:
        """Ranks in short keep what a finding is, too."""
        (part,) = snapshot_of(whole(graph(1), graph(4)).document).ranks
        assert [found.kind for found in part.findings] == [f.kind for f in snapshot_of(audited(graph(4))).findings]

    def test_the_file_of_a_single_process_says_nothing_of_ranks(self) -> None:
        assert "ranks" not in written(snapshot_of(audited(graph(1))), Path("/repo"))
        assert "world_size" not in written(snapshot_of(audited(graph(1))), Path("/repo"))

    def test_what_is_missing_is_said(self, store: Store) -> None:
        run = save(store, whole(graph(1), None, missing={1: "it did not come"}))
        file = store.location.file.parent / "b.yaml"  # type: ignore[union-attr]
        file.write_text("max_kernels: 7")
        found = judge(run, file_demands(file, []), None, rules(), store=store, root=Path("/repo"))
        assert found.passed
        assert "Nothing was recorded of rank 1, of which the limits therefore say nothing." in found.remarks


class TestComparable:
    def compare(self, before: Document, after: Document) -> None:
        check_comparable(head_of(before), head_of(after), "baseline b.json")

    def test_alike_ranks_stand_for_each_other(self) -> None:
        self.compare(whole(graph(1), graph(1)).document, whole(graph(1), graph(1), graph(1)).document)

    def test_one_process_is_no_rank(self) -> None:
        with pytest.raises(AuditError, match=r"is of one process and the run of 2 ranks: .* record the run in one pro"):
            self.compare(audited(graph(1)), whole(graph(1), graph(1)).document)
        with pytest.raises(AuditError, match="is of 2 ranks and the run of one process"):
            self.compare(whole(graph(1), graph(1)).document, audited(graph(1)))

    def test_stages_compare_with_as_many(self) -> None:
        two, three = whole(graph(1), graph(2)).document, whole(graph(1), graph(1), graph(1)).document
        self.compare(two, two)
        with pytest.raises(AuditError, match="of 2 ranks and the run of 3, and not all ranks of one run the same"):
            self.compare(two, three)
