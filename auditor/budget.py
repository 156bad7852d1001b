"""What a project demands of its runs, as it is written in ``pyproject.toml`` or in a file of budgets.

Structure only: what the values mean, and which of them make sense together, is told by :mod:`auditor.gate.budget`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Amount = int | float | str
"""A number, or text such as ``1.2 GB`` or ``60 %``."""


class Increase(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How much more than in the baseline is allowed: in the measure's own unit, or ``2 %`` of what was."""

    unfused_kernels: Amount | None = None
    """More kernels in findings."""
    avoidable_kernels: Amount | None = None
    """More of them that fusing would do away with."""
    kernels: Amount | None = None
    """More kernels in all."""
    bytes: Amount | None = None
    """More bytes moved by kernels."""
    peak_memory: Amount | None = None
    """More bytes alive at once."""
    memory_bound_share: Amount | None = None
    """A larger share of the kernel time that is memory-bound, in points. Warns."""
    step_us: Amount | None = None
    """More wall time of a step. Warns."""


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The most that a run may have, a step: kernels, bytes moved, bytes alive, share of kernel time, wall time."""

    max_unfused_kernels: Amount | None = None
    """Kernels in findings. Fails."""
    max_avoidable_kernels: Amount | None = None
    """Kernels that fusing every finding would do away with. Fails."""
    max_kernels: Amount | None = None
    """Kernels in all. Fails."""
    max_bytes: Amount | None = None
    """Bytes that kernels read and write. Fails."""
    max_peak_memory: Amount | None = None
    """Bytes of tensors alive at once, from the graph, without what an allocator adds. Fails."""
    max_memory_bound_share: Amount | None = None
    """Share of the kernel time that is memory-bound. Warns: times are noisy."""
    max_step_us: Amount | None = None
    """Wall time of a step, the median of the stored runs of the same program: ``12 ms``. Warns."""
    max_increase: Increase | None = None
    """Over the baseline. Without this table no count and no bytes may grow, and peak memory by 1 %."""


class Entry(Limits, kw_only=True, frozen=True):
    """Limits for a part: runs by name, sites by module (globs), findings by rule (id, start of one, or name)."""

    model: Text | None = None
    """Glob of run names."""
    modules: Text | None = None
    """Glob of module paths."""
    rule: Text | None = None
    """Id of a rule, the start of one, or its name."""


class Requirement(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A fused kernel that has to run: that of a rule, of a replacement, or one by the glob of its name."""

    rule: Text | None = None
    """The fused kernels of this rule."""
    kernel: Text | None = None
    """Kernels whose name matches this glob."""
    replacement: Text | None = None
    """The op of this replacement."""
    modules: Text | None = None
    """Only in modules that match this glob."""
    at_least: int = 1
    """How many of them have to run in a step."""


class Budget(Limits, kw_only=True, frozen=True):
    """Everything that is demanded."""

    budgets: list[Entry] = []
    """Limits for parts of a run."""
    require: list[Requirement] = []
    """Fused kernels that have to run."""
