"""The fix document, schema ``fusion-fix/1``: what became of every site, and what the model gained.

Plain data. Times in microseconds of one step, sizes in bytes. Fields may be added; these keep their names and meaning.
"""

from __future__ import annotations

import msgspec

from auditor.document import Totals

SCHEMA = "fusion-fix/1"


class RatioInfo(msgspec.Struct, kw_only=True):
    """How many times as fast, with its 95 % interval; 0 where it was not measured."""

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0


NOT_SELECTED = "its rule is not selected"
"""The reason of sites that a fix was not asked to try."""


class FixedSite(msgspec.Struct, kw_only=True):
    """One site and its state: ``kept``, ``rolled_back``, ``refused`` or ``failed``.

    ``rolled_back``: it was right, and did not win. ``refused``: it is out of reach, or its rule was not chosen.
    ``failed``: it was not exact enough, raised, or was applied and never called.
    """

    rule: str
    module: str
    tier: int = 0
    replacement: str = ""
    provider: str = ""
    options: dict[str, object] = {}
    state: str = "refused"
    reason: str = ""
    calls: int = 0
    """How often the replacement ran in one step after it was applied."""
    kernels: int = 0
    """Kernels that it stands for."""
    error: float = 0.0
    eager_error: float = 0.0
    """Largest difference from the result in higher precision, as a share of its RMS."""
    gain: RatioInfo = msgspec.field(default_factory=RatioInfo)
    before_us: float = 0.0
    after_us: float = 0.0
    """The site alone: the separate ops, and what took their place."""
    predicted_share: float | None = None
    """Share of the site's time that the audit expected to save; None where the audit has no such site."""


class Prediction(msgspec.Struct, kw_only=True):
    """Of one rule: what the audit predicted for the sites that were measured, and what was measured.

    The two are of different runs, between which a machine changes its pace; as shares of the time before they compare.
    """

    rule: str
    sites: int = 0
    predicted_us: float = 0.0
    measured_us: float = 0.0
    predicted_share: float = 0.0
    measured_share: float = 0.0
    """Saved of the sites' time before, in the audit's recording and in the measurement."""
    before_us: float = 0.0
    after_us: float = 0.0
    """Of all these sites, as measured."""
    after_predicted_us: float = 0.0
    """``before_us`` less the share of each site that was predicted: at the pace of the measurement."""


class PredictionError(msgspec.Struct, kw_only=True):
    """How far the predicted times of fused sites are from those measured, kept and rolled-back sites alike.

    What was predicted is brought to the pace of the measurement: the time before, measured, less the predicted share.
    """

    sites: int = 0
    median: float = 0.0
    worst: float = 0.0
    """As shares of the time measured after."""


class FixTiming(msgspec.Struct, kw_only=True):
    """One step of the model: as it is, patched, and under ``torch.compile``, taken in turns.

    Figures are 0 where there are none: of a patched step where nothing was applied, of a compiler that failed.
    """

    eager_us: float = 0.0
    patched_us: float = 0.0
    compile_us: float = 0.0
    patched_vs_eager: RatioInfo = msgspec.field(default_factory=RatioInfo)
    compile_vs_eager: RatioInfo = msgspec.field(default_factory=RatioInfo)
    patched_first_us: float = 0.0
    compile_first_us: float = 0.0
    """Wall time of the first call, which compiles."""
    rounds: int = 0


class FixMemory(msgspec.Struct, kw_only=True):
    """Extra peak memory of one step."""

    eager_bytes: int = 0
    patched_bytes: int = 0
    compile_bytes: int = 0


class Recommendation(msgspec.Struct, kw_only=True):
    """What to do where the fix is not ours to apply. ``evidence`` is what was measured or seen."""

    what: str
    evidence: str


class FixDocument(msgspec.Struct, kw_only=True):
    """What ``fusion-audit fix`` found and did."""

    schema: str = SCHEMA
    run: str = ""
    """The audited run."""
    after_run: str = ""
    """The audit of the patched script; empty where nothing was kept."""
    created: str = ""
    script: list[str] = []
    model: str = ""
    kind: str = "inference"
    before: Totals = msgspec.field(default_factory=Totals)
    after: Totals = msgspec.field(default_factory=Totals)
    sites: list[FixedSite] = []
    timing: FixTiming = msgspec.field(default_factory=FixTiming)
    memory: FixMemory = msgspec.field(default_factory=FixMemory)
    amdahl_cap: float = 1.0
    predicted_us: float = 0.0
    """Step time that the audit expected to save by the sites that were kept."""
    measured_us: float = 0.0
    """Step time saved: eager − patched."""
    predictions: list[Prediction] = []
    prediction_error: PredictionError = msgspec.field(default_factory=PredictionError)
    verified: bool = False
    verification: str = ""
    """Why the model as a whole was not right, where it was not; else how it was verified, in words."""
    compiles: int = 0
    graph_breaks: list[str] = []
    recommendations: list[Recommendation] = []
    notes: list[str] = []
    limit: int | None = None
    """The most sites that were to be kept; None where that was not limited."""
    failure: str = ""
    """What kept us from looking at all of the model, or from going on: then nothing kept says nothing of the model."""
    exit_code: int = 0
    """The script's own, when it failed after all was measured."""
    dry: bool = False
    """Nothing was measured, and sites have no figures: ``kept`` are those that would be tried."""
    diff: str = ""
    """Suggested changes of the user's own source, as a unified diff."""
    changed: list[str] = []
    """Files that these changes were written into."""
    plan: str = ""
    """Where the plan was written; empty where nothing was kept."""
