"""Audits of small graphs by the real engine, stored: what pages show in tests."""

from __future__ import annotations

from auditor.api import rules_of
from auditor.audit import audit_graph
from auditor.config import Config
from auditor.devices.describe import find_device
from auditor.document import DeviceInfo, Document, Run
from auditor.fix_document import FixDocument, FixedSite, FixMemory, FixTiming, Prediction, RatioInfo
from auditor.graph.model import Kernel, OpGraph, Source
from auditor.graph.ssa import parse
from auditor.graph.tables import to_tables
from auditor.store import Store

DEVICE = "NVIDIA H100 80GB HBM3"
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\"'&\u202e=cmd()"
NORMS = """
r: f32[2, 64, 256]
h: f32[2, 64, 256]
w: f32[256]
p: f32[256, 256]
s = aten.add(r, h)
sq = aten.pow(s, 2)
var = aten.mean(sq, [-1], True)
eps = aten.add(var, 1e-06)
inv = aten.rsqrt(eps)
xn = aten.mul(s, inv)
y = aten.mul(w, xn)
m = aten.matmul(y, p)
g = aten.silu(m)
u = aten.mul(g, y)
next = aten.add(s, u)
return next
"""
"""A residual add with RMS norm, a product, and a gated activation."""
GATES = """
a: f32[2, 64, 256]
b: f32[2, 64, 256]
g = aten.silu(a)
u = aten.mul(g, b)
return u
"""
"""A gated activation alone: what is left of the model after its norm was fused."""


def graph(text: str = NORMS, *, source: str = "/models/llama.py", module: str = "layers.0.norm") -> OpGraph:
    """The graph of SSA text, each op with one kernel of some microseconds."""
    found = parse(text)
    found.device_kind, found.device_name, found.step_us = "cuda", DEVICE, 400.0
    for number, op in enumerate(found.ops):
        op.kernels = (Kernel(f"{op.name}_kernel", start_us=30.0 * number, dur_us=20.0 + number, stream=7),)
        op.module, op.module_class, op.source = module, "Norm", Source(source, 10 + number, "forward")
    return found


def audited(op_graph: OpGraph, **run: object) -> Document:
    """What the engine says of a graph."""
    facts: dict[str, object] = {"name": "llama", "source": "profile", "script": ["train.py"], "torch": "2.13.0"} | run
    device = find_device(DEVICE, "cuda")
    assert device is not None
    audit = audit_graph(op_graph, rules=rules_of(Config()), device=device, config=Config(), run=Run(**facts))  # type: ignore[arg-type]
    audit.document.run.device = DeviceInfo(
        name=DEVICE, kind="cuda", peak_gbps=device.peak_gbps or 0.0, described_as=device.name
    )
    return audit.document


def save(store: Store, text: str = NORMS, *, source: str = "/models/llama.py", module: str = "", **run: object) -> str:
    """Audit a graph and store it. Returns the run's id."""
    of = graph(text, source=source, module=module or "layers.0.norm")
    return store.save(audited(of, **run), to_tables(of))


def save_fix(store: Store, run: str, plan: str = "") -> FixDocument:
    """A fix of the first finding of ``run`` that kept its site, with the audit after it."""
    before = store.load(run).document
    finding = before.findings[0]
    after = graph(GATES)
    document = audited(after, name=f"{before.run.name}-patched")
    fix = FixDocument(
        run=run, script=["train.py"], model="Llama", before=before.totals, after=document.totals,
        sites=[
            FixedSite(
                rule=finding.rule, module=finding.modules[0], tier=2, replacement="add_rms_norm", provider="triton",
                state="kept", calls=1, kernels=7, error=2e-7, eager_error=3e-7,
                gain=RatioInfo(ratio=2.5, low=2.4, high=2.6), before_us=150.0, after_us=60.0,
            )
        ],
        timing=FixTiming(
            eager_us=400.0, patched_us=300.0, compile_us=320.0, rounds=21, patched_first_us=2e6, compile_first_us=1e6,
            patched_vs_eager=RatioInfo(ratio=1.33, low=1.30, high=1.36),
            compile_vs_eager=RatioInfo(ratio=1.25, low=1.20, high=1.30),
        ),
        memory=FixMemory(eager_bytes=3_000_000, patched_bytes=1_000_000, compile_bytes=2_000_000),
        predictions=[Prediction(rule=finding.rule, sites=1, predicted_us=90.0, measured_us=90.0, predicted_share=0.6,
                                measured_share=0.6, before_us=150.0, after_us=60.0, after_predicted_us=66.0)],
        amdahl_cap=2.0, predicted_us=90.0, measured_us=100.0, verified=True, verification="on captured inputs",
        plan=plan,
    )  # fmt: skip
    store.save_fix(fix, (document, to_tables(after)))
    return fix


def finding_of(store: Store, run: str) -> str:
    """The fingerprint of a run's first finding."""
    return store.load(run).document.findings[0].fingerprint
