"""Audits of small graphs by the real engine, for the tests of the gate."""

from __future__ import annotations

from auditor.api import rules_of
from auditor.audit import audit_graph
from auditor.config import Config
from auditor.devices.describe import find_device
from auditor.document import Document, Run
from auditor.engine.rules import Rule
from auditor.graph.model import Kernel, OpGraph, Source
from auditor.graph.ssa import parse
from auditor.graph.tables import to_tables
from auditor.store import Store, StoredRun

DEVICE = "NVIDIA H100 80GB HBM3"
NORM = """
sq{0} = aten.pow(x, 2)
var{0} = aten.mean(sq{0}, [-1], True)
eps{0} = aten.add(var{0}, 1e-06)
inv{0} = aten.rsqrt(eps{0})
xn{0} = aten.mul(x, inv{0})
y{0} = aten.mul(xn{0}, w)
p{0} = aten.mm(y{0}, m)
"""
"""An RMS norm by hand and a product: seven kernels, of which six should be one."""
FUSED = """
y{0}: f32[256, 64] = fused_replacements.rms_norm(x, w, 1e-06)
p{0} = aten.mm(y{0}, m)
"""


def graph(norms: int = 1, *, fused: int = 0, source: str = "/repo/model.py", line: int = 10, first: int = 0) -> OpGraph:
    """``norms`` norms by hand and ``fused`` fused ones, in modules ``layers.<first>.norm`` and following."""
    parts = [(NORM, i) for i in range(norms)] + [(FUSED, norms + i) for i in range(fused)]
    body = "".join(text.format(i) for text, i in parts)
    results = ", ".join(f"p{i}" for i in range(norms + fused))
    made = parse(f"x: f32[256, 64]\nw: f32[64]\nm: f32[64, 64]\n{body}return {results}\n")
    made.device_kind, made.device_name, made.step_us = "cuda", DEVICE, 1000.0
    layer = -1
    for number, op in enumerate(made.ops):
        layer += op.name in ("aten.pow", "fused_replacements.rms_norm")
        op.kernels = (Kernel(f"{op.name}_kernel", start_us=30.0 * number, dur_us=20.0, stream=7),)
        op.module, op.module_class = f"layers.{first + layer}.norm", "Norm"
        op.source = Source(source, line, "forward")
    return made


def rules() -> list[Rule]:
    return rules_of(Config())


def audited(of: OpGraph, **run: object) -> Document:
    """What the engine says of a graph."""
    facts: dict[str, object] = {"name": "llama", "source": "profile", "torch": "2.13.0+cu128", "commit": "c0ffee" * 6}
    device = find_device(DEVICE, "cuda")
    assert device is not None
    audit = audit_graph(of, rules=rules(), device=device, config=Config(), run=Run(**(facts | run)))  # type: ignore[arg-type]
    audit.document.run.device.name, audit.document.run.device.kind = DEVICE, "cuda"
    return audit.document


def save(store: Store, of: OpGraph, **run: object) -> StoredRun:
    """Audit a graph, store it and load it again."""
    return store.load(store.save(audited(of, **run), to_tables(of)))
