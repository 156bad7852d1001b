"""Every kernel of one run as columns: times, and codes into short lists of names. About 60 bytes a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Words:
    """A column of texts: one code a row, into ``words``, which are sorted so that codes sort as the texts do."""

    codes: NDArray[np.int32]
    words: tuple[str, ...]

    def at(self, row: int) -> str:
        return self.words[self.codes[row]]


@dataclass(frozen=True)
class KernelTable:
    """The kernels of one run, in the order of their start. A row's number is the id of its kernel in addresses."""

    run: str
    start_us: NDArray[np.float64]
    """From the start of the first kernel."""
    dur_us: NDArray[np.float64]
    stream: NDArray[np.int64]
    device: NDArray[np.int64]
    op: NDArray[np.int64]
    """Row of the run's table of ops; -1 where no op claims the kernel."""
    bytes: NDArray[np.float64]
    """Memory traffic from the shapes of the op, shared evenly among its kernels; NaN where it is not known."""
    name: Words
    op_name: Words
    module: Words
    module_class: Words
    source: Words
    """``file:line``."""
    phase: Words
    kind: Words
    """One of :data:`dashboard.data.kinds.KINDS`."""
    rule: Words
    """Rule and name of its finding (``FUS201 unfused-rms-norm``); empty where it is in none."""
    fingerprint: Words
    """Of its finding."""

    def __len__(self) -> int:
        return len(self.start_us)

    @property
    def nbytes(self) -> int:
        raise NotImplementedError


def kernel_table(ref: str = "latest") -> KernelTable:
    """The kernels of a run, loaded once. AuditError where there is no such run, or it has no table of kernels."""
    raise NotImplementedError
