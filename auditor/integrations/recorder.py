"""The recorder inside of somebody's training: it gives way wherever it could be in the way."""

from __future__ import annotations

from typing import Any

from auditor.collect.recorder import Recorder
from auditor.integrations import say


class TrainingRecorder(Recorder):
    """Ends when the training starts a profiler of its own, and when a step fails: not every trainer tells of that."""

    def __init__(self, *, steps: int) -> None:
        super().__init__(steps=steps, warmup=1, on_own_profiler=lambda _place: None)

    @property
    def done(self) -> bool:
        """Nothing is watched any more: it is complete, or it gave way."""
        return Recorder.active is not self

    def root_failed(self, _root: Any) -> None:
        super().root_failed(_root)
        self.give_way()

    def backward_failed(self) -> None:
        self.give_way()

    def give_way(self) -> None:
        """End at once; the step that is open counts for nothing."""
        with say.harmless("recording did not end as it should"):
            self.step_failed()
            self.finish()


def end_forgotten() -> None:
    """End a recorder whose training ended without a word: an error between two calls of its callback."""
    if isinstance(Recorder.active, TrainingRecorder):
        Recorder.active.give_way()
