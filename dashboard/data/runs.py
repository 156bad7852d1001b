"""The stored runs as lines of a list: filtered, sorted, and as trends of one model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from auditor.store import RunFilter, RunSummary
from dashboard.context import current


@dataclass(frozen=True)
class RunLine(RunSummary):
    """One line. Times in microseconds, 0 where they are not known."""

    @property
    def memory_bound_share(self) -> float | None:
        """Of the kernels' time; None where it is not known."""
        return self.memory_bound_us / self.device_us if self.device_us > 0 else None


@dataclass(frozen=True)
class Trend:
    """The runs of one model on one device, the oldest first."""

    name: str
    device: str
    project: str
    runs: tuple[RunLine, ...]


def list_runs(
    *,
    text: str = "",
    name: str = "",
    project: str = "",
    device: str = "",
    source: str = "",
    sort: str = "created",
    descending: bool = True,
    limit: int | None = None,
    offset: int = 0,
) -> list[RunLine]:
    """Stored runs, the newest first. ``text`` is looked for in id, name, project and device, whatever its case."""
    wanted = RunFilter(text=text.strip(), name=name, project=project, device=device, source=source)
    found = current().store.list_runs(wanted, sort=sort, descending=descending, limit=limit, offset=offset)
    return [RunLine(**vars(run)) for run in found]


def trends(runs: Sequence[RunLine], least: int = 2) -> list[Trend]:
    """Runs of one name, project and device that are at least ``least``; the one with the newest run first."""
    groups: dict[tuple[str, str, str], list[RunLine]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.id):  # an id starts with its time
        if run.name:
            groups[run.name, run.project, run.device].append(run)
    found = [
        Trend(name, device, project, tuple(each))
        for (name, project, device), each in groups.items()
        if len(each) >= least
    ]
    return sorted(found, key=lambda trend: trend.runs[-1].id, reverse=True)
