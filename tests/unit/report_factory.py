"""Documents and op graphs that look like real audits, for the report tests."""

from __future__ import annotations

from auditor.document import (
    CoverageInfo,
    DeviceInfo,
    Document,
    Finding,
    Overhead,
    Refused,
    Run,
    Saving,
    Site,
    SourceInfo,
    Suppressed,
    Totals,
    TotalSaving,
)
from auditor.graph.model import Kernel, Op, OpGraph, Source, Value

MODELING = "/opt/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py"
HOSTILE = "<script>alert(1)</script>\x1b[31m\n|`\"'&\u202e@someone https://evil.example/x"


class Recorder:
    """Builds an op graph a line at a time, as a recording of one step would."""

    def __init__(self) -> None:
        self.graph = OpGraph(step_us=1000.0, device_kind="cuda", device_name="NVIDIA H100 SXM5 80GB")
        self._clock = 0.0

    def tensor(self, name: str, *shape: int, dtype: str = "bf16") -> Value:
        return self.graph.value(dtype, shape, name=name)

    def op(self, name, args, shape, *, dtype="bf16", us=5.0, out="", view=False, module="", cls="") -> Value:
        inputs = [a for a in args if isinstance(a, Value)]
        result = self.graph.value(dtype, shape, name=out, base=inputs[0] if view else None)
        kernels = () if view else (Kernel(f"{name}_kernel", self._clock, us),)
        self._clock += 0 if view else us
        source = Source(MODELING, 67, "forward")
        self.graph.add(
            Op(0, name, tuple(args), (result,), kernels=kernels, module=module, module_class=cls, source=source)
        )
        return result


def rms_graph() -> tuple[OpGraph, list[int]]:
    """A mm → add (residual, read again) → cast, pow, mean, add, rsqrt, mul, cast, mul → view → mm."""
    r = Recorder()
    x, w, weight = r.tensor("x", 4096, 4096), r.tensor("o_proj", 4096, 4096), r.tensor("weight", 4096)
    residual = r.tensor("residual", 2, 2048, 4096)
    y = r.op("aten.mm", (x, w), (4096, 4096), us=180.0)
    hidden = r.op("aten.add", (residual, r.op("aten.view", (y, (2, 2048, 4096)), (2, 2048, 4096), view=True)),
                  (2, 2048, 4096), out="hidden")  # fmt: skip
    big, thin = (2, 2048, 4096), (2, 2048, 1)
    f = r.op("aten._to_copy", (hidden,), big, dtype="f32", us=31.0)
    sq = r.op("aten.pow", (f, 2), big, dtype="f32", us=48.0)
    var = r.op("aten.mean", (sq, (-1,), True), thin, dtype="f32", us=30.0)
    eps = r.op("aten.add", (var, 1e-6), thin, dtype="f32", us=2.1)
    inv = r.op("aten.rsqrt", (eps,), thin, dtype="f32", us=2.1)
    xn = r.op("aten.mul", (f, inv), big, dtype="f32", us=50.0)
    half = r.op("aten._to_copy", (xn,), big, us=31.0)
    out = r.op("aten.mul", (half, weight), big, us=32.0)
    flat = r.op("aten.view", (out, (4096, 4096)), (4096, 4096), view=True)
    q = r.op("aten.mm", (flat, w), (4096, 4096), us=180.0)
    last = r.op("aten.add", (hidden, r.op("aten.view", (q, big), big, view=True)), big)
    last.escapes = True
    sites = [op.index for op in r.graph.ops if op.name.split(".")[1] in {"_to_copy", "pow", "mean", "rsqrt", "mul"}]
    sites.append(next(op.index for op in r.graph.ops if op.outputs[0] is eps))
    return r.graph, sorted(sites)


def chain_graph(length: int = 60) -> tuple[OpGraph, list[int]]:
    """A chain of elementwise ops of which every third reads a side input, and one intermediate escapes."""
    r = Recorder()
    value, shape = r.tensor("x", 8, 1024, 1024), (8, 1024, 1024)
    for i in range(length):
        name = ("aten.sigmoid", "aten.tanh", "aten.mul")[i % 3]
        args = (value, r.tensor(f"scale_{i}", 1024)) if name == "aten.mul" else (value,)
        value = r.op(name, args, shape, us=12.0)
        value.escapes = i == length // 2
    value.escapes = True
    return r.graph, [op.index for op in r.graph.ops]


def rms_finding(site: list[int] | None = None, **changes: object) -> Finding:
    fields: dict[str, object] = {
        "rule": "FUS201", "name": "unfused-rms-norm", "family": "reduction", "fingerprint": "b7c2",
        "sites": 49, "kernels": 392, "kernels_after": 49, "device_us": 11_080.0,
        "bytes_now": 13_150_000_000, "bytes_fused": 3_290_000_000,
        "saving": Saving(ideal_us=9_900.0, likely_us=8_930.0, step_us=7_100.0), "amdahl_cap": 1.23,
        "module_class": "LlamaRMSNorm",
        "modules": [f"model.layers.{i // 2}.{'post_attention' if i % 2 else 'input'}_layernorm" for i in range(48)]
        + ["model.norm"],
        "source": SourceInfo(file=MODELING, line=67, function="forward"),
        "ops": ["aten._to_copy", "aten.pow", "aten.mean", "aten.add", "aten.rsqrt", "aten.mul"],
        "replacement": "rms_norm", "dtype": "bf16", "variant": {"weight": "after the cast", "eps": "1e-06"},
        "graph": "sq = aten.pow(x, 2)\nvar = aten.mean(sq, [-1], True)",
        "places": [Site(ops=site or [], module="model.layers.0.input_layernorm", kernels=8, device_us=226.1,
                        bytes_now=268_000_000, bytes_fused=67_000_000)],
    }  # fmt: skip
    return Finding(**{**fields, **changes})  # type: ignore[arg-type]


def rope_finding(**changes: object) -> Finding:
    fields: dict[str, object] = {
        "rule": "FUS207", "name": "unfused-rotary-embedding", "family": "elementwise", "fingerprint": "01aa",
        "sites": 48, "kernels": 240, "kernels_after": 48, "device_us": 2_400.0,
        "bytes_now": 2_000_000_000, "bytes_fused": 900_000_000,
        "saving": Saving(ideal_us=1_500.0, likely_us=1_200.0, step_us=0.0), "amdahl_cap": 1.04,
        "provenance": "inferred", "module_class": "", "modules": [],
        "ops": ["aten.neg", "aten.cat", "aten.mul", "aten.add"], "dtype": "bf16",
    }  # fmt: skip
    return Finding(**{**fields, **changes})  # type: ignore[arg-type]


def llama(ops: list[int] | None = None) -> Document:
    """Twenty-four layers in bf16 on an H100: two findings, refusals, one idle suppression, a note."""
    return Document(
        run=Run(id="3f2a91c0", name="llama-eager", created="2026-05-04T09:00:00Z", torch="2.13.0",
                script=["examples/llama.py", "--prompt", "two words"],
                device=DeviceInfo(name="NVIDIA H100 SXM5 80GB", kind="cuda", peak_gbps=3350.0),
                notes=["4 of 1,204 ops have no source line."]),
        coverage=CoverageInfo(kernels=1204, linked=1190, before_window=14),
        overhead=Overhead(bare_us=57_000.0, timing_us=59_800.0, graph_us=193_800.0),
        totals=Totals(kernels=1204, memory_bound_kernels=1010, unfused_kernels=632, avoidable_kernels=535,
                      already_fused_kernels=24, device_us=48_000.0, step_us=60_000.0, memory_bound_us=29_760.0,
                      idle_us=12_000.0, bytes=41_000_000_000,
                      saving=TotalSaving(ideal_us=11_400.0, likely_us=10_130.0, step_us=7_100.0,
                                         bytes=10_960_000_000, amdahl_cap=1.29)),
        findings=[rope_finding(), rms_finding(ops)],
        refused=[Refused(rule="FUS501", reason="the weights have unlike dtypes", at="model.layers.0.mlp"),
                 Refused(rule="FUS201", reason="xn escapes to aten.neg", at="model.layers.3.norm", count=2),
                 Refused(rule="FUS201", reason="xn escapes to aten.neg", at="model.layers.5.norm")],
        suppressed=[Suppressed(rule="FUS101", modules="model.embed*", reason="tiny", sites=3),
                    Suppressed(rule="FUS601", modules="*.cross_attn", reason="kept for export")],
    )  # fmt: skip


def clean() -> Document:
    """Nothing found, on a CPU."""
    return Document(
        run=Run(id="aa01", script=["m.py"], device=DeviceInfo(name="Intel Xeon", peak_gbps=21.0)),
        coverage=CoverageInfo(kernels=20, linked=20),
        totals=Totals(kernels=20, memory_bound_kernels=8, device_us=900.0, step_us=1000.0, memory_bound_us=100.0),
    )


def hostile() -> Document:
    """Every text field holds markup, escapes and quotes."""
    finding = rms_finding(
        [0], rule=HOSTILE, name=HOSTILE, family=HOSTILE, severity=HOSTILE, fingerprint=HOSTILE, provenance=HOSTILE,
        phase=HOSTILE, module_class=HOSTILE, modules=[HOSTILE], ops=[HOSTILE], replacement=HOSTILE, dtype=HOSTILE,
        source=SourceInfo(file=HOSTILE, line=3, function=HOSTILE), variant={HOSTILE: HOSTILE}, graph=HOSTILE,
        places=[Site(ops=[0], module=HOSTILE, variant={HOSTILE: HOSTILE})],
    )  # fmt: skip
    return Document(
        run=Run(id=HOSTILE, name=HOSTILE, source=HOSTILE, created=HOSTILE, script=[HOSTILE], torch=HOSTILE,
                device=DeviceInfo(name=HOSTILE, kind=HOSTILE), notes=[HOSTILE], exit_code=3),
        coverage=CoverageInfo(kernels=3, linked=2, edges=HOSTILE),
        findings=[finding],
        refused=[Refused(rule=HOSTILE, reason=HOSTILE, at=HOSTILE)],
        suppressed=[Suppressed(rule=HOSTILE, modules=HOSTILE, reason=HOSTILE)],
    )  # fmt: skip


def hostile_graph() -> OpGraph:
    r = Recorder()
    r.op(HOSTILE, (r.tensor(HOSTILE, 4, dtype=HOSTILE), 1.5, HOSTILE), (4,), dtype=HOSTILE, out=HOSTILE)
    return r.graph
