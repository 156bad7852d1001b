"""Running a script under the recorder, or another watcher, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from auditor.collect import child
from auditor.collect.recording import FILE, STOPPED_EARLY, Recording, load
from auditor.errors import AuditError, ScriptFailed

_POLL_S = 0.2
_GRACE_S = 5.0
"""For a script to end by itself once it was asked to."""
_LOOK_S = 0.02
_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def record_script(
    script: Path | str, args: list[str], *, steps: int = 5, warmup: int = 1, folder: Path,
    stop: bool = False, patcher: str = "", plan: Path | None = None, options: dict[str, Any] | None = None,
    cap_s: float | None = None, on_progress: Callable[[str], None] | None = None,
    ended_by: Callable[[], str] | None = None, keep_on_signal: bool = False,
) -> Recording:  # fmt: skip
    """Run ``script`` with ``args`` and record it into ``folder`` (made if missing).

    A ``script`` given as text is the script's ``sys.argv[0]`` to the letter (``./x.py``).
    On SIGTERM or SIGHUP the script gets the signal too, and :class:`SystemExit` is raised.

    ``steps`` timing and bare steps are wanted, after ``warmup`` steps. ``stop`` ends the script once they
    are recorded. ``patcher`` (``module:function``) applies ``plan`` beside the recorder; ``options`` (JSON) are
    for it. A script that still runs after ``cap_s`` seconds is ended, and what was recorded by then counts.

    ``ended_by`` is asked now and then whether the script has to end, and answers with the reason. With
    ``keep_on_signal`` what was recorded when SIGTERM or SIGHUP came counts, too, and the exit code says so.

    Raises :class:`ScriptFailed` when the script failed before a step was recorded, and :class:`AuditError` when it
    cannot be run, calls no model, profiles itself, or was killed. A script that fails later gives a recording with
    its ``exit_code``.
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
        parent=os.getpid(), patcher=patcher, plan=str(plan.resolve()) if plan else "",
        options=options or {},
    )  # fmt: skip
    progress = _Progress(on_progress or _say_nothing, lambda: _progress(folder))
    try:
        ended = _run(config, progress, cap_s, ended_by=ended_by)
    except Stopped as stopped:
        if not keep_on_signal:
            raise
        return _stopped(script, folder, stopped.number)
    return _judge(script, folder, ended.code, ended.reason)


@dataclass(frozen=True)
class Ended:
    """How a script's process ended. ``code`` is negative where a signal killed it."""

    code: int
    reason: str = ""
    """Why we ended it; empty where it ended by itself."""


def watch_script(
    script: Path | str, args: list[str], *, watcher: str, options: dict[str, Any], folder: Path, cap_s: float,
    progress: Callable[[], str], done: Callable[[], bool], on_progress: Callable[[str], None] | None = None,
) -> tuple[Ended, Recording]:  # fmt: skip
    """Run ``script`` with ``args`` under the watcher that ``watcher`` (``module:function``) makes.

    Args:
        script: as for :func:`record_script`.
        args: the script's own.
        watcher: called as ``function(folder, options)`` when the script imports torch.
        options: JSON.
        folder: where the watcher puts what it finds; made if missing.
        cap_s: a script that runs longer is ended.
        progress: a sentence about how far the watcher is, or "".
        done: whether all that is wanted is there. The script is then asked to end (SIGTERM).
        on_progress: gets the sentences.

    Returns:
        How the process ended, and the bare facts of the script: its exit code and error.

    Raises:
        AuditError: the script cannot be run.
    """
    _check(Path(script))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)
    config = child.Config(
        script=str(script), args=args, folder=str(folder.resolve()), steps=1, warmup=1, stop=False,
        parent=os.getpid(), watcher=watcher, options=options,
    )  # fmt: skip
    ended = _run(config, _Progress(on_progress or _say_nothing, progress), cap_s, done)
    known = load(folder) if (folder / FILE).exists() else Recording(script=[str(script), *args])
    return ended, known


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


def _run(
    config: child.Config, progress: _Progress, cap_s: float | None = None, done: Callable[[], bool] | None = None,
    ended_by: Callable[[], str] | None = None,
) -> Ended:  # fmt: skip
    """Run the child until it ends, has done all that is wanted, has to end, or the time is up."""
    with tempfile.TemporaryDirectory(prefix="fusion-audit-") as scratch, _raising_signals():
        path = Path(scratch) / "config.json"
        config.save(path)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        process = subprocess.Popen([sys.executable, *flags, child.__file__, str(path)])
        try:
            return _wait(process, progress, cap_s, done, ended_by)
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


def _wait(
    process: subprocess.Popen[bytes], progress: _Progress, cap_s: float | None, done: Callable[[], bool] | None,
    ended_by: Callable[[], str] | None,
) -> Ended:  # fmt: skip
    began_s = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return Ended(process.wait(_POLL_S))
        progress.say()
        if cap_s is not None and time.monotonic() - began_s > cap_s:
            return _asked_to_end(process, f"it still ran after {cap_s:,.0f} s, the time cap")
        if ended_by is not None and (reason := ended_by()):
            return _asked_to_end(process, reason)
        if done is not None and done():
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may be about to end by itself
                return Ended(process.wait(_POLL_S * 5))
            return _asked_to_end(process, "all that was wanted from it was there")


def _asked_to_end(process: subprocess.Popen[bytes], reason: str) -> Ended:
    process.terminate()
    _end(process)
    return Ended(process.returncode, reason)


class _Progress:
    """Says each new sentence of ``ask`` once."""

    def __init__(self, then: Callable[[str], None], ask: Callable[[], str]) -> None:
        self._then, self._ask, self._said = then, ask, ""

    def say(self) -> None:
        sentence = self._ask()
        if sentence and sentence != self._said:
            self._said = sentence
            self._then(sentence)


def _progress(folder: Path) -> str:
    try:
        seen = load(folder)
    except AuditError:
        return ""
    graph = "graph recorded" if seen.has_graph and not seen.graph_is_first_step else "graph of the first step"
    return f"{_steps(seen.steps)}: {graph}, {len(seen.timing_us)} timed, {len(seen.bare_us)} bare"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The signal (Ctrl-C too) reached the script as well: give it a moment to end by itself."""
    until_s = time.monotonic() + _GRACE_S
    while not _reaped(process):
        if time.monotonic() > until_s:
            process.kill()
        time.sleep(_LOOK_S)


def _reaped(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; its exit code is then known.

    Asked of the system, not by ``Popen.wait``: that has a lock, which an exception that a signal raised within an
    earlier wait may have left locked.
    """
    if process.returncode is None:
        try:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            pid, status = process.pid, 0
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode is not None


def _judge(script: Path, folder: Path, code: int, reason: str = "") -> Recording:
    recording = load(folder) if (folder / FILE).exists() else Recording(script=[str(script)])
    if recording.own_profiler is not None:
        place = recording.own_profiler
        raise AuditError(
            f"{place.file}:{place.line}: the script starts a torch profiler of its own; remove it, "
            "or import the trace that it writes with `fusion-audit import`."
        )
    if reason:
        _cut_short(script, recording, reason)
    elif code < 0:
        _killed(script, recording, -code)
    elif code != recording.exit_code:  # os._exit, or an atexit function that failed
        recording.exit_code = code
    if not recording.has_graph:
        _nothing_recorded(script, recording)
    recording.save(folder)
    return recording


def _stopped(script: Path, folder: Path, number: int) -> Recording:
    """What a signal to us left of the recording."""
    try:
        recording = _judge(script, folder, 0, f"it was asked to ({signal.Signals(number).name})")
    except AuditError as error:
        raise ScriptFailed(str(error), 128 + number) from None
    recording.exit_code = 128 + number
    return recording


def _cut_short(script: Path, recording: Recording, reason: str) -> None:
    sentence = f"{script}: the script was ended after {_steps(recording.steps)}: {reason}."
    if not recording.has_graph:
        raise AuditError(f"{sentence[:-1]}, and no step was recorded.")
    recording.notes.append(sentence)


def _killed(script: Path, recording: Recording, number: int) -> None:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = " (out of memory?)" if number == signal.SIGKILL else ""
    sentence = f"{script}: the script was killed by {name}{hint} after {_steps(recording.steps)}."
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
