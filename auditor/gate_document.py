"""What the gate says of a run, schema ``fusion-audit-gate/1``, and the baseline that it compares with.

Plain data, all of one step. Sizes in bytes, times in microseconds, shares from 0 to 1. Fields may be added; these keep
their names and meaning.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "fusion-audit-gate/1"
DIFF = "fusion-audit-diff/1"
BASELINE = "fusion-audit-baseline/1"

Change = Literal["new", "fixed", "more", "fewer", "same"]
Unit = Literal["count", "bytes", "share", "us"]
Status = Literal["failed", "warned", "passed", "skipped"]
PairedBy = Literal["kernel", "module and shapes", "module", "class and shapes", "shapes", "class", "op", "family", ""]
Verdict = Literal["worse", "better", "same", "unknown"]


class Place(msgspec.Struct, kw_only=True, frozen=True):
    """A line of source. ``file`` is as the run knew it, but for a baseline's: from the repository's root."""

    file: str = ""
    line: int = 0
    function: str = ""


class Head(msgspec.Struct, kw_only=True, frozen=True):
    """Which run it is, and what has to be equal for two of them to be compared."""

    id: str = ""
    name: str = ""
    created: str = ""
    commit: str = ""
    device: str = ""
    kind: str = "cpu"
    torch: str = ""
    edges: str = "observed"
    steps: int = 1
    """That the recording holds; every figure here is of one."""
    select: list[str] = []
    ignore: list[str] = []
    world_size: int = 1
    alike: bool = True
    """Processes of the job, and whether all that were recorded ran the same kernels and have the same findings."""
    rank: int = 0
    """The rank that figures and findings are of."""
    unrecorded: list[int] = []
    """Ranks of which nothing was recorded."""


class Figures(msgspec.Struct, kw_only=True, frozen=True):
    """What a run adds up to, a step. None: not known of this run. The last two are measured, and never quite equal."""

    unfused_kernels: float = 0
    avoidable_kernels: float = 0
    kernels: float = 0
    bytes: float = 0
    peak_memory: float | None = None
    memory_bound_share: float | None = None
    step_us: float | None = None


class Found(msgspec.Struct, kw_only=True, frozen=True):
    """The findings of one fingerprint, taken together. Counts, bytes and times a step."""

    fingerprint: str
    rule: str = ""
    name: str = ""
    module_class: str = ""
    phase: str = "forward"
    source: Place | None = None
    modules: list[str] = []
    """The first few of them."""
    kind: str = ""
    """What it is, wherever it is: a few digits of its rule, phase, ops and variant."""
    sites: float = 0
    kernels: float = 0
    avoidable: float = 0
    bytes: float = 0
    device_us: float = 0.0
    likely_us: float = 0.0
    step_us: float = 0.0
    """Device time, and of it what fusing would likely save; wall time of the step that this is worth. 0 in files."""


class RankSnapshot(msgspec.Struct, kw_only=True, frozen=True):
    """What ranks of a job have that are not like the one that its run shows."""

    ranks: list[int]
    figures: Figures
    findings: list[Found] = []


class Snapshot(msgspec.Struct, kw_only=True, frozen=True):
    """All that a gate needs of a run: a baseline file holds one, and a stored run gives one."""

    schema: str = BASELINE
    run: Head = msgspec.field(default_factory=Head)
    figures: Figures = msgspec.field(default_factory=Figures)
    findings: list[Found] = []
    """In order of rule and fingerprint."""
    ranks: list[RankSnapshot] = []
    """Ranks that differ from the one that the rest is of, those that are alike together."""

    def of_rank(self, rank: int) -> Snapshot | None:
        """What ``rank`` has: its own part, or that of the rank which it is like; None: nothing was recorded of it."""
        if rank in self.run.unrecorded:
            return None
        run = msgspec.structs.replace(self.run, rank=rank) if rank < self.run.world_size else self.run
        for part in self.ranks:
            if rank in part.ranks:
                return Snapshot(run=run, figures=part.figures, findings=part.findings)
        return msgspec.structs.replace(self, run=run, ranks=[])


class Spread(msgspec.Struct, kw_only=True, frozen=True):
    """A measured figure over the stored runs of one program: their median, and its 95 % interval (None: of one run)."""

    runs: int = 1
    median: float = 0.0
    low: float | None = None
    high: float | None = None


class FindingChange(msgspec.Struct, kw_only=True, frozen=True):
    """One fingerprint in two runs (before, after); what a run does not have is 0."""

    change: Change
    fingerprint: str
    rule: str
    name: str
    module_class: str
    source: Place | None
    modules: list[str]
    sites: tuple[float, float]
    kernels: tuple[float, float]
    avoidable: tuple[float, float]
    bytes: tuple[float, float]
    device_us: tuple[float, float]
    likely_us: tuple[float, float]
    step_us: tuple[float, float]
    after: str = ""
    """Its fingerprint in the run after, which is another where its place was lost or its class renamed."""


class Measure(msgspec.Struct, kw_only=True, frozen=True):
    """One figure of two runs; less is better. ``counted``: the same in every run of one program, as no time is."""

    key: str
    label: str
    unit: Unit
    counted: bool
    before: float | None
    after: float | None
    verdict: Verdict
    spreads: tuple[Spread | None, Spread | None] = (None, None)
    """Of what is measured: ``before`` and ``after`` are the medians."""


class KernelChange(msgspec.Struct, kw_only=True, frozen=True):
    """Ops that are one in two runs (before, after), whatever their kernels are called. Counts and times a step."""

    paired_by: PairedBy
    """What they have in common beside op and phase; nothing: only one run has them."""
    op: str
    """``aten.batch_norm`` of cuDNN's and MIOpen's alike; empty of kernels that no op holds."""
    phase: str = ""
    family: str = ""
    module: str = ""
    """Path or class of their module, ``*`` for numbers in it."""
    shapes: str = ""
    """Of what they read, where it is one."""
    ops: tuple[float, float] = (0.0, 0.0)
    """Calls."""
    kernels: tuple[float, float] = (0.0, 0.0)
    device_us: tuple[float, float] = (0.0, 0.0)
    ratio: float | None = None
    """Device time after to before."""
    names: tuple[list[str], list[str]] = ([], [])
    """Names of the kernels, the longest-running first; the first few of them."""


class KernelTable(msgspec.Struct, kw_only=True, frozen=True):
    """The kernels of two runs by op; the rows add up to the total, and that to the runs' own a step."""

    by: Literal["op", "kernel"]
    rows: list[KernelChange]
    """The largest difference in time first."""
    total: KernelChange
    left_out: tuple[int, int] = (0, 0)
    """Kernels of each recording that belong to no whole step of it: they are not counted."""


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    """A run (after) against another (before)."""

    schema: str = DIFF
    before: Head
    after: Head
    measures: list[Measure]
    findings: list[FindingChange]
    """What got worse first: new, more, fewer, fixed, same; the largest change in kernels first."""
    remarks: list[str]
    kernels: KernelTable | None = None
    """Where it was asked for by op or by kernel."""


class Culprit(msgspec.Struct, kw_only=True, frozen=True):
    """A finding that a limit counts: where it is, and what it has more than it may."""

    fingerprint: str
    rule: str
    name: str
    what: str
    """``new: 2 sites, 14 kernels (12 avoidable)``, in words that name nothing from the run."""
    module: str = ""
    source: Place | None = None
    step_us: float = 0.0
    likely_us: float = 0.0
    """What fusing it would likely save: wall time of the step, and device time."""


class Check(msgspec.Struct, kw_only=True, frozen=True):
    """One limit, and whether the run keeps it."""

    id: str
    """Unique in the document: ``max_kernels``, ``budgets[2].max_bytes``, ``require[1]``."""
    key: str
    title: str
    """The limit in words: ``unfused kernels of FUS201 in model.*``."""
    status: Status
    unit: Unit = "count"
    value: float | None = None
    limit: float | None = None
    before: float | None = None
    """Of the baseline, where the limit is an increase."""
    spread: Spread | None = None
    """Of what is measured: ``value`` is its median."""
    message: str
    file: str = ""
    line: int = 0
    """Where the limit is set; no file: nobody set it, it holds by default."""
    culprits: list[Culprit] = []


class RuleText(msgspec.Struct, kw_only=True, frozen=True):
    """What a rule is about, for formats that explain rules."""

    id: str
    name: str
    what: str
    why: str


class Point(msgspec.Struct, kw_only=True, frozen=True):
    """A stored run of the same name and device."""

    id: str
    created: str
    kernels: int
    unfused_kernels: int
    avoidable_kernels: int
    step_us: float


class GateDocument(msgspec.Struct, kw_only=True):
    """Everything that the gate found out; ``passed`` is what the exit code says."""

    schema: str = SCHEMA
    passed: bool = True
    run: Head = msgspec.field(default_factory=Head)
    figures: Figures = msgspec.field(default_factory=Figures)
    baseline: str = ""
    """Where the baseline comes from: a run, a file or an address."""
    comparison: Comparison | None = None
    checks: list[Check] = []
    remarks: list[str] = []
    next: list[str] = []
    """Commands to run now, ready to paste."""
    rules: list[RuleText] = []
    trend: list[Point] = []
    """The last stored runs up to this one, the oldest first."""
    root: str = ""
    """Folder of the repository: formats give paths from here."""
