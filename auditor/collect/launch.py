"""Running a script under the recorder, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from auditor.collect import child
from auditor.collect.recording import FILE, STOPPED_EARLY, Recording, load
from auditor.errors import AuditError, ScriptFailed

_POLL_S = 0.2
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def record_script(
    script: Path | str, args: list[str], *, steps: int = 5, warmup: int = 1, folder: Path,
    stop: bool = False, on_progress: Callable[[str], None] | None = None,
) -> Recording:  # fmt: skip
    """Run ``script`` with ``args`` and record it into ``folder`` (made if missing).

    A ``script`` given as text is the script's ``sys.argv[0]`` to the letter (``./x.py``).
    On SIGTERM or SIGHUP the script gets the signal too, and :class:`SystemExit` is raised.

    ``steps`` timing and bare steps are wanted, after ``warmup`` steps. ``stop`` ends the script once they
    are recorded. Raises :class:`ScriptFailed` when the script failed before a step was recorded, and
    :class:`AuditError` when it cannot be run, calls no model, profiles itself, or was killed. A script that
    fails later gives a recording with its ``exit_code``.
    """
    if steps < 1:
        raise AuditError(f"--steps {steps}: at least one step must be recorded.")
    if warmup < 0:
        raise AuditError(f"--warmup {warmup}: it cannot be negative.")
    typed, script = str(script), Path(script)
    _check(script)
    folder.mkdir(parents=True, exist_ok=True)
    for left in (*folder.glob("timing-*.kineto.json"), *folder.glob("graph.*.json"), folder / FILE):
        left.unlink(missing_ok=True)
    config = child.Config(
        script=typed, args=args, folder=str(folder.resolve()), steps=steps, warmup=warmup, stop=stop,
        parent=os.getpid(),
    )  # fmt: skip
    return _judge(script, folder, _run(config, folder, on_progress or _say_nothing))


def _say_nothing(_sentence: str) -> None:
    return None


def _check(script: Path) -> None:
    """The script exists and is Python; :class:`AuditError` with the reason otherwise."""
    if script.is_dir():
        raise AuditError(f"{script}: is a folder, not a Python script.")
    try:
        source = script.read_bytes()
    except OSError as error:
        raise AuditError(f"{script}: cannot read the script: {error.strerror or error}.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise AuditError(f"{script}:{error.lineno or 1}: not a Python script: {error.msg}.") from error
    except (MemoryError, RecursionError, OverflowError):
        return  # nested too deep for this process: the script's own process has the last word
    except (ValueError, UnicodeDecodeError) as error:
        raise AuditError(f"{script}: not a Python script: {error}.") from error


def _run(config: child.Config, folder: Path, on_progress: Callable[[str], None]) -> int:
    """Run the child until it ends; its return code (negative: the signal that killed it)."""
    with tempfile.TemporaryDirectory(prefix="fusion-audit-") as scratch, _raising_signals():
        path = Path(scratch) / "config.json"
        config.save(path)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        process = subprocess.Popen([sys.executable, *flags, child.__file__, str(path)])
        try:
            return _wait(process, folder, on_progress)
        except Stopped as stopped:
            process.send_signal(stopped.number)
            _end(process)
            raise
        except BaseException:
            _end(process)
            raise


class Stopped(SystemExit):
    """The signal ``number`` asked this process to end; exit code as shells count."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextlib.contextmanager
def _raising_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise :class:`Stopped` once, so that the script and scratch folders do not stay behind."""
    ours: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)
        raise Stopped(number)

    if threading.current_thread() is threading.main_thread():  # elsewhere Python sets no handlers
        ours += [one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL]  # nohup ignores SIGHUP
    for one in ours:
        signal.signal(one, stop)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


def _wait(process: subprocess.Popen[bytes], folder: Path, on_progress: Callable[[str], None]) -> int:
    said = ""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_S)
        sentence = _progress(folder)
        if sentence and sentence != said:
            said = sentence
            on_progress(sentence)


def _progress(folder: Path) -> str:
    try:
        seen = load(folder)
    except AuditError:
        return ""
    graph = "graph recorded" if seen.has_graph and not seen.graph_is_first_step else "graph of the first step"
    return f"{seen.steps} steps: {graph}, {len(seen.timing_us)} timed, {len(seen.bare_us)} bare"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The signal (Ctrl-C too) reached the script as well: give it a moment to end by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
        return
    process.kill()
    process.wait()


def _judge(script: Path, folder: Path, code: int) -> Recording:
    recording = load(folder) if (folder / FILE).exists() else Recording(script=[str(script)])
    if recording.own_profiler is not None:
        place = recording.own_profiler
        raise AuditError(
            f"{place.file}:{place.line}: the script starts a torch profiler of its own; remove it, "
            "or import the trace that it writes with `fusion-audit import`."
        )
    if code < 0:
        _killed(script, recording, -code)
    elif code != recording.exit_code:  # os._exit, or an atexit function that failed
        recording.exit_code = code
    if not recording.has_graph:
        _nothing_recorded(script, recording)
    recording.save(folder)
    return recording


def _killed(script: Path, recording: Recording, number: int) -> None:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    sentence = f"{script}: the script was killed by {name}{hint} after {recording.steps} steps."
    if not recording.has_graph:
        raise AuditError(sentence)
    recording.exit_code = 128 + number
    recording.error = recording.error or sentence
    recording.notes.append(sentence)


def _nothing_recorded(script: Path, recording: Recording) -> None:
    code = recording.exit_code
    if code != 0 or recording.error:
        reason = recording.error or f"exit code {code}"
        if recording.out_of_memory:
            reason += " (out of memory: try a smaller batch)"
        raise ScriptFailed(f"{script}: the script failed before a step was recorded: {reason}", code or 1)
    stopped = [note for note in recording.notes if note.startswith(STOPPED_EARLY)]
    if stopped:
        raise AuditError(f"{script}: steps ran, but none was recorded. {stopped[0]}")
    raise AuditError(
        f"{script}: the script ended without calling a torch.nn.Module; mark steps with auditor.step()."
    )  # fmt: skip
