"""Sites of a trace without shapes: found by the order of its kernels, the names of their ops, and their templates.

With ``record_shapes=False``, the profiler's default, a trace says which ops ran, and nothing of the tensors between
them: no edge can be told. But eager code is evaluated inside out, so an op mostly reads what the one before it made.
A run of memory-bound kernels on one stream of one thread, with none between that is not, is taken for a chain, and cut
where order alone would mislead:

* a result that went down columns is complete only after its kernel: what follows begins a chain of its own;
* the same op twice, by the same kernel, are two tensors' (``q * cos``, ``k * cos``) and not one's, but for the two
  products in the backward of a product, and the scale of a norm after its statistics;
* an order that begins again where it ended is the same code on another tensor;
* statistics of a batch norm need all of its input: it begins a chain.

And an order counts only where it stands at least :data:`ENOUGH` times. What fusing would save stays unknown, as the
shapes are: no bytes, no time saved; the time of the kernels is their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set

from auditor.engine.chains import JOINING_MOVEMENT
from auditor.engine.costs import IN_PASSES
from auditor.engine.legality import Refusal, Region
from auditor.engine.pattern import Call, Pattern
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, OpGraph
from auditor.graph.ops import base_name, kind_of
from auditor.kernels.walk import Walk, walk_of

ENOUGH = 2
"""Times that an order has to stand in a trace: one may be a coincidence."""

MAX_PERIOD = 32
"""Ops of an order that may begin again."""

TOLD = (
    "found by the order of its kernels, which stands {} times in the trace: no shape is known, so no bytes and no "
    "savings, at most the {:.0f} µs that its kernels take; record with record_shapes=True"
)

_DROPOUT = frozenset({"aten.native_dropout", "aten._fused_dropout"})
_STATISTICS = frozenset({"aten.mean", "aten.sum", "aten.var", "aten.var_mean", "aten.linalg_vector_norm", "aten.norm"})


def is_shapeless(graph: OpGraph) -> bool:
    """Whether a graph has ops on a device and nothing of what they read and made."""
    return not graph.values and any(op.kernels for op in graph.ops)


def propose_by_order(graph: Canonical, rule: Rule, taken: Set[int]) -> Proposals:
    """What ``rule`` would take of a graph without shapes; nothing for rules that order cannot tell."""
    if rule.chain is not None:
        return _chains(graph.graph, rule, taken)
    pairs = [pair for pattern in rule.patterns if (pair := _pinned(pattern)) is not None]
    return _epilogues(graph.graph, rule, pairs, taken) if pairs else Proposals()


def _chains(graph: OpGraph, rule: Rule, taken: Set[int]) -> Proposals:
    least = max((rule.chain or {}).get("min", 2), 2)
    return _repeated(rule, [chain for chain in _chains_of(graph, taken) if len(chain) >= least])


def _repeated(rule: Rule, sites: Sequence[Sequence[Op]]) -> Proposals:
    """Candidates of those whose order repeats; the others are refused."""
    times = Counter(map(_order_of, sites))
    proposals = Proposals()
    for ops in sites:
        count = times[_order_of(ops)]
        if count >= ENOUGH:
            region = _region(ops)
            told = TOLD.format(count, region.device_us)
            proposals.candidates.append(Candidate(rule, region, unpriced=told))
        else:
            proposals.refusals.append(
                Refusal("its order stands once only, and no shape tells what feeds what", ops[0], ops[-1], tuple(ops))
            )
    return proposals


def _order_of(ops: Sequence[Op]) -> tuple[str, ...]:
    return (ops[0].phase, *(base_name(op.name) for op in ops))


def _region(ops: Sequence[Op]) -> Region:
    return Region(
        tuple(ops), (), (), (), kernels=sum(op.launches for op in ops), device_us=sum(op.dur_us for op in ops)
    )


def _lines(graph: OpGraph, taken: Set[int]) -> Iterator[list[Op | None]]:
    """For each thread its ops with kernels, in order, and ``None`` for what nothing is fused across."""
    lines: dict[int, list[Op | None]] = defaultdict(list)
    for op in graph.ops:
        if op.index in taken or kind_of(op.name) in ("sync", "collective"):
            lines[op.thread].append(None)
        elif op.kernels:
            lines[op.thread].append(op)
    yield from lines.values()


def _chains_of(graph: OpGraph, taken: Set[int]) -> Iterator[list[Op]]:
    for line in _lines(graph, taken):
        for run in _runs(line):
            yield from _parts(run)


def _runs(line: Sequence[Op | None]) -> Iterator[list[Op]]:
    """Ops that may be part of a chain, as long as nothing else is in between."""
    run: list[Op] = []
    for op in line:
        able = op is not None and may_join(op)
        if run and not (able and op is not None and _one_place(run[-1], op)):
            yield run
            run = []
        if able and op is not None:
            run.append(op)
    if run:
        yield run


def may_join(op: Op) -> bool:
    """Whether the kernels of ``op`` may be part of a chain at all: by its name, where its tensors are not known."""
    if op.scope or op.phase == "optimizer" or not op.launches:
        return False
    base = base_name(op.name)
    return kind_of(op.name) in ("pointwise", "reduction", "norm", "copy") or base in JOINING_MOVEMENT | _DROPOUT


def _one_place(one: Op, other: Op) -> bool:
    return (one.phase, _stream(one)) == (other.phase, _stream(other))


def _stream(op: Op) -> tuple[int, int]:
    return op.kernels[0].device, op.kernels[0].stream


def _parts(run: list[Op]) -> Iterator[list[Op]]:
    """``run``, cut where an op does not seem to read what the ones before it made."""
    start = 0
    for at in range(1, len(run)):
        if _begins_anew(run[start:at], run[at], run[at + 1 :]):
            yield from _by_period(run[start:at])
            start = at
    yield from _by_period(run[start:])


def _begins_anew(chain: Sequence[Op], op: Op, rest: Sequence[Op]) -> bool:
    before, walk = _walk(chain[-1]), _walk(op)
    if before == "columns":
        return walk != "columns"
    if _in_passes(op.name) and "backward" not in op.name:
        return True
    return _is_twin(chain[-1], op) and not _twins_belong(chain, op)


def _is_twin(one: Op, other: Op) -> bool:
    return one.name == other.name and one.kernels[0].name == other.kernels[0].name


def _twins_belong(chain: Sequence[Op], op: Op) -> bool:
    """Whether two calls of one op are of one chain: they read one gradient, or are the scales of one norm."""
    if len(chain) < 2:
        return False
    if op.phase == "backward":
        return not _is_twin(chain[-2], op)
    return any(base_name(each.name) in _STATISTICS for each in chain)


def _in_passes(name: str) -> bool:
    return any(part in name for part in IN_PASSES)


def _walk(op: Op) -> Walk:
    return walk_of(op.kernels[-1].name)


def _by_period(chain: list[Op]) -> Iterator[list[Op]]:
    """``chain``, cut where an order of its ops begins again."""
    names = [base_name(op.name) for op in chain]
    for period in range(min(MAX_PERIOD, len(chain) // 2), 1, -1):
        least = len(chain) if period == 2 else 2 * period
        for start in range(len(chain) - 2 * period + 1):
            block = names[start : start + period]
            if names[start + period : start + 2 * period] == block and len(chain) - start >= least:
                yield from _by_period(chain[: start + period])
                yield from _by_period(chain[start + period :])
                return
    yield chain


Pair = tuple[frozenset[str], frozenset[str]]


def _pinned(pattern: Pattern) -> Pair | None:
    """Kinds of a GEMM and of an op that reads its result and no other tensor: ``g = mm(a, b); y = relu(g)``."""
    if len(pattern.calls) != 2:
        return None
    first, sink = pattern.calls
    tensors = [arg for arg in sink.args if isinstance(arg, Call)]
    others = [arg for arg in sink.args[1:] if type(arg).__name__ in ("Variable", "Call")]
    if tensors != [first] or others or not all(kind_of(f"aten.{kind}") == "gemm" for kind in first.kinds):
        return None
    return first.kinds, sink.kinds


def _epilogues(graph: OpGraph, rule: Rule, pairs: Sequence[Pair], taken: Set[int]) -> Proposals:
    """A GEMM and the one op after it, where that reads one tensor and nothing memory-bound goes on from it."""
    sites = []
    for line in _lines(graph, taken):
        for before, gemm, op, after in zip([None, *line], line, line[1:], [*line[2:], None], strict=False):
            if gemm is None or op is None or not any(_fits(pair, gemm, op) for pair in pairs):
                continue
            goes_on = after is not None and may_join(after) and _one_place(op, after)
            if not goes_on and _one_place(gemm, op) and not (before is not None and kind_of(before.name) == "gemm"):
                sites.append([gemm, op])
    return _repeated(rule, sites)


def _fits(pair: Pair, gemm: Op, op: Op) -> bool:
    kinds = tuple(base_name(each.name).removeprefix("aten.") for each in (gemm, op))
    return kinds[0] in pair[0] and (kinds[1] in pair[1] or (kinds[1] == "clamp_min" and "relu" in pair[1]))
