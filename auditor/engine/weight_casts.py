"""Casts of weights that are made again and again: of the same weight, to the same dtype, while it does not change.

A weight is what no op of the step made and a matrix product or convolution reads at the place of its weight or bias,
inside of a module. Which tensor is which has to be known from its id: where edges are inferred nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Set

from auditor.engine.legality import Refusal, Region, check
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, Value, owner_of
from auditor.graph.nodes import Node
from auditor.graph.traffic import region_of

WEIGHTS = {
    "aten.mm": (1,), "aten.addmm": (0, 2), "aten.linear": (1, 2), "aten.convolution": (1, 2),
    "aten.convolution_backward": (2,), "aten._convolution": (1, 2), "aten.cudnn_convolution": (1,),
    "aten.miopen_convolution": (1, 2), "aten.mkldnn_convolution": (1, 2),
}  # fmt: skip
"""Positions of weight and bias, by op."""
FLOATS = frozenset({"f64", "f32", "f16", "bf16"})


def propose_weight_casts(graph: Canonical, rule: Rule, taken: Set[int]) -> Proposals:
    """One site for each cast that is made again: in inference each of them, in training all but the first of a step."""
    found = Proposals()
    if graph.graph.provenance == "inferred":
        return found
    trains = any(op.phase != "forward" and op.kernels for op in graph.graph.ops)
    seen: dict[object, int] = {}
    for node in graph.by_kind.get("cast", ()):
        if node.op.index in taken or node.op.launches != 1 or not _is_of_weight(graph, node):
            continue
        source, out = node.op.args[0], node.op.outputs[0]
        assert isinstance(source, Value)
        writes = sum(w.index < node.op.index for w in graph.writers.get(source.storage, ()))
        made = seen.setdefault((region_of(source), writes, out.dtype, out.shape, out.strides), node.op.index)
        changes = trains or bool(graph.writers.get(source.storage))
        if changes and made == node.op.index:
            continue
        region = check(graph, [node.op], None)
        if isinstance(region, Refusal):
            found.refusals.append(region)
            continue
        region.moves(())
        found.candidates.append(_candidate(rule, region, changes, out.dtype))
    return found


def _candidate(rule: Rule, region: Region, changes: bool, dtype: str) -> Candidate:
    when = "in the same step" if changes else "in every step"
    instead = f"one cast to {dtype} for all uses in a step" if changes else f"the module cast to {dtype} once, by .to()"
    return Candidate(rule, region, {"again": when}, left=0, instead=instead)


def _is_of_weight(graph: Canonical, node: Node) -> bool:
    op = node.op
    source = op.args[0]
    if not isinstance(source, Value) or not op.module_class or owner_of(source).producer is not None:
        return False
    out = graph.owners[op.outputs[0].id]
    if not {source.dtype, out.dtype} <= FLOATS or out.id in graph.escaping:
        return False
    readers = graph.readers[out.id]
    return bool(readers) and all(_as_weight(reader, out) for reader in readers)


def _as_weight(reader: Op, out: Value) -> bool:
    positions = WEIGHTS.get(reader.name, ())
    here = [i for i, arg in enumerate(reader.args) if isinstance(arg, Value) and owner_of(arg) is out]
    return bool(here) and all(i in positions for i in here)
