"""Engine throughput: ops a second, from the canonical form to claimed sites, with every built-in rule.

    python benchmarks/engine.py [--ops 96000] [--runs 5] [--json FILE]

The graph is a Llama-style decoder layer in bf16 (norms, rotary, attention, gated MLP, residual adds), as it is
recorded, repeated with its own values until it has that many ops. Times are process CPU seconds; the collector
of garbage is off, as it is in an audit. A plain pass over the ops and their inputs stands beside it, so that the
ratio can be compared between machines.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from statistics import median
from time import process_time

from auditor.engine.claims import claim
from auditor.engine.rules import load_rules
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, OpGraph, Value
from auditor.graph.ssa import parse

NORM = """
{p}sum = aten.add({x}, {branch})
{p}x32 = aten._to_copy({p}sum, f32)
{p}sq = aten.pow({p}x32, 2)
{p}var = aten.mean({p}sq, [-1], True)
{p}inv = aten.rsqrt(aten.add({p}var, 1e-06))
{p}xn = aten.mul({p}x32, {p}inv)
{p}low = aten._to_copy({p}xn, bf16)
{p}out = aten.mul({p}w, {p}low)
"""

ROTARY = """
{p}a = aten.mul({x}, cos)
{p}lo = aten.slice({x}, 3, 0, 32)
{p}hi = aten.slice({x}, 3, 32, 64)
{p}turned = aten.cat([aten.neg({p}hi), {p}lo], -1)
{p}b = aten.mul({p}turned, sin)
{p}out = aten.add({p}a, {p}b)
"""


def layer() -> str:
    """SSA text of one decoder layer: 2 × 64 tokens, width 256, 4 heads, MLP 512."""
    inputs = "x: bf16[2, 64, 256]\nx0: bf16[2, 64, 256]\ncos: bf16[1, 1, 64, 64]\nsin: bf16[1, 1, 64, 64]\n"
    weights = "n1w: bf16[256]\nn2w: bf16[256]\n"
    weights += (
        "".join(f"w{n}: bf16[256, 256]\n" for n in "qkvo")
        + "wg: bf16[512, 256]\nwu: bf16[512, 256]\nwd: bf16[256, 512]\n"
    )
    text = inputs + weights + NORM.format(p="n1", x="x", branch="x0")
    for name in "qkv":
        text += f"""
{name}f = aten.view(n1out, [128, 256])
{name}m = aten.mm({name}f, aten.t(w{name}))
{name}s = aten.view({name}m, [2, 64, 256])
{name}h = aten.view({name}s, [2, 64, 4, 64])
{name}t = aten.transpose({name}h, 1, 2)
"""
    text += ROTARY.format(p="rq", x="qt") + ROTARY.format(p="rk", x="kt")
    text += """
kT = aten.transpose(rkout, 2, 3)
q3 = aten.reshape(rqout, [8, 64, 64])
k3 = aten.reshape(kT, [8, 64, 64])
scores = aten.view(aten.bmm(q3, k3), [2, 4, 64, 64])
probs = aten._softmax(aten.mul(scores, 0.125), -1, False)
v3 = aten.reshape(vt, [8, 64, 64])
mixed = aten.view(aten.bmm(aten.view(probs, [8, 64, 64]), v3), [2, 4, 64, 64])
merged = aten.reshape(aten.transpose(mixed, 1, 2), [128, 256])
attn = aten.view(aten.mm(merged, aten.t(wo)), [2, 64, 256])
"""
    text += NORM.format(p="n2", x="n1sum", branch="attn")
    return (
        text
        + """
gate = aten.view(aten.mm(aten.view(n2out, [128, 256]), aten.t(wg)), [2, 64, 512])
up = aten.view(aten.mm(aten.view(n2out, [128, 256]), aten.t(wu)), [2, 64, 512])
act = aten.silu(gate)
hidden = aten.view(aten.mul(act, up), [128, 512])
down = aten.view(aten.mm(hidden, aten.t(wd)), [2, 64, 256])
next = aten.add(n2sum, down)
return next
"""
    )


def repeated(graph: OpGraph, ops: int) -> OpGraph:
    """``graph`` again and again, each time with values and storages of its own, until there are ``ops`` ops."""
    whole = OpGraph()
    while len(whole.ops) < ops:
        copies: dict[int, Value] = {}
        for value in graph.values:
            copies[value.id] = whole.value(
                value.dtype, value.shape, value.strides, offset=value.offset, device=value.device,
                base=copies[value.base.id] if value.base else None,
            )  # fmt: skip
            copies[value.id].escapes = value.escapes
        for op in graph.ops:
            whole.add(
                Op(
                    0, op.name, _copied(op.args, copies), tuple(copies[v.id] for v in op.outputs), op.overload,
                    op.kernels, tuple(copies[v.id] for v in op.mutates), phase=op.phase,
                )
            )  # fmt: skip
    return whole


def _copied(args: tuple[object, ...], copies: dict[int, Value]) -> tuple:  # type: ignore[type-arg]
    return tuple(
        copies[a.id] if isinstance(a, Value) else _copied(a, copies) if isinstance(a, tuple) else a for a in args
    )


def walk(graph: OpGraph) -> int:
    """The least that any engine does: look at every op and everything that it reads."""
    return sum(len(op.inputs()) for op in graph.ops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ops", type=int, default=96_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    graph = repeated(parse(layer()), options.ops)
    rules = load_rules()
    gc.collect()
    gc.freeze()
    gc.disable()
    times: dict[str, list[float]] = {"walk": [], "canonical": [], "claim": []}
    sites = 0
    for _ in range(options.runs):
        start = process_time()
        walk(graph)
        times["walk"].append(process_time() - start)
        start = process_time()
        canonical = Canonical(graph)
        times["canonical"].append(process_time() - start)
        start = process_time()
        sites = len(claim(canonical, rules).sites)
        times["claim"].append(process_time() - start)
    row = {name: median(t) for name, t in times.items()}
    row["total"] = median(a + b for a, b in zip(times["canonical"], times["claim"], strict=True))
    print(
        f"{len(graph.ops):,} ops, {graph.kernels:,} kernels, {len(rules)} rules, {sites:,} sites; "
        f"median of {options.runs}"
    )
    print("  " + " · ".join(f"{name} {seconds:.2f} s" for name, seconds in row.items()))
    print(f"  {len(graph.ops) / row['total']:,.0f} ops a second; {row['total'] / row['walk']:.0f} × a plain walk")
    if options.json:
        options.json.write_text(json.dumps({"ops": len(graph.ops), "sites": sites, "seconds": row}, indent=2) + "\n")


if __name__ == "__main__":
    main()
