"""What the API takes and gives. Times are in microseconds and sizes in bytes, unless a name says otherwise."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

TEXT = r"^[^\x00-\x1f\x7f]*$"
"""No control characters."""
ID = r"^[0-9a-z]{12}$"

Ref = Annotated[
    str,
    Path(
        pattern=r"^[^\x00-\x1f\x7f/]+$",
        max_length=255,
        description="A run: its id, the start of one, its name, or latest",
    ),
]
JobId = Annotated[str, Path(pattern=ID, description="A job's id")]
UploadId = Annotated[str, Path(pattern=ID, description="An upload's id")]
RuleId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$", description="A rule's id")]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most")]
Offset = Annotated[int, Query(ge=0, le=1_000_000_000, description="How many to leave out first")]
Text = Annotated[str, Query(max_length=255, pattern=TEXT)]


class Problem(BaseModel):
    """Why a request was not granted."""

    error: str = Field(description="One sentence: what, where, why, what to do")


class Health(BaseModel):
    status: Literal["ok"]
    version: str
    store: Literal["sqlite", "postgresql"]
    worker: bool = Field(description="Whether jobs are taken")


class Run(BaseModel):
    """A line of the list of runs."""

    model_config = ConfigDict(from_attributes=True)
    id: str
    name: str
    project: str
    source: str = Field(description="profile, trace or simulation")
    created: str = Field(description="ISO 8601, UTC")
    script: list[str]
    device: str
    exit_code: int
    findings: int
    kernels: int
    unfused_kernels: int
    avoidable_kernels: int
    step_us: float
    step_saving_us: float
    device_us: float
    memory_bound_us: float
    likely_us: float = Field(description="Device time that the findings would likely save")
    patched_from: str = Field(description="The run that was fixed, where this is the audit after it")


class Runs(BaseModel):
    total: int = Field(description="How many match, on all pages")
    runs: list[Run]


class RunDetail(Run):
    tables: list[str] = Field(description="Bulk tables that are stored with it")
    rerun: str = Field(description="Why this machine may not run its script again; empty where it may")


class Stored(BaseModel):
    id: str
    new: bool = Field(description="False where the run was here already")


class Saving(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    ideal_us: float
    likely_us: float
    step_us: float


class Source(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    file: str
    line: int
    function: str


class Finding(BaseModel):
    """A finding without its sites."""

    model_config = ConfigDict(from_attributes=True)
    rule: str
    name: str
    family: str
    severity: str
    fingerprint: str
    sites: int
    kernels: int
    kernels_after: int
    device_us: float
    bytes_now: int
    bytes_fused: int
    saving: Saving
    amdahl_cap: float
    provenance: str
    phase: str
    module_class: str
    modules: list[str]
    source: Source | None
    ops: list[str]
    replacement: str | None
    dtype: str


class Findings(BaseModel):
    total: int
    findings: list[Finding]


class Site(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    ops: list[int]
    module: str
    source: Source | None
    kernels: int
    kernels_after: int
    device_us: float
    bytes_now: int
    bytes_fused: int
    saving: Saving
    inputs: list[int]
    outputs: list[int]
    saved: list[int]
    variant: dict[str, str]
    formula: str


class FindingDetail(Finding):
    graph: str = Field(description="SSA text of the first site")
    places: list[Site]


class Kernel(BaseModel):
    kernel: int = Field(description="Its number in the run, by start")
    name: str
    op_name: str
    module: str
    module_class: str
    source: str
    phase: str
    kind: str
    rule: str
    fingerprint: str = Field(description="Of the finding that claims it; empty for none")
    dur_us: float
    start_us: float
    stream: int
    device: int


class Kernels(BaseModel):
    total: int = Field(description="How many match, on all pages")
    dur_us: float = Field(description="What those take in all")
    kernels: list[Kernel]


class Upload(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    id: str
    name: str
    kind: str = Field(description="json or json.gz, by what is in it")
    nbytes: int
    sha256: str
    execution_trace: str
    created: str


class Uploads(BaseModel):
    uploads: list[Upload]


class JobOptions(BaseModel):
    """The closed list of what a job may be told. No path and no command is among it."""

    model_config = ConfigDict(extra="forbid")
    select: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]] = Field(default=[], max_length=200)
    min_gain: float = Field(default=0.0, ge=0, le=10, description="Gain below which nothing is kept; a share")
    keep_all: bool = False
    limit: int | None = Field(default=None, ge=0, le=1_000_000, description="Sites to patch at most")
    steps: int = Field(default=5, ge=1, le=10_000, description="Steps to time in an audit")


class NewJob(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["fix", "audit", "import"]
    run: str = Field(pattern=ID, description="The run that it is about; of an import the upload")
    options: JobOptions = JobOptions()


class Job(BaseModel):
    id: str
    kind: Literal["fix", "audit", "import"]
    run: str
    files: list[str] = Field(description="Of an import: what the trace is called, and then its execution trace")
    options: JobOptions
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    progress: str
    reason: str
    result_run: str
    retry_of: str
    created: str
    started: str
    ended: str


class JobList(BaseModel):
    jobs: list[Job]


class Log(BaseModel):
    text: str = Field(description="What the work printed, control characters as escapes")
    next: int = Field(description="Where to go on from")


class Rule(BaseModel):
    id: str
    name: str
    family: str
    severity: str = Field(description="As it is set, else the rule's own")
    enabled: bool
    replacement: str | None
    docs: dict[str, str]


class Rules(BaseModel):
    rules: list[Rule]


class RuleSetting(BaseModel):
    model_config = ConfigDict(extra="forbid")
    enabled: bool = True
    severity: Literal["", "error", "warning", "info"] = Field(default="", description="Empty: the rule's own")


class Comparison(BaseModel):
    """Two runs by finding and by kernel."""

    before: dict[str, Any]
    after: dict[str, Any]
    findings: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    remarks: list[str]
