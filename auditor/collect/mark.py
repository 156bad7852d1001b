"""Explicit steps: ``auditor.step()``. Costs nothing, and no torch, while nothing is recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auditor.collect.recorder import Recorder


class Marked:
    """A step that the script began; leaving it as a context manager ends it."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        """The step began when it was marked."""

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            self._recorder.step_mark_end()


def step() -> Marked:
    """Ends the step before and begins the next one; as a context manager it ends that one too."""
    module = sys.modules.get("auditor.collect.recorder")
    recorder: Recorder | None = module.Recorder.active if module is not None else None
    if recorder is not None:
        recorder.step_mark()
    return Marked(recorder)
