"""Two runs side by side, by finding and by kernel: gone, new, slower, faster."""

from __future__ import annotations

from typing import Literal

import msgspec

Change = Literal["gone", "new", "slower", "faster", "same"]
WITHIN = 0.05
"""Times that differ by less than this share are the same: a machine's pace varies by as much."""


class FindingChange(msgspec.Struct, kw_only=True, frozen=True):
    """One fingerprint in two runs; what a run does not have is 0. Times in microseconds a step."""

    change: Change
    fingerprint: str
    rule: str
    name: str
    module_class: str
    source: str
    sites: tuple[int, int]
    kernels: tuple[int, int]
    avoidable: tuple[int, int]
    device_us: tuple[float, float]
    likely_us: tuple[float, float]


class KernelChange(msgspec.Struct, kw_only=True, frozen=True):
    """Kernels of one name in two runs."""

    change: Change
    name: str
    kind: str
    kernels: tuple[float, float]
    """A step."""
    dur_us: tuple[float, float]
    """A step."""


class RunFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What is compared of the runs as a whole, a step each."""

    id: str
    name: str
    created: str
    device: str
    steps: int
    step_us: float
    device_us: float
    memory_bound_us: float
    kernels: float
    unfused_kernels: float
    avoidable_kernels: float
    likely_us: float


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    before: RunFacts
    after: RunFacts
    findings: list[FindingChange]
    """The largest difference in time first."""
    kernels: list[KernelChange]
    remarks: list[str]
    """What makes the two runs hard to compare: another device, another number of steps."""


def compare(before: str, after: str, within: float = WITHIN) -> Comparison:
    """Compare two runs. AuditError where one of them is not there."""
    raise NotImplementedError
