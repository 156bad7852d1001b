"""The audit document, schema ``fusion-audit/1``: the contract that everything downstream reads.

Plain data. Counts are per recorded step for a profile and over the whole file for a trace. Times in
microseconds, sizes in bytes. Fields may be added; these keep their names and meaning.
"""

from __future__ import annotations

import msgspec

SCHEMA = "fusion-audit/1"


class DeviceInfo(msgspec.Struct, kw_only=True):
    name: str = ""
    kind: str = "cpu"
    peak_gbps: float = 0.0
    """Memory bandwidth in GB/s (1e9): a GPU's data sheet, this machine's calibrated copy; 0 if unknown."""
    described_as: str = ""
    """Name of the description that the figures are from; ``""`` where there was none."""


class Run(msgspec.Struct, kw_only=True):
    id: str = ""
    name: str = ""
    source: str = "profile"  # profile | trace | simulation
    created: str = ""  # ISO 8601, UTC
    script: list[str] = []
    torch: str = ""
    device: DeviceInfo = msgspec.field(default_factory=DeviceInfo)
    exit_code: int = 0
    notes: list[str] = []
    """Sentences a reader must know: a pass that disagreed, missing source lines, a failed script."""
    select: list[str] = []
    ignore: list[str] = []
    """Rules that the settings chose and left out; nothing selected: every rule."""
    project: str = ""
    """What the runs of one code base have in common: its name in ``pyproject.toml``, or that of its folder."""
    patched_from: str = ""
    """Id of the run that was fixed, where this one was recorded under the plan of that fix."""
    plan: str = ""
    """Path of the plan that was applied while this was recorded."""
    commit: str = ""
    """Commit of the project that ran, ``-dirty`` behind it where tracked files were changed; empty outside of git."""
    plan_sites: int = 0
    plan_applied: int = 0
    """Sites that the plan keeps, and how many of them were applied."""
    world_size: int = 1
    """Processes of the job, such as `torchrun` starts; the run has a part of each, told in ``Document.ranks``."""
    rank: int = 0
    """The rank that findings, totals and everything else outside of ``Document.ranks`` are of."""


class Overhead(msgspec.Struct, kw_only=True):
    """Wall time of a step with nothing attached, with the plain profiler, and in the graph pass."""

    bare_us: float = 0.0
    timing_us: float = 0.0
    graph_us: float = 0.0


class CoverageInfo(msgspec.Struct, kw_only=True):
    kernels: int = 0
    """Kernels in all."""
    linked: int = 0
    """Those that an op is known for."""
    before_window: int = 0
    """Launched before the recording began."""
    graph_replayed: int = 0
    """Replayed from CUDA graphs."""
    outside_ops: int = 0
    """Launched outside of any op."""
    unattributed: int = 0
    """The trace does not tell which launch is theirs: no correlation id, one that several processes gave, or no launch
    in the whole file."""
    partial: bool = False
    """The trace is cut off or damaged: counts and times are of what was whole (``import --salvage``)."""
    edges: str = "observed"
    """How the edges between ops are known: observed, traced, simulated or inferred."""
    steps: int = 1
    """Steps that the counts are over: the whole ones of a trace, 1 of a recorded run."""


class Saving(msgspec.Struct, kw_only=True):
    ideal_us: float = 0.0
    """Device time saved if the fused kernels ran at the device's peak bandwidth."""
    likely_us: float = 0.0
    """Device time saved at the bandwidth that these very kernels reached."""
    step_us: float = 0.0
    """Wall time of the step that *likely* would save: device time counts only where the device is the bottleneck."""


class TotalSaving(Saving, kw_only=True):
    bytes: int = 0
    amdahl_cap: float = 1.0
    """Upper bound of the step's speed-up if every finding cost nothing: step / (step - time in findings)."""


class Totals(msgspec.Struct, kw_only=True):
    kernels: int = 0
    """Kernels in all, transfers left out."""
    memory_bound_kernels: int = 0
    """All but GEMMs, convolutions, attention and collectives: by op, and where that says nothing by name; kernels
    that neither tells of are not counted."""
    unfused_kernels: int = 0
    """Kernels in findings."""
    avoidable_kernels: int = 0
    """Those that fusing every finding would do away with."""
    already_fused_kernels: int = 0
    """Kernels that are fused ones, by their name or as ops of our replacements; ``Document.live`` has them."""
    device_us: float = 0.0
    """Sum of the kernels' times."""
    step_us: float = 0.0
    """Wall time of a step; 0 where it is not known."""
    memory_bound_us: float = 0.0
    """Time of the memory-bound kernels."""
    idle_us: float = 0.0
    """Wall time in which no kernel ran."""
    bytes: int = 0
    """Bytes that all kernels read and write."""
    peak_bytes: int = 0
    """Largest sum of the bytes of tensors alive at one op: from the graph, so without an allocator's own."""
    collective_kernels: int = 0
    collective_us: float = 0.0
    """Kernels that talk to other processes, and their time, waiting for these included; never memory-bound."""
    saving: TotalSaving = msgspec.field(default_factory=TotalSaving)


class StepFigures(msgspec.Struct, kw_only=True):
    """One step of a trace: its kernels are those that the host launched in it, whenever they ran."""

    name: str = ""
    """As the trace calls it, or ``step 3``."""
    complete: bool = True
    """False: the window opened or closed in it."""
    kernels: int = 0
    memory_bound_kernels: int = 0
    unfused_kernels: int = 0
    avoidable_kernels: int = 0
    device_us: float = 0.0
    memory_bound_us: float = 0.0
    step_us: float = 0.0
    """From its first kernel to the first of the next step; of the last, to the end of its kernels or of its range."""
    idle_us: float = 0.0
    """Of that, the time in which none of its kernels ran."""
    bytes: int = 0
    likely_us: float = 0.0
    """Device time that fusing its sites would likely save."""


class Steps(msgspec.Struct, kw_only=True):
    """The steps of a trace. Kernels, times and bytes of ``each`` and ``outside`` add up to the totals."""

    by: str = ""
    """What told them: profiler, annotation, optimizer, data loader, modules, repetition, or likeness."""
    marker: str = ""
    """Its name in the trace."""
    each: list[StepFigures] = []
    median: StepFigures = msgspec.field(default_factory=StepFigures)
    """Of the complete ones, figure by figure."""
    outside: StepFigures = msgspec.field(default_factory=StepFigures)
    """What belongs to none of them, such as kernels launched before the window."""


class FamilyTotal(msgspec.Struct, kw_only=True):
    """The kernels of one family, by their names; by their ops where a name says nothing."""

    family: str
    """gemm (convolutions too), attention, elementwise, reduction, norm, softmax, copy, gather, sort, random,
    optimizer, collective, memcpy, memset; ``other``: nothing is known of them."""
    kernels: int = 0
    device_us: float = 0.0


class LiveFusion(msgspec.Struct, kw_only=True):
    """Kernels that are fused as they are, so no finding has them."""

    library: str = ""
    """Who made them: a library, a compiler (Inductor), ``fused_replacements``; empty: the name does not tell."""
    what: str = ""
    """What each of them does in one kernel."""
    kernels: int = 0
    device_us: float = 0.0
    names: list[str] = []
    """Some of their names, each cut at 300 characters."""


class Unplaced(msgspec.Struct, kw_only=True):
    """Kernels of one name that is of no known family, and whose op is not known either."""

    name: str
    kernels: int = 0
    device_us: float = 0.0


class SourceInfo(msgspec.Struct, kw_only=True):
    file: str = ""
    line: int = 0
    function: str = ""


class Site(msgspec.Struct, kw_only=True):
    """One place where a rule matched. ``ops`` are indices into the run's op table, in order; none where only the names
    of its kernels are known.
    """

    ops: list[int]
    unlinked: list[int] = []
    """Indices into the run's kernels that no op is known for, in order; empty where the ops are known."""
    module: str = ""
    source: SourceInfo | None = None
    kernels: int = 0
    kernels_after: int = 1
    device_us: float = 0.0
    bytes_now: int = 0
    bytes_fused: int = 0
    saving: Saving = msgspec.field(default_factory=Saving)
    inputs: list[int] = []
    outputs: list[int] = []
    """Value ids that the fused kernel would read and write; ``saved`` are the outputs only backward reads."""
    saved: list[int] = []
    variant: dict[str, str] = {}
    formula: str = ""
    """How the saving was computed, with its numbers."""
    step: int = -1
    """Index in the steps of the document; -1: in none, or the document has none."""


class Finding(msgspec.Struct, kw_only=True):
    rule: str
    name: str
    family: str
    severity: str = "warning"
    fingerprint: str = ""
    """The same in runs of the same code: it survives renumbered layers and moved lines."""
    sites: int = 0
    """Places; ``places`` has each of them."""
    kernels: int = 0
    """Kernels of all sites, now."""
    kernels_after: int = 0
    """Kernels that would remain of them."""
    device_us: float = 0.0
    """Time of these kernels, now."""
    bytes_now: int = 0
    """Bytes that these kernels read and write; 0 for sites that are known by names and order only (no shapes)."""
    bytes_fused: int = 0
    """Bytes that the fused kernels would."""
    saving: Saving = msgspec.field(default_factory=Saving)
    amdahl_cap: float = 1.0
    """Upper bound of the step's speed-up if these kernels cost nothing."""
    provenance: str = "observed"
    """How its edges are known."""
    phase: str = "forward"
    """forward, backward or optimizer."""
    module_class: str = ""
    modules: list[str] = []
    source: SourceInfo | None = None
    ops: list[str] = []
    """Canonical ops of a site, in order."""
    replacement: str | None = None
    """Name in ``fused_replacements``; None where the rule names none."""
    instead: str = ""
    """What to write, where no replacement of kernels in a model mends it: an argument of an optimizer, a graph."""
    dtype: str = ""
    variant: dict[str, str] = {}
    graph: str = ""
    """SSA text of the first site."""
    places: list[Site] = []


class Refused(msgspec.Struct, kw_only=True):
    rule: str
    reason: str
    """Why the fusion is not legal."""
    at: str
    """``module`` (or source line, or op) of the first place."""
    count: int = 1
    op: int = -1
    """Index of the op that forbids the fusion."""
    ops: list[int] = []


class Suppressed(msgspec.Struct, kw_only=True):
    rule: str
    modules: str
    reason: str
    sites: int = 0
    """0: it suppresses nothing any more, and is reported."""


class RankFinding(msgspec.Struct, kw_only=True):
    """A finding of one rank, in short."""

    fingerprint: str
    rule: str
    name: str
    module_class: str = ""
    source: SourceInfo | None = None
    sites: int = 0
    kernels: int = 0
    kernels_after: int = 0
    bytes_now: int = 0
    kind: str = ""
    """What it is, wherever it is: a few digits of its rule, phase, ops and variant. Empty in older audits."""


class Rank(msgspec.Struct, kw_only=True):
    """What one process of the job recorded."""

    rank: int
    local_rank: int = -1
    """Its number on its machine; -1: not known."""
    host: str = ""
    pid: int = 0
    status: str = "recorded"  # recorded | failed | missing
    """``failed``: its script failed, and what it had recorded by then counts. ``missing``: nothing of it is known."""
    reason: str = ""
    """Why it failed or is missing, a sentence."""
    exit_code: int = 0
    recorded: bool = True
    """Whether a step of it was recorded: totals, coverage and findings of another rank say nothing."""
    device: DeviceInfo = msgspec.field(default_factory=DeviceInfo)
    coverage: CoverageInfo = msgspec.field(default_factory=CoverageInfo)
    totals: Totals = msgspec.field(default_factory=Totals)
    findings: list[RankFinding] = []
    notes: list[str] = []
    differs: list[str] = []
    """In what it differs from the rank that the document is of: counts, bytes, device; no times."""


class Document(msgspec.Struct, kw_only=True):
    schema: str = SCHEMA
    run: Run = msgspec.field(default_factory=Run)
    coverage: CoverageInfo = msgspec.field(default_factory=CoverageInfo)
    overhead: Overhead = msgspec.field(default_factory=Overhead)
    totals: Totals = msgspec.field(default_factory=Totals)
    findings: list[Finding] = []
    refused: list[Refused] = []
    suppressed: list[Suppressed] = []
    ranks: list[Rank] = []
    """Every process of the job, in order; empty where there was one."""
    steps: Steps | None = None
    """Of a trace in which steps could be told; the totals are over the whole file."""
    families: list[FamilyTotal] = []
    """Every kernel by its family, transfers left out."""
    live: list[LiveFusion] = []
    """Fusions that are live here, the longest time first."""
    unplaced: list[Unplaced] = []
    """Of the family ``other``: up to 50 names, the longest time first."""
