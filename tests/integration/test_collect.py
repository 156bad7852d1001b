"""Whole scripts, each in a process of its own, recorded from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from auditor.collect.launch import record_script
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


def python_stderr(script: Path, *args: str) -> tuple[int, str]:
    """Exit code and stderr of the script without us."""
    done = subprocess.run([sys.executable, script, *args], capture_output=True, text=True, timeout=60, check=False)
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
    script = write(tmp_path, CALLS + end)
    code, err = python_stderr(script)

    # WHEN
    recording = record_script(script, [], steps=1, warmup=1, folder=tmp_path / "rec")

    # THEN
    assert capfd.readouterr().err == err
    assert recording.exit_code == code != 0
    check_complete(tmp_path, recording)
