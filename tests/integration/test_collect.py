"""Whole scripts, each in a process of its own, recorded from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from auditor.collect.contexts import dispatched_nodes
from auditor.collect.execution_trace import load_execution_trace
from auditor.collect.launch import _end, record_script
from auditor.collect.recording import FILE, GRAPH_ET, GRAPH_KINETO, Recording, load, timing_file
from auditor.errors import AuditError, ScriptFailed

SCRIPTS = Path(__file__).parent / "scripts"


def record(tmp_path: Path, script: str, *args: str, steps: int = 1, stop: bool = False) -> Recording:
    return record_script(SCRIPTS / script, list(args), steps=steps, warmup=1, folder=tmp_path / "rec", stop=stop)


def write(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(source)
    return path


def check_complete(tmp_path: Path, recording: Recording) -> None:
    folder = tmp_path / "rec"
    files = {FILE, GRAPH_KINETO, GRAPH_ET, *(timing_file(n) for n in range(len(recording.timing_us)))}
    assert {path.name for path in folder.iterdir()} == files
    for name in files:
        json.loads((folder / name).read_text())
    assert load(folder) == recording


@contextlib.contextmanager
def stdin_of(text: str):
    """What a child process reads from its stdin."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reader)


def test_a_script_sees_what_python_would_show_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a script with forked loader workers, a spawned pool and a fork that calls the model
    monkeypatch.chdir(tmp_path)
    script = SCRIPTS / "facts.py"

    # WHEN
    with stdin_of("typed\n"):
        recording = record(tmp_path, "facts.py", "--flag", "a b", "--", "-x", steps=2)

    # THEN
    out, err = capfd.readouterr()
    assert json.loads(out) == {
        "argv": [str(script), "--flag", "a b", "--", "-x"],
        "name": "__main__",
        "file": str(script),
        "path": str(SCRIPTS),
        "cwd": str(tmp_path),
        "main": True,
        "torch_before": False,
        "compiler": False,
        "seen": [0.0, 1.0, 2.0, 3.0] * 2,
        "doubled": [2, 4],
        "pickled": True,
        "child": 5,
        "stdin": "typed\n",
    }
    assert err == ""
    # and the processes that it made wrote nothing
    assert (recording.exit_code, recording.steps) == (0, 6)
    check_complete(tmp_path, recording)


@pytest.mark.parametrize(
    ("end", "code", "error", "said"),
    [
        ("raise", 1, "ZeroDivisionError: division by zero", "last words\nTraceback"),
        ("exit", 7, "", "last words\n"),
        ("exit-text", 1, "", "last words\nnothing left to do\n"),
        ("os-exit", 9, "", "last words\n"),
        ("fail-in-forward", 1, "ValueError: the model gave up", "Traceback"),
    ],
)
def test_a_script_that_fails_after_its_steps_is_still_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], end: str, code: int, error: str, said: str
) -> None:
    # WHEN
    recording = record(tmp_path, "loop.py", end)

    # THEN
    err = capfd.readouterr().err
    assert (recording.exit_code, recording.error) == (code, error)
    assert err.startswith(said)
    assert "auditor/collect" not in err
    assert len(recording.timing_us) == 1
    check_complete(tmp_path, recording)


def test_a_script_that_is_killed_after_its_steps(tmp_path: Path) -> None:
    recording = record(tmp_path, "loop.py", "kill")

    assert recording.exit_code == 128 + signal.SIGKILL
    assert "SIGKILL" in recording.error
    check_complete(tmp_path, recording)


def test_a_training_script_without_end_is_stopped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # GIVEN
    said: list[str] = []

    # WHEN
    recording = record_script(
        SCRIPTS / "forever.py", [], steps=2, warmup=2, folder=tmp_path / "rec", stop=True, on_progress=said.append
    )

    # THEN
    assert (recording.kind, recording.exit_code, recording.steps) == ("training", 0, 7)
    assert (len(recording.timing_us), len(recording.bare_us)) == (2, 2)
    check_complete(tmp_path, recording)
    assert capfd.readouterr().err == ""


def test_a_thread_that_outlives_the_script(tmp_path: Path) -> None:
    recording = record(tmp_path, "threaded.py")

    assert not recording.graph_is_first_step
    check_complete(tmp_path, recording)


def test_a_pool_that_nobody_shuts_down_ends_with_the_script(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import time, torch\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "model, pool = torch.nn.Linear(4, 4), ThreadPoolExecutor(2)\n"
        "pool.submit(print, 'started').result()\n"
        "for _ in range(5): model(torch.rand(2, 4))\n"
        f"pool.submit(lambda: (time.sleep(0.3), open({str(tmp_path / 'late')!r}, 'w')))\n",
    )
    recording = record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")

    check_complete(tmp_path, recording)
    assert (tmp_path / "late").exists()  # what was submitted is done first


def test_a_compiler_that_is_imported_after_torch_is_seen(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import torch\n"
        "net = torch.nn.Linear(4, 4)\n"
        "import torch._dynamo\n"
        "compiled = torch._dynamo.optimize('eager')(lambda x: net(x))\n"
        "with torch.no_grad():\n"
        "    for _ in range(4): compiled(torch.randn(2, 4))\n",
    )
    recording = record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")

    assert any("torch.compile" in note for note in recording.notes)
    check_complete(tmp_path, recording)


def test_a_daemon_thread_that_is_caught_in_a_recorded_step(tmp_path: Path) -> None:
    recording = record(tmp_path, "threaded.py", "stuck")

    assert (recording.exit_code, recording.steps, recording.error) == (0, 2, "")
    assert recording.has_graph


def test_a_script_with_its_own_profiler(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AuditError, match=r"profiled\.py:7: .*fusion-audit import") as caught:
        record(tmp_path, "profiled.py")

    assert caught.value.exit_code == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("source", "code", "sentence"),
    [
        ("raise SystemExit(3)", 3, "exit code 3"),
        ("open('/no/such/file')", 1, "FileNotFoundError: .*"),
        ("import torch\nraise MemoryError('cannot allocate')", 1, r"MemoryError: cannot allocate \(out of memory"),
        ("import no_such_module", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_script_that_fails_before_any_step(tmp_path: Path, source: str, code: int, sentence: str) -> None:
    script = write(tmp_path, source)

    with pytest.raises(ScriptFailed, match=f"script.py: the script failed .*: {sentence}") as caught:
        record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")

    assert caught.value.exit_code == code


@pytest.mark.parametrize("source", ["print('nothing')", "import torch\ntorch.randn(3).exp()"])
def test_a_script_without_a_model(tmp_path: Path, source: str) -> None:
    with pytest.raises(AuditError, match=r"without calling a torch\.nn\.Module; mark steps with auditor\.step\(\)"):
        record_script(write(tmp_path, source), [], steps=1, warmup=1, folder=tmp_path / "rec")


def test_a_script_that_is_killed_before_any_step(tmp_path: Path) -> None:
    script = write(tmp_path, "import os\nos.kill(os.getpid(), 9)")

    with pytest.raises(AuditError, match="killed by SIGKILL") as caught:
        record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")

    assert not isinstance(caught.value, ScriptFailed)


def test_a_recording_of_an_earlier_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    # GIVEN
    folder = tmp_path / "rec"
    folder.mkdir()
    Recording(has_graph=True, timing_us=[1.0]).save(folder)
    (folder / timing_file(0)).write_text("{}")

    # WHEN
    with pytest.raises(AuditError, match="without calling"):
        record_script(write(tmp_path, "pass"), [], steps=1, warmup=1, folder=folder)

    # THEN
    assert not (folder / timing_file(0)).exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param("def f(:\n  pass", r"script\.py:1: not a Python script: invalid syntax", id="syntax"),
        pytest.param(b"\x7fELF\x00\x01", "not a Python script", id="binary"),
        pytest.param(b"x = '\xff\xfe'", "not a Python script", id="encoding"),
        pytest.param("#!/bin/sh\nif true; then\n  ls\nfi\n", r"script\.py:2: not a Python script", id="shell"),
    ],
)
def test_a_file_that_is_no_script(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    script = tmp_path / "script.py"
    script.write_bytes(content.encode() if isinstance(content, str) else content)

    with pytest.raises(AuditError, match=sentence):
        record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"missing\.py: cannot read the script: No such file"):
        record_script(tmp_path / "missing.py", [], steps=1, warmup=1, folder=tmp_path / "rec")


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="is a folder"):
        record_script(tmp_path, [], steps=1, warmup=1, folder=tmp_path / "rec")


@pytest.mark.parametrize(("steps", "warmup"), [(0, 1), (1, -1)])
def test_senseless_numbers(tmp_path: Path, steps: int, warmup: int) -> None:
    with pytest.raises(AuditError, match=r"--(steps|warmup)"):
        record_script(SCRIPTS / "loop.py", [], steps=steps, warmup=warmup, folder=tmp_path / "rec")


CALLS = """\
import sys
import torch
from torch import nn
class Net(nn.Linear):
    pass
model = Net(4, 4)
with torch.no_grad():
    for _ in range(4):
        model(torch.randn(2, 4))
"""
"""A script that can be recorded; tests append its end."""


def python_stderr(tmp_path: Path, end: str) -> tuple[int, str]:
    """Exit code and stderr of a script with this end without us; for the calls stand empty lines."""
    script = write(tmp_path, "import sys\n" + "\n" * (CALLS.count("\n") - 1) + end)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("try:\n    raise ValueError('x')\nexcept ValueError as e:\n    raise e from e", id="own cause"),
        pytest.param("a, b = ValueError('a'), KeyError('b')\na.__cause__, b.__cause__ = b, a\nraise a", id="cycle"),
        pytest.param("raise ExceptionGroup('g', [ValueError('x')])", id="group"),
        pytest.param("def hook(*_):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0", id="failing hook"),
        pytest.param("sys.excepthook = lambda *_: sys.exit(5)\n1 / 0", id="hook that exits"),
        pytest.param("sys.excepthook = None\n1 / 0", id="hook that is none"),
        pytest.param("del sys.excepthook\n1 / 0", id="no hook"),
    ],
)
def test_an_uncaught_exception_is_shown_as_python_shows_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], end: str
) -> None:
    # GIVEN
    code, err = python_stderr(tmp_path, end)

    # WHEN
    recording = record_script(write(tmp_path, CALLS + end), [], steps=1, warmup=1, folder=tmp_path / "rec")

    # THEN
    assert capfd.readouterr().err == err
    assert recording.exit_code == code != 0
    check_complete(tmp_path, recording)


def places(folder: Path) -> set[tuple[str, str, str, str]]:
    """Module class, path, function and file name of the recorded ops."""
    found = set()
    for _, context in dispatched_nodes(load_execution_trace(folder / GRAPH_ET)):
        if context.source is not None:
            file = os.path.basename(context.source.file)
            found.add((context.module_class, context.module, context.source.function, file))
    return found


ODD = ['A"B', "A\\B", "A\nB", "A|B", "A%41\x01é"]


@pytest.mark.parametrize("odd", ODD)
def test_names_that_json_would_have_to_escape(tmp_path: Path, odd: str) -> None:
    # GIVEN the name as class, module, function and file
    script = tmp_path / f"{odd.replace(chr(10), 'q')}.py"
    script.write_text(
        "import torch\nfrom torch import nn\n"
        f"ODD = {odd!r}\n"
        "def forward(self, x):\n    return x * 2\n"
        "forward.__code__ = forward.__code__.replace(co_name=ODD)\n"
        "Inner = type(ODD, (nn.Module,), {'forward': forward})\n"
        "model = nn.Sequential()\nmodel.add_module(ODD, Inner())\n"
        "for _ in range(3):\n    model(torch.randn(2, 4))\n"
    )

    # WHEN
    recording = record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")

    # THEN
    assert places(tmp_path / "rec") >= {(odd, odd, odd, script.name)}
    check_complete(tmp_path, recording)


def test_a_step_whose_files_are_unreadable_is_not_a_script_without_a_model(tmp_path: Path) -> None:
    # GIVEN a name that the profiler writes as it is
    script = write(tmp_path, CALLS.replace("    model", "    with torch.profiler.record_function('a\"b'): model"))

    with pytest.raises(AuditError, match=r"steps ran, but none was recorded. .* files of step .* are unreadable"):
        record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")


def test_bytes_that_are_no_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # GIVEN a script's name, an argument and an error that UTF-8 cannot hold
    script = tmp_path / os.fsdecode(b"a\xffb.py")
    script.write_text(CALLS + "print(ascii(sys.argv))\nraise ValueError('\\ud800')")
    argv = [str(script), "\udcff"]

    # WHEN
    recording = record_script(script, argv[1:], steps=1, warmup=1, folder=tmp_path / "rec")

    # THEN
    assert capfd.readouterr().out == ascii(argv) + "\n"
    kept = load(tmp_path / "rec")
    assert kept.script == [f"{tmp_path}/a\\udcffb.py", "\\udcff"]
    assert (kept.exit_code, kept.error) == (1, "ValueError: \\ud800")
    assert recording.has_graph
    assert {file for _, _, _, file in places(tmp_path / "rec")} == {"a\\udcffb.py"}


def test_a_script_that_is_nested_too_deep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = write(tmp_path, "x=" + "-" * 200_000 + "1")

    with pytest.raises(ScriptFailed, match=r"before a step was recorded: (MemoryError|RecursionError)[^(]*$"):
        record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")

    assert "auditor" not in capfd.readouterr().err


def test_argv_as_typed_and_annotations_of_main(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    write(tmp_path, "import sys\nprint(sys.argv, __annotations__)\nx: int = 1\nprint(__annotations__)")
    monkeypatch.chdir(tmp_path)

    # WHEN
    with pytest.raises(AuditError, match="without calling"):
        record_script("./script.py", ["a"], steps=1, warmup=1, folder=tmp_path / "rec")

    # THEN
    assert capfd.readouterr().out == "['./script.py', 'a'] {}\n{'x': <class 'int'>}\n"


STOPPABLE = """\
import os, signal, sys, time
def tell(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, tell)
signal.signal(signal.SIGHUP, tell)
print(os.getpid(), flush=True)
time.sleep(100)
"""

PARENT = """\
import sys
from pathlib import Path
from auditor.collect.launch import _end, record_script
record_script(Path(sys.argv[1]), [], steps=1, warmup=1, folder=Path(sys.argv[2]))
"""


def gone(pid: int) -> bool:
    """Whether the process ends within some seconds; one that nobody waits for counts as ended."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_an_end_waits_for_no_lock_that_a_signal_left_locked() -> None:
    """What raises between ``Popen.wait`` taking its lock and using it leaves that locked; here it is taken by hand."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    process._waitpid_lock.acquire()
    process.terminate()

    _end(process)

    assert process.returncode == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and Linux's death signal")
@pytest.mark.parametrize(
    ("sent", "code", "told"), [("SIGTERM", 143, "SIGTERM"), ("SIGHUP", 129, "SIGHUP"), ("SIGKILL", -9, "SIGTERM")]
)
def test_the_script_ends_with_its_parent(tmp_path: Path, sent: str, code: int, told: str) -> None:
    # GIVEN a running script
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, write(tmp_path, STOPPABLE), tmp_path / "rec"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(scratch)},
    )  # fmt: skip
    assert parent.stdout is not None
    with parent:
        try:
            pid = int(parent.stdout.readline())

            # WHEN
            parent.send_signal(getattr(signal, sent))

            # THEN
            assert parent.wait(30) == code
            assert gone(pid)
            assert parent.stdout.read() == f"got {told}\n"
        finally:
            parent.kill()
    assert sent == "SIGKILL" or list(scratch.iterdir()) == []
