"""The store under several real processes, and under `kill -9`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auditor.store import Store

WRITER = """
import sys
import pyarrow
from auditor.document import Document, Run, Totals
from auditor.store import Store

place, name, count, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
tables = {"ops": pyarrow.table({"x": list(range(rows))}), "values": pyarrow.table({"y": [0.5] * rows})}
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    with Store.open(place) as store:
        print(store.save(Document(run=Run(name=f"{name}-{i}"), totals=Totals(kernels=rows)), tables), flush=True)
"""


def writer(place: Path, name: str, count: int, rows: int = 50) -> subprocess.Popen[str]:
    """A process that has imported everything and waits for a line before it writes."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(place), name, str(count), str(rows)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def assert_whole(place: Path) -> list[str]:
    """Every listed run can be read to its last byte. Returns the ids."""
    with Store.open(place) as store:
        runs = store.list_runs()
        for run in runs:
            loaded = store.load(run.id)
            assert loaded.document.run.name == run.name
            assert {name: t.num_rows for name, t in loaded.tables.items()} == {
                "ops": run.kernels,
                "values": run.kernels,
            }
    return [run.id for run in runs]


def test_processes_that_open_a_new_store_at_once_all_get_their_runs_in(tmp_path: Path) -> None:
    # GIVEN four processes and no store yet
    writers = [writer(tmp_path / "store", f"w{i}", count=6) for i in range(4)]

    # WHEN they all start at the same moment
    for process in writers:
        start(process)
    results = [process.communicate(timeout=120) for process in writers]

    # THEN nobody failed and every run is there, once
    assert [(process.returncode, err) for process, (_, err) in zip(writers, results, strict=True)] == [(0, "")] * 4
    printed = [line for out, _ in results for line in out.split()]
    assert len(printed) == 24
    assert sorted(assert_whole(tmp_path / "store")) == sorted(printed)


@pytest.mark.slow
def test_a_killed_writer_leaves_earlier_runs_readable_and_lists_no_half_run(tmp_path: Path) -> None:
    place, dice = tmp_path / "store", random.Random(7)
    with Store.open(place):
        pass
    acknowledged: set[str] = set()
    for turn in range(100):
        if turn >= 10 and acknowledged:  # a busy machine may need more turns until one is killed after its first save
            break
        # GIVEN a process that saves without end
        process = writer(place, f"w{turn}", count=1000, rows=20_000)
        start(process)

        # WHEN it is killed at a random moment
        time.sleep(dice.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        assert err == ""
        acknowledged |= {line for line in out.split("\n")[:-1] if line}

        # THEN every listed run is whole, and every run that was reported as saved is listed
        assert acknowledged <= set(assert_whole(place))
    assert acknowledged  # otherwise nothing was tried

    # AND what the killed ones left goes with time, and only that
    root = place / "audits.artefacts"
    past = time.time() - 86_400
    for folder in root.iterdir():
        os.utime(folder, (past, past))
    listed = assert_whole(place)
    assert sorted(os.listdir(root)) == sorted(listed)


KILLED_AT = """
import os, sys
import pyarrow
from auditor.document import Document, Run
from auditor.store import Store, artefacts, store as module

where = sys.argv[2]
die = lambda *_: os.kill(os.getpid(), 9)
if where == "before the first file":
    artefacts.Artefacts._write_table = die
elif where == "before the rename":
    artefacts.Artefacts._publish = die
elif where == "before the row":
    module.run_row = die
elif where == "before the commit":
    from sqlalchemy import event
    original = Store.open(sys.argv[1])
    event.listen(original._engine, "commit", die)
    original.save(Document(run=Run(name="half")), {"ops": pyarrow.table({"x": [1]})})
with Store.open(sys.argv[1]) as opened:
    opened.save(Document(run=Run(name="half")), {"ops": pyarrow.table({"x": [1]})})
"""


@pytest.mark.parametrize(
    "moment", ["before the first file", "before the rename", "before the row", "before the commit"]
)
def test_killed_at_each_step_of_a_save(tmp_path: Path, moment: str) -> None:
    # GIVEN a store with one run
    place = tmp_path / "store"
    first = writer(place, "whole", count=1)
    first.communicate("\n", timeout=60)

    # WHEN a writer dies at that step
    died = subprocess.run([sys.executable, "-c", KILLED_AT, str(place), moment], capture_output=True, text=True)

    # THEN the store lists the first run alone, and takes the next one
    assert died.returncode == -signal.SIGKILL, died.stderr
    with Store.open(place) as store:
        assert [run.name for run in store.list_runs()] == ["whole-0"]
    writer(place, "next", count=1).communicate("\n", timeout=60)
    with Store.open(place) as store:
        assert [run.name for run in store.list_runs()] == ["next-0", "whole-0"]


FULL_DISK = """
import resource, signal, sys
import pyarrow
from auditor.document import Document, Run
from auditor.errors import AuditError
from auditor.store import Store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with Store.open(sys.argv[1]) as store:
        store.save(Document(run=Run(name="big", notes=["n" * 2_000_000])), {"ops": pyarrow.table({"x": [1]})})
except AuditError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
@pytest.mark.parametrize("limit", [10, 20_000, 200_000])
def test_a_disk_without_space_is_one_sentence_and_keeps_what_was_there(tmp_path: Path, limit: int) -> None:
    place = tmp_path / "store"
    writer(place, "whole", count=1).communicate("\n", timeout=60)

    full = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(place), str(limit)], capture_output=True, text=True, timeout=60
    )

    assert full.stderr == ""
    assert full.stdout.startswith(str(tmp_path))
    assert full.stdout.count("\n") == 1
    assert "--db" in full.stdout
    with Store.open(place) as store:
        assert [run.name for run in store.list_runs()] == ["whole-0"]
        assert len(os.listdir(store.location.artefacts)) == 1


READER = """
import sys
from auditor.store import Store

with Store.open(sys.argv[1], create=False) as store:
    tables = store.load("latest").tables
sys.exit(len(tables))
"""


def test_a_reader_that_ends_at_once_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    # GIVEN a stored run
    place = tmp_path / "store"
    writer(place, "whole", count=1).communicate("\n", timeout=60)

    # WHEN its tables are read just before the interpreter ends, several times
    done = [
        subprocess.run([sys.executable, "-c", READER, str(place)], capture_output=True, text=True) for _ in range(8)
    ]

    # THEN no thread of a library is left that would abort the process (two of three runs, where there was one)
    assert [(process.returncode, process.stderr) for process in done] == [(2, "")] * 8
