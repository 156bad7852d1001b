"""The stored runs as lines of a list: filtered, sorted, paged, and as trends of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RunLine:
    """One line. Times in microseconds, 0 where they are not known."""

    id: str
    name: str
    project: str
    source: str
    created: str
    device: str
    exit_code: int
    findings: int
    kernels: int
    unfused_kernels: int
    avoidable_kernels: int
    step_us: float
    step_saving_us: float
    memory_bound_us: float
    device_us: float
    likely_us: float

    @property
    def memory_bound_share(self) -> float | None:
        """Of the kernels' time; None where it is not known."""
        return self.memory_bound_us / self.device_us if self.device_us > 0 else None


@dataclass(frozen=True)
class Trend:
    """The runs of one model on one device, the oldest first."""

    name: str
    device: str
    runs: tuple[RunLine, ...]


def list_runs(
    *,
    text: str = "",
    name: str = "",
    device: str = "",
    source: str = "",
    sort: str = "created",
    descending: bool = True,
) -> list[RunLine]:
    """Stored runs. ``text`` is looked for in id, name, project, script and device, whatever its case."""
    raise NotImplementedError


def trends(runs: Sequence[RunLine], least: int = 2) -> list[Trend]:
    """Runs of one name, project and device that are at least ``least``; the one with the newest run first."""
    raise NotImplementedError
