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
    avoidable_kernels: Amount | None = None
    kernels: Amount | None = None
    bytes: Amount | None = None
    peak_memory: Amount | None = None
    memory_bound_share: Amount | None = None
    step_us: Amount | None = None


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The most that a run may have, a step: kernels, bytes moved, bytes alive, share of kernel time, wall time."""

    max_unfused_kernels: Amount | None = None
    max_avoidable_kernels: Amount | None = None
    max_kernels: Amount | None = None
    max_bytes: Amount | None = None
    max_peak_memory: Amount | None = None
    max_memory_bound_share: Amount | None = None
    max_step_us: Amount | None = None
    max_increase: Increase | None = None


class Entry(Limits, kw_only=True, frozen=True):
    """Limits for a part: runs by name, sites by module (globs), findings by rule (id, start of one, or name)."""

    model: Text | None = None
    modules: Text | None = None
    rule: Text | None = None


class Requirement(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A fused kernel that has to run: that of a rule, of a replacement, or one by the glob of its name."""

    rule: Text | None = None
    kernel: Text | None = None
    replacement: Text | None = None
    modules: Text | None = None
    at_least: int = 1


class Budget(Limits, kw_only=True, frozen=True):
    """Everything that is demanded."""

    budgets: list[Entry] = []
    require: list[Requirement] = []
