"""What of a run's kernels is to be drawn between two times: each one, or what fills each pixel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EXACT_LIMIT = 3000
"""Up to so many kernels in view are drawn each by itself."""


@dataclass(frozen=True)
class Lane:
    """One stream of one device."""

    device: int
    stream: int
    kernels: int
    busy_us: float

    @property
    def label(self) -> str:
        return f"device {self.device} · stream {self.stream}"


@dataclass(frozen=True)
class Bins:
    """What fills each of ``columns`` equal parts of the view, by lane (rows) and column."""

    kind: NDArray[np.int8]
    """Code of the kind that takes most of the time, -1 where nothing runs."""
    busy: NDArray[np.float32]
    """Share of the time in which a kernel runs, 0 to 1."""
    kernels: NDArray[np.int32]
    """Kernels that start there."""


@dataclass(frozen=True)
class View:
    """Kernels between two times. Either ``rows`` (numbers of kernels, and their lanes) or ``bins`` is set."""

    t0_us: float
    t1_us: float
    lanes: tuple[Lane, ...]
    kernels: int
    rows: NDArray[np.int64] | None = None
    lane_of: NDArray[np.int64] | None = None
    bins: Bins | None = None


class Timeline:
    """The kernels of one run, ready to be looked at by time."""

    lanes: tuple[Lane, ...]
    end_us: float
    nbytes: int

    def view(self, t0_us: float | None = None, t1_us: float | None = None, columns: int = 1200) -> View:
        """What is seen between two times (the whole run where they are None), in ``columns`` pixels."""
        raise NotImplementedError


def timeline(ref: str = "latest") -> Timeline:
    """The timeline of a run, made once. AuditError where it has no kernels' times."""
    raise NotImplementedError
