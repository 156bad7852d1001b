"""Where the time of a step goes, as the report tells it, with collectives and kernels of no known op apart."""

from __future__ import annotations

from auditor.report.waterfall import Waterfall


def step_time(ref: str = "latest") -> Waterfall | None:
    """The parts of the step's time; ``None`` where nothing was timed. Loads the kernels: ask for it in a callback."""
    raise NotImplementedError
