"""The three ways to record one step: bare (a clock), timing (plain profiler), graph (everything)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity

from auditor.collect import device, tidy
from auditor.collect.annotate import ModuleAnnotations, SourceLines, annotation, mark_end
from auditor.collect.stderr import quiet

_OPS_IN_FLIGHT_S = 0.1
"""Time for ops of other threads to end: longer than an op, and no part of any measured step."""


class ProfilerOwner:
    """Tells our use of the profiler from the script's (one process has one profiler)."""

    ours = False


class StepProfile(torch.profiler.profile):
    """PyTorch's, which does not bring in its compiler: programs that compile nothing would wait for it, 3 s."""

    def prepare_trace(self) -> None:
        """Make ready; PyTorch's own asks Inductor, which it imports for that, whether it uses CUDA graphs."""
        with _uncompiled():
            super().prepare_trace()


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Inductor is looked for only where it is: who has not imported it has set nothing in it, and compiled nothing."""
    lazy: set[str] = getattr(torch, "_lazy_modules", set())
    if "torch._inductor" in sys.modules or "_inductor" not in lazy:
        yield
        return
    lazy.remove("_inductor")
    try:
        yield
    finally:
        lazy.add("_inductor")


def warm_up() -> None:
    """Start and stop the profiler once, on the main thread: its library cannot be initialised on another one."""
    if threading.current_thread() is not threading.main_thread():
        return
    ProfilerOwner.ours = True
    try:
        with quiet(), StepProfile(activities=[ProfilerActivity.CPU]):
            pass
    finally:
        ProfilerOwner.ours = False


class BarePass:
    """Wall time of a step with nothing attached."""

    def __init__(self) -> None:
        self._began = 0.0

    def start(self) -> None:
        device.synchronize()
        self._began = time.perf_counter()

    def stop(self) -> float:
        """End the step; its wall time in microseconds."""
        device.synchronize()
        return (time.perf_counter() - self._began) * 1e6

    def save(self, cut: int | None) -> None:
        """Keep what was recorded."""

    def drop(self) -> None:
        """Throw away what was recorded, whether or not the step ended."""


class TimingPass(BarePass):
    """One step under the plain profiler, into ``path``."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._profile = self._make()
        self._running = False

    def _make(self) -> Any:
        return StepProfile(activities=device.activities())

    def start(self) -> None:
        device.synchronize()
        self._switch(True)
        self._began = time.perf_counter()

    def stop(self) -> float:
        us = super().stop()
        self._switch(False)
        return us

    def save(self, cut: int | None) -> None:  # noqa: ARG002 (only the first step is cut)
        scratch = self._path.with_suffix(".part")
        self._profile.export_chrome_trace(str(scratch))
        scratch.replace(self._path)

    def drop(self) -> None:
        if self._running:
            with suppress(Exception):  # another thread's profiler cannot be stopped from here
                self._switch(False)

    def _switch(self, on: bool) -> None:
        ProfilerOwner.ours = True
        try:
            with quiet():
                if on:
                    self._profile.start()
                else:
                    self._profile.stop()
        finally:
            ProfilerOwner.ours = False
            self._running = on


class GraphPass(TimingPass):
    """One step with shapes, execution trace and annotations, into ``path`` and ``et_path``.

    ``within``: class of the optimizer in whose ``step(closure)`` it begins. That one's own annotation was opened before
    the profiler was there; one of the same name stands for it.
    """

    def __init__(self, path: Path, et_path: Path, *, within: str = "") -> None:
        self._et_path = et_path
        self._et_part = et_path.with_suffix(".part.json")  # the observer insists on ".json"
        self._observer = ExecutionTraceObserver()
        super().__init__(path)
        self.modules = ModuleAnnotations()
        self.source = SourceLines()
        self._step = annotation("fa.step")
        self._optimizer = annotation(f"Optimizer.step#{within}.step") if within else None
        self._annotating = self._had_modules = False
        self._paused = 0

    def _make(self) -> Any:
        self._observer.register_callback(str(self._et_part))
        return StepProfile(
            activities=device.activities(), record_shapes=True, execution_trace_observer=self._observer
        )  # fmt: skip

    def start(self) -> None:
        device.synchronize()
        self._switch(True)
        self._step.__enter__()
        if self._optimizer is not None:
            self._optimizer.__enter__()
        self._annotating = True
        self.source.install()
        self._began = time.perf_counter()

    def stop(self) -> float:
        self._close()
        us = BarePass.stop(self)
        self._switch(False)
        self._unregister()
        return us

    def save(self, cut: int | None) -> None:
        scratch = self._path.with_suffix(".part")
        self._profile.export_chrome_trace(str(scratch))
        tidy.execution_trace(self._et_part, cut)
        if cut is not None:
            tidy.kineto(scratch, cut)
        scratch.replace(self._path)
        self._et_part.replace(self._et_path)

    def drop(self) -> None:
        self._close()
        super().drop()
        with suppress(Exception):
            self._unregister()
        self._et_part.unlink(missing_ok=True)

    def mark(self) -> None:
        """The step may turn out to end here."""
        mark_end()

    def optimizer_left(self) -> None:
        """The optimizer in whose step the pass began has returned."""
        if self._optimizer is not None:
            self._optimizer.__exit__()
            self._optimizer = None

    def pause(self) -> None:
        """Hooks and modes out of sight, for code that they would change: compiled code is compiled again."""
        if self._paused == 0:
            self._had_modules = self.modules.installed
            self.modules.remove()
            self.source.remove()
        self._paused += 1

    def resume(self) -> None:
        """The end of :meth:`pause`; they nest."""
        if self._paused == 0:  # the pause began before this pass
            return
        self._paused -= 1
        if self._paused == 0 and self._annotating:
            self.source.install()
            if self._had_modules:
                self.modules.install()

    def _unregister(self) -> None:
        """Finish the file. The observer sees every thread, and one that is within an op when it goes would crash."""
        if threading.active_count() > 1:
            time.sleep(_OPS_IN_FLIGHT_S)
        self._observer.unregister_callback()

    def _close(self) -> None:
        if self._annotating:
            self._annotating = False
            self.modules.remove()
            self.source.remove()
            self.modules.close()
            self.optimizer_left()
            self._step.__exit__()


AnyPass = BarePass | TimingPass | GraphPass


def torch_version() -> str:
    return str(torch.__version__)
