"""What is found without shapes, held against the audit of the same trace with them: recall and precision by trace.

Every trace that has shapes is copied without (``Input Dims`` and all that tells of tensors taken out, as the profiler
writes it with ``record_shapes=False``), and audited again. A site that is found by order is right where the values of
the graph with shapes join all of its ops; it is wrong where it holds ops that feed each other nowhere. A site of the
audit with shapes is found again where one site by order covers its kernels.

    python benchmarks/without_shapes.py [--trace NAME …] [--wrong]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import auditor
from auditor.audit import Audit
from auditor.engine.rules import load_rules
from auditor.graph.model import Op, OpGraph, owner_of

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
TRACES = (
    "h100_bert-small_launch_bound", "h100_qwen1.5-0.5b_eager", "h100_owlv2_eager", "h100_small_transformer_training",
    "mi300x_resnet_ddp_training", "mi300x_sd3.5_compiled_and_eager", "a100_training_torch1.12",
    "torch1.8_resnet50_old_era",
)  # fmt: skip
OF_SHAPES = ("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs")
"""What ``record_shapes=True`` adds to an op, as the eras spell it."""

Kernels = frozenset[tuple[str, float]]


def without_shapes(path: Path, to: Path) -> Path:
    """A copy of the trace ``path`` that tells nothing of tensors."""
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    for event in trace["traceEvents"]:
        for key in OF_SHAPES:
            (event.get("args") or {}).pop(key, None)
    to.write_text(json.dumps(trace), encoding="utf-8")
    return to


@dataclass
class Compared:
    """Sites of one trace, by rule. ``right`` of ``ours`` are joined by values; ``again`` of ``theirs`` are covered."""

    ours: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    theirs: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    wrong: Counter[tuple[str, ...]] = field(default_factory=Counter)
    missing: Counter[tuple[str, ...]] = field(default_factory=Counter)

    untold: int = 0
    """Sites with an op whose inputs the trace with shapes does not tell either: of a list, in older ones."""

    @property
    def precision(self) -> float:
        return self.right.total() / (self.ours.total() or 1)

    @property
    def recall(self) -> float:
        return self.again.total() / (self.theirs.total() or 1)


def compared(path: Path, execution_trace: Path | None = None) -> Compared:
    """The audits of a trace with and without its shapes, held against each other by kernels.

    With an execution trace the edges of the first are the recorded ones.
    """
    full = auditor.load(path, execution_trace=execution_trace)
    with tempfile.TemporaryDirectory() as folder:
        bare = auditor.load(without_shapes(path, Path(folder) / "bare.json"))
    found = Compared()
    ours, theirs = list(_sites(bare)), list(_sites(full))
    op_of = {(k.name, k.start_us): op for op in full.graph.ops for k in op.kernels}
    for order, kernels in ours:
        rule = order[0]
        inside = {op_of[k].index for k in kernels if k in op_of}
        if any(not full.graph.ops[i].inputs() for i in inside):
            found.untold += 1
            continue
        found.ours[rule] += 1
        if _joined(full.graph, inside):
            found.right[rule] += 1
        else:
            found.wrong[order] += 1
    covers: dict[tuple[str, float], Kernels] = {k: kernels for _, kernels in ours for k in kernels}
    for order, kernels in theirs:
        rule = order[0]
        found.theirs[rule] += 1
        if any(kernels <= covers.get(k, frozenset()) for k in kernels):
            found.again[rule] += 1
        else:
            found.missing[order] += 1
    return found


def _sites(audit: Audit) -> Iterator[tuple[tuple[str, ...], Kernels]]:
    """Rule and ops, and the kernels, of each site along the dataflow: those of chains and patterns."""
    along = {rule.id for rule in load_rules() if rule.detect is None and rule.siblings is None}
    ops = audit.graph.ops
    for finding in audit.findings:
        if finding.rule in along:
            for site in finding.places:
                held = frozenset((k.name, k.start_us) for i in site.ops for k in ops[i].kernels if not k.is_transfer)
                if held:
                    yield (finding.rule, *(ops[i].name.removeprefix("aten.") for i in site.ops)), held


def _joined(graph: OpGraph, inside: Collection[int]) -> bool:
    """Whether values join the ops ``inside``, views and casts that launch nothing looked through."""
    neighbours: dict[int, set[int]] = {i: set() for i in inside}
    for i in inside:
        for value in graph.ops[i].inputs():
            made: Op | None = owner_of(value).producer
            if made is not None and made.index in neighbours:
                neighbours[i].add(made.index)
                neighbours[made.index].add(i)
    seen: set[int] = set()
    pending = list(inside)[:1]
    while pending:
        i = pending.pop()
        if i not in seen:
            seen.add(i)
            pending += neighbours[i]
    return bool(inside) and len(seen) == len(neighbours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", choices=TRACES)
    parser.add_argument("--wrong", action="store_true", help="list the orders that are wrong, and what is not found")
    asked = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"without_shapes: no {SHARED}; the shared traces are needed, which are not part of the repository")
    print(f"{'trace':<34} {'by order':>8} {'right':>6} {'precision':>9} {'with shapes':>11} {'again':>6} {'recall':>6}")
    for name in asked.trace or TRACES:
        found = compared(SHARED / f"{name}.json.gz")
        print(
            f"{name:<34} {found.ours.total():>8} {found.right.total():>6} {found.precision:>9.1%} "
            f"{found.theirs.total():>11} {found.again.total():>6} {found.recall:>6.1%}",
            flush=True,
        )
        if asked.wrong:
            for title, orders in (("wrong", found.wrong), ("not found", found.missing)):
                for order, count in orders.most_common(25):
                    print(f"    {title} {count:>4}  {' '.join(order)}"[:230], flush=True)


if __name__ == "__main__":
    main()
