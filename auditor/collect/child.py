"""The process that runs the user's script and records it: ``python child.py CONFIG.json``.

The script gets what ``python script.py args…`` would give it: its own ``__main__``, ``sys.argv``,
``sys.path[0]``, the working directory, and its exit code. torch is not imported before the script does it:
a script may set environment variables first.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # run by path: this folder must not shadow the script's modules
    sys.path.pop(0)
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import atexit
import builtins
import importlib
import json
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from auditor.collect import uncaught
from auditor.collect.after_import import AfterImport
from auditor.collect.recording import OwnProfiler, Recording

if TYPE_CHECKING:
    from auditor.collect.recorder import Recorder

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Watcher(Protocol):
    """Who watches the script in the recorder's stead."""

    def start(self) -> None:
        """Begin: torch is there, the script is not much further."""

    def finish(self) -> object:
        """The script ended, in whatever way."""


class Companion(Protocol):
    """Who works beside the recorder, such as a plan that is applied."""

    def start(self) -> None:
        """Begin, after the recorder did."""

    def finish(self, recording: Recording) -> None:
        """The script ended: write into ``recording`` what a reader of the audit must know."""


@dataclass(kw_only=True)
class Config:
    """What the parent process asks for. Names and arguments may hold undecodable bytes, as ``\\udcXX``."""

    script: str
    args: list[str]
    folder: str
    steps: int
    warmup: int
    stop: bool
    parent: int
    """Its process id."""
    watcher: str = ""
    """``module:function`` that makes the :class:`Watcher` from the folder and ``options``; empty: the recorder. By
    name, as this room imports none of those that have one."""
    options: dict[str, Any] = field(default_factory=dict)
    patcher: str = ""
    """``module:function`` that makes the :class:`Companion` from ``plan`` and ``options``; empty: none."""
    plan: str = ""

    def save(self, path: Path) -> None:
        """Write ``path``, in ASCII: the JSON of :mod:`msgspec` has no place for undecodable bytes."""
        path.write_text(json.dumps(asdict(self)), encoding="ascii")

    @classmethod
    def load(cls, path: Path) -> Config:
        """What :meth:`save` wrote."""
        return cls(**json.loads(path.read_text(encoding="ascii")))


class Session:
    """One script and who watches it, from the moment the script imports torch."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.recorder: Recorder | None = None
        self.watcher: Watcher | None = None
        self.companion: Companion | None = None
        self.pid = os.getpid()

    def attach(self) -> None:
        """Begin to watch: torch is there."""
        config = self.config
        if config.watcher:
            self.watcher = _named(config.watcher)(Path(config.folder), config.options)
        else:
            self.watcher = self.recorder = self._recorder()
        self.watcher.start()
        if config.patcher:
            self.companion = _named(config.patcher)(Path(config.plan), config.options)
            self.companion.start()

    def _recorder(self) -> Recorder:
        from auditor.collect.recorder import Recorder

        config = self.config
        recorder = Recorder(
            Path(config.folder), steps=config.steps, warmup=config.warmup, stop=config.stop, on_own_profiler=_refuse
        )
        recorder.recording.script = [config.script, *config.args]
        return recorder

    def finish(self, exit_code: int, error: BaseException | None) -> None:
        """Write what the run was."""
        if self.watcher is not None:
            self.watcher.finish()
        recording = self.recorder.recording if self.recorder else Recording()
        if self.companion is not None:
            self.companion.finish(recording)
        recording.script = [self.config.script, *self.config.args]
        recording.exit_code = exit_code
        if error is not None:
            recording.error = traceback.format_exception_only(error)[-1].strip()
            ran = error.__traceback__ is not None  # a script that is too deep to compile is a MemoryError as well
            recording.out_of_memory = ran and type(error).__name__ in ("OutOfMemoryError", "MemoryError")
        recording.save(Path(self.config.folder))

    def profiler_is_left(self) -> bool:
        """A thread of the script is still within a recorded step, and only that thread could end it."""
        return self.recorder is not None and self.recorder.left_running is not None


def _named(place: str) -> Callable[..., Any]:
    """The function that ``module:function`` names."""
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _refuse(place: OwnProfiler) -> BaseException:
    from auditor.collect.recorder import ScriptProfiles

    return ScriptProfiles(f"{place.file}:{place.line}")


def run(config: Config) -> int:
    """Run the script; its exit code."""
    session = Session(config)
    AfterImport("torch", session.attach).install()
    error: BaseException | None = None
    try:
        main, code = _load(config.script)
        _take_place(config, main)
        exec(code, main.__dict__)
        exit_code = 0
    except SystemExit as stop:
        exit_code = uncaught.exit_code(stop)
    except BaseException as raised:
        error, exit_code = raised, 130 if isinstance(raised, KeyboardInterrupt) else 1
    if error is not None and type(error).__name__ != "ScriptProfiles":
        chosen = uncaught.show(error)
        exit_code = exit_code if chosen is None else chosen
    _join_threads()
    if os.getpid() == session.pid:
        session.finish(exit_code, error)
    if os.getpid() != session.pid or session.profiler_is_left():
        _leave(exit_code)
    return exit_code


def _leave(exit_code: int) -> NoReturn:
    """End the process without the destructors of the profiler's libraries.

    They wait for threads that a fork does not have, for ever, and crash over a profiler that a daemon thread
    still has running. The interpreter's part of leaving is done here.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(exit_code & 0xFF)


def _load(script: str) -> tuple[ModuleType, CodeType]:
    path = os.path.abspath(script)
    main = ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__spec__ = None
    main.__dict__["__builtins__"] = builtins
    main.__dict__["__cached__"] = None
    main.__annotations__ = {}
    return main, compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def _take_place(config: Config, main: ModuleType) -> None:
    sys.argv = [config.script, *config.args]
    sys.path.insert(0, os.path.dirname(os.path.realpath(config.script)))
    sys.modules["__main__"] = main


def _join_threads() -> None:
    """Threads that the script left running may still call its model; the interpreter would wait for them too.

    Before that it has pools tell their threads to end once their work is done: such threads wait for work for ever.
    """
    at_exit = getattr(threading, "_threading_atexits", [])
    while at_exit:
        with suppress(Exception):
            at_exit.pop()()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def main(argv: list[str]) -> int:
    config = Config.load(Path(argv[1]))
    _end_with(config.parent)
    return run(config)


def _end_with(parent: int) -> None:
    """When the parent is killed nobody else could end the script (Linux only; SIGTERM, so that it may tidy up)."""
    with suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it was killed before we asked
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
