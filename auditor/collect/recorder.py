"""Recording steps of a model in this process: the same machinery for a script and for ``auditor.record()``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec

import msgspec
import torch

from auditor.collect import device, forks, notes
from auditor.collect.annotate import mark_backward_end, read_outputs, tensors_in
from auditor.collect.events import TorchEvents
from auditor.collect.listener import CompiledFunction
from auditor.collect.passes import AnyPass, BarePass, GraphPass, TimingPass, torch_version, warm_up
from auditor.collect.recording import GRAPH_ET, GRAPH_KINETO, STOPPED_EARLY, OwnProfiler, Recording, Root, timing_file
from auditor.collect.roots import RootNames
from auditor.collect.schedule import Pass, Schedule
from auditor.collect.signature import CallSignature, tensor_facts
from auditor.collect.steps import Step, StepTracker
from auditor.errors import AuditError

P = ParamSpec("P")


def _harmless(method: Callable[Concatenate[Recorder, P], None]) -> Callable[Concatenate[Recorder, P], None]:
    """A fault of ours ends the recording, never the script."""

    def guarded(self: Recorder, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._give_up(error)

    guarded.__doc__ = method.__doc__
    return guarded


class StopScript(SystemExit):
    """Ends the script once all is recorded (``stop=True``)."""


class ScriptProfiles(BaseException):
    """The script started a profiler of its own. Not an ``Exception``, so that no script swallows it."""


class Recorder:
    """Records the steps that run while it is active.

    ``with Recorder() as rec: …`` leaves ``rec.recording`` and ``rec.folder`` (temporary unless given).
    Raises :class:`AuditError` where a profiler is already running, another recorder is active, or (on exit)
    no step was seen.
    """

    active: Recorder | None = None

    def __init__(
        self, folder: Path | None = None, *, steps: int = 5, warmup: int = 1, stop: bool = False,
        on_own_profiler: Callable[[OwnProfiler], BaseException | None] | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder or forks.temporary_folder(self)
        self.recording = Recording(torch=torch_version())
        self._stop = stop
        self._on_own_profiler = on_own_profiler or _refuse_profiler
        self._schedule = Schedule(wanted=steps, warmup=max(warmup, 1))
        self._tracker = StepTracker(self)
        self._events = TorchEvents(self)
        self._roots = RootNames()
        self._pass: AnyPass | None = None
        self.left_running: AnyPass | None = None
        self._kind: Pass | None = None
        self._running = False
        self._optimizer = ""
        self._other_threads = self._compiled = self._dropped = False
        self._notes: list[str] = []
        self._pid = os.getpid()

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.finish()
        if kind is None and not self.recording.has_graph:
            raise AuditError(
                "Nothing was recorded: no torch.nn.Module was called inside `with auditor.record()`; "
                "call the model there, or mark steps with auditor.step()."
            )

    def start(self) -> None:
        """Begin to watch."""
        if Recorder.active is not None:
            raise AuditError("A recorder is already active in this process: end it before another one begins.")
        if torch.autograd.profiler._is_profiler_enabled:
            raise AuditError("A torch profiler is running: one process has one profiler; stop it before recording.")
        warm_up()
        self._running = True
        Recorder.active = self
        forks.watch(self)
        self._events.install()

    def finish(self) -> Recording:
        """Stop watching; what was recorded is complete on disk. May be called twice."""
        if self._running and os.getpid() == self._pid:
            self._tracker.finish(sole_mark=self.recording.steps == 0)
            self._leave()
        return self.recording

    def abandon(self) -> None:
        """Forget everything, touch no profiler: this process is a fork of the one that records."""
        self._running = False
        self._pass = self._kind = None
        Recorder.active = None
        self._events.remove()

    def _leave(self) -> None:
        if not self._running:
            return
        self._running = False
        Recorder.active = None
        self._events.remove()
        self._drop_pass()
        if not self._schedule.final and self.recording.timing_us and not self._schedule.timing_fits_fallback():
            self._dropped = True
            self._forget_timing()
        self._describe()
        self.recording.save(self.folder)

    def _drop_pass(self) -> None:
        """A profiler can only be stopped by the thread that started it; others wait for `late_exit`."""
        dropped, self._pass = self._pass, None
        if dropped is not None and self._events.on_owner():
            dropped.drop()
        elif dropped is not None:
            self.left_running = dropped

    # --- events of torch (collect.events.Listener) ---------------------------------------------------

    @_harmless
    def root_enter(self, root: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = root.function if isinstance(root, CompiledFunction) else root
        self._tracker.root_enter((self._roots.key(named, name), tensor_facts(args, kwargs)))
        if isinstance(self._pass, GraphPass):
            self._remember_modes()
            if isinstance(root, torch.nn.Module):
                self._pass.modules.learn(root)
                self._pass.modules.install()
                self._pass.modules.enter(root)

    @_harmless
    def root_exit(self, root: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tracker, graph = self._tracker, self._pass
        trains = not tracker.cycle and bool(getattr(root, "training", False)) and _needs_grad(result)
        if isinstance(graph, GraphPass):
            graph.modules.exit(root)
            graph.modules.remove()
            if tracker.kind != "training" and not (trains and tracker.optimizer_exists):
                read_outputs(result, _only_containers((*args, *kwargs.values())))
        tracker.root_exit(trains, alone=threading.current_thread() is not threading.main_thread())

    @_harmless
    def root_failed(self, _root: Any) -> None:
        if isinstance(self._pass, GraphPass):
            self._pass.modules.close()
            self._pass.modules.remove()
        self._tracker.root_failed()

    @_harmless
    def backward_enter(self, tensors: Any) -> None:
        if isinstance(self._pass, GraphPass):
            read_outputs(tensors)

    @_harmless
    def backward_exit(self) -> None:
        if isinstance(self._pass, GraphPass):
            mark_backward_end()
        self._tracker.backward_exit()

    def backward_failed(self) -> None:
        """What the script makes of it shows in what comes next."""

    def optimizer_made(self) -> None:
        self._tracker.optimizer_exists = True

    def optimizer_enter(self, optimizer: Any) -> None:
        self._optimizer = type(optimizer).__name__

    @_harmless
    def optimizer_left(self) -> None:
        self._optimizer = ""
        if isinstance(self._pass, GraphPass):
            self._pass.optimizer_left()

    @_harmless
    def optimizer_exit(self, optimizer: Any) -> None:
        self._tracker.optimizer_exit(self._roots.key(optimizer, type(optimizer).__name__))

    @_harmless
    def zero_grad_enter(self) -> None:
        self._tracker.zero_grad_enter()

    @_harmless
    def zero_grad_exit(self) -> None:
        self._tracker.zero_grad_exit()

    def compiled(self) -> None:
        self._compiled = self._compiled or isinstance(self._pass, GraphPass)

    def pause(self) -> None:
        if isinstance(self._pass, GraphPass):
            self._pass.pause()

    def resume(self) -> None:
        if isinstance(self._pass, GraphPass):
            self._pass.resume()

    def own_profiler(self, file: str, line: int) -> None:
        place = OwnProfiler(file=file, line=line)
        error = None if self._schedule.final else self._on_own_profiler(place)
        if error is None:
            self._notes.append(f"The script starts its own profiler at {file}:{line}: recording ended there.")
            self._tracker.finish()
            self._leave()
            return
        self.recording.own_profiler = place
        raise error

    def late_exit(self) -> None:
        """The call that was running on another thread when recording ended has returned there."""
        if self.left_running is not None:
            self.left_running.drop()
            self.left_running = None

    def foreign_thread(self) -> None:
        self._other_threads = True

    # --- steps (collect.steps.Handler) -----------------------------------------------------------------

    def begin(self, first: CallSignature | None) -> None:
        if not self._running:  # recording ended with the step before: nobody would end another pass
            self._kind = None
            return
        self._kind = self._schedule.begin(first)
        self._forget_if_asked()
        try:
            self._pass = self._make_pass(self._kind)
            if self._pass is not None:
                self._pass.start()
            if self._kind == "graph":
                self._remember_modes()
        except Exception as error:  # never the script's fault, so never the script's problem
            self._give_up(error)

    def mark(self) -> None:
        if isinstance(self._pass, GraphPass):
            self._pass.mark()

    def end(self, step: Step, cut: int | None) -> None:
        try:
            self._end(step, cut)
        except Exception as error:
            self._give_up(error)
        if self._schedule.complete:
            self._leave()
            if self._stop and threading.current_thread() is threading.main_thread():
                raise StopScript(0)

    def _end(self, step: Step, cut: int | None) -> None:
        done, self._pass = self._pass, None
        us = done.stop() if done is not None else 0.0
        self.recording.steps += 1
        keep = self._schedule.end(self._kind if done else None, step.signature)
        self._forget_if_asked()
        if done is None:
            return
        if keep:
            done.save(cut)
            self._keep(us, step)
        else:
            done.drop()
        self._describe()
        self.recording.save(self.folder)

    def _give_up(self, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):  # e.g. an op's name with a quote in it
            what = f"the profiler's files of step {self.recording.steps} are unreadable ({error})."
        self._notes.append(f"{STOPPED_EARLY} {what}")
        self._leave()

    def cancel(self) -> None:
        self._drop_pass()
        self._schedule.aborted()

    def restart(self) -> None:
        self._schedule.restart()
        self._forget_timing()
        self.recording.has_graph = False
        self.recording.graph_us = 0.0

    def has_final_graph(self) -> bool:
        return self._schedule.final

    # --- marks -----------------------------------------------------------------------------------------

    @_harmless
    def step_mark(self) -> None:
        """``auditor.step()``: a step begins here."""
        if self._running and self._events.claim():
            self._tracker.step_mark()

    @_harmless
    def step_mark_end(self) -> None:
        """The end of ``with auditor.step():``."""
        if self._running and self._events.on_owner():
            self._tracker.step_mark_end()

    @_harmless
    def step_failed(self) -> None:
        """The step that was marked does not count: what was begun in it is thrown away."""
        if self._running and self._events.on_owner():
            self._tracker.step_failed()

    # --- what is kept ------------------------------------------------------------------------------------

    def _make_pass(self, kind: Pass | None) -> AnyPass | None:
        if kind == "graph":
            return GraphPass(self.folder / GRAPH_KINETO, self.folder / GRAPH_ET, within=self._optimizer)
        if kind == "timing":
            return TimingPass(self.folder / timing_file(len(self.recording.timing_us)))
        return BarePass() if kind == "bare" else None

    def _keep(self, us: float, step: Step) -> None:
        facts, kind = self.recording, self._kind
        if kind == "bare":
            facts.bare_us.append(us)
        elif kind == "timing":
            facts.timing_us.append(us)
        else:
            facts.graph_us, facts.has_graph = us, True
            facts.graph_is_first_step = not self._schedule.final
            facts.device_kind, facts.device_name = device.kind_and_name()
            facts.roots = [Root(name=key, class_name=key.split("#")[0]) for key in dict.fromkeys(step.roots)]
            facts.kind = self._tracker.kind

    def _forget_if_asked(self) -> None:
        if self._schedule.forgot:
            self._schedule.forgot = False
            self._forget_timing()

    def _forget_timing(self) -> None:
        for index in range(len(self.recording.timing_us)):
            (self.folder / timing_file(index)).unlink(missing_ok=True)
        self.recording.timing_us, self.recording.bare_us = [], []

    def _remember_modes(self) -> None:
        facts = self.recording
        facts.grad_enabled = torch.is_grad_enabled()
        facts.inference_mode = torch.is_inference_mode_enabled()
        facts.autocast = str(device.autocast_dtype(device.accelerator() or "cpu") or "")

    def _describe(self) -> None:
        facts, recorded = self.recording, [root.name for root in self.recording.roots]
        for root in facts.roots:
            root.calls = self._tracker.calls[root.name]
        facts.notes = list(self._notes)
        if facts.has_graph:
            facts.notes += notes.first_step_only(facts.graph_is_first_step, len(facts.timing_us), self._dropped)
            facts.notes += notes.not_recorded(self._tracker.calls, recorded)
        facts.notes += [notes.other_threads()] if self._other_threads else []
        facts.notes += [notes.compiled()] if self._compiled else []

    @_harmless
    def before_fork(self) -> None:
        """A process that is forked under a running profiler would write into this one's trace."""
        if self._running and self._events.on_owner():
            self._tracker.hold_no_longer()


def _refuse_profiler(place: OwnProfiler) -> BaseException:
    return AuditError(
        f"{place.file}:{place.line}: a torch profiler is started while steps are recorded; "
        "remove it, or import the trace that it writes with `fusion-audit import`."
    )


def _needs_grad(result: Any) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in(result, depth=3))


def _only_containers(values: tuple[Any, ...]) -> list[Any]:
    """What may carry results out besides the return value: a cache that was passed in."""
    return [value for value in values if not isinstance(value, torch.Tensor)]
