"""Sites of a trace without shapes: chains and pairs by the order of its ops (:mod:`auditor.engine.order_chains`).

With ``record_shapes=False``, the profiler's default, a trace says which ops ran, and nothing of the tensors between
them: no edge is known, and an order proves none. So it counts only where it stands :data:`ENOUGH` times in a step, or
spells a rule's pattern of :data:`SPELLED` ops or more, which nobody writes by chance. What fusing would save stays
unknown, as the shapes are: no bytes, and no time saved; the time of the kernels themselves is known, and is a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from auditor.engine.legality import Refusal, Region
from auditor.engine.order_chains import CASTS, Line, chains_in, in_one_place, lines, may_join
from auditor.engine.pattern import OP_CLASSES, Call, Pattern, Result, Variable
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, OpGraph
from auditor.graph.normal import BATCH_NORM_BACKWARDS, BATCH_NORMS, GROUP_NORMS
from auditor.graph.ops import base_name, kind_of

ENOUGH = 2
"""Times that an order has to stand in a step: one may be a coincidence, and the next step repeats it."""

SPELLED = 4
"""Ops of a pattern, or of an order known from elsewhere in the trace, that are no coincidence."""

_TOLD = (
    "found by the order of its kernels, which stands {} times in the trace: no shape is known, so neither bytes nor a "
    "saving, which is below the {:.0f} µs that its kernels take; record with record_shapes=True"
)
_SELDOM = "its order does not stand twice in a step, and without shapes nothing else tells what feeds what"
_NEEDS_DTYPES = ("holds", "cast_to")

Orders = list[list[Op]]


def is_shapeless(graph: OpGraph) -> bool:
    """Whether a graph has ops on a device and nothing of what they read and made."""
    return not graph.values and any(op.kernels for op in graph.ops)


class ByOrder:
    """What rules would take of a graph without shapes. Chains are told once, of what is not ``taken`` by then."""

    def __init__(self, graph: Canonical) -> None:
        self.graph: OpGraph = graph.graph
        self._enough = ENOUGH * max(self.graph.steps.complete, 1)
        self._lines: list[Line] = []
        self._chains: Orders = []
        self._between: Orders = []
        self._times: Counter[tuple[str, ...]] = Counter()
        self._known: set[tuple[str, ...]] = set()

    def propose(self, rule: Rule, taken: Set[int]) -> Proposals:
        """Candidates of ``rule``, and what was refused; nothing for a rule that an order cannot tell."""
        if not self._lines:
            self._lines = lines(self.graph, taken)
            self._chains = [chain for line in self._lines for chain in chains_in(line)]
            self._between = [ops for line in self._lines for ops in _between_gemms(line)]
            self._times = Counter(map(_order_of, self._chains))
            self._known = {
                order for order, count in self._times.items() if count >= self._enough and len(order) > SPELLED
            }
        if rule.chain is not None:
            least = max((rule.chain or {}).get("min", 2), 2)
            return self._believed(rule, [chain for chain in self._free(self._chains, taken) if len(chain) >= least])
        if not rule.patterns or any(key in rule.where for key in _NEEDS_DTYPES):
            return Proposals()
        found = [*self._spelled(rule), *self._epilogues(rule), *self._gates(rule)]
        return self._believed(rule, list(self._free(found, taken)))

    @staticmethod
    def _free(orders: Orders, taken: Set[int]) -> Iterator[list[Op]]:
        return (ops for ops in orders if not any(op.index in taken for op in ops))

    def _believed(self, rule: Rule, orders: Orders) -> Proposals:
        """Candidates of the orders that stand often enough, or spell a pattern; the others are refused.

        Of a chain that stands too seldom, the longest part whose order stands elsewhere.
        """
        times = Counter(map(_order_of, orders))
        proposals = Proposals()
        for ops in orders:
            count = times[_order_of(ops)]
            spelled = bool(rule.patterns) and sum(base_name(op.name) not in CASTS for op in ops) >= SPELLED
            part = ops if count >= self._enough or spelled else _part_known(ops, self._known)
            if part:
                proposals.candidates.append(
                    _candidate(rule, part, count if part is ops else self._times[_order_of(part)])
                )
            else:
                proposals.refusals.append(Refusal(_SELDOM, ops[0], ops[-1], tuple(ops)))
        return proposals

    def _spelled(self, rule: Rule) -> Orders:
        """Chains that are a pattern of the rule from end to end; where it begins and ends in GEMMs, with these."""
        spells: dict[tuple[str, ...], bool] = {}
        found: Orders = []
        for ops in (*self._chains, *self._between):
            order = _order_of(ops)
            if order not in spells:
                steps = _steps(ops)
                spells[order] = any(_spells(pattern, steps) for pattern in rule.patterns)
            if spells[order]:
                found.append(ops)
        return found

    def _epilogues(self, rule: Rule) -> Orders:
        """A GEMM and the one op after it, where that reads one tensor and no chain goes on from it."""
        pairs = [pair for pattern in rule.patterns if (pair := _pinned(pattern)) is not None]
        found: Orders = []
        for line in self._lines if pairs else ():
            for gemm, op, after in zip(line, line[1:], [*line[2:], None], strict=False):
                if gemm is None or op is None or not any(_fits(pair, gemm, op) for pair in pairs):
                    continue
                if in_one_place(gemm, op) and not _goes_on(op, after):
                    found.append([gemm, op])
        return found

    def _gates(self, rule: Rule) -> Orders:
        """``silu(gate(x)) * up(x)``: GEMM, SiLU, GEMM by the same kernel, and a product that no chain goes on from.

        Other activations are left alone: two layers and a scale after them (``gamma * fc2(gelu(fc1(x)))``) look alike.
        """
        found: Orders = []
        for line in self._lines if any(map(_is_gate, rule.patterns)) else ():
            for four in zip(line, line[1:], line[2:], line[3:], strict=False):
                gate, act, up, product = four
                if gate is None or act is None or up is None or product is None:
                    continue
                names = [base_name(op.name) for op in (act, product)]
                gemms = kind_of(gate.name) == kind_of(up.name) == "gemm" and _same_kernel(gate, up)
                if gemms and names == ["aten.silu", "aten.mul"] and in_one_place(act, product):
                    found.append([act, product])
        return found


def _same_kernel(one: Op, other: Op) -> bool:
    return bool(one.kernels and other.kernels) and one.kernels[0].name == other.kernels[0].name


def told_of_order(sites: Sequence[Candidate]) -> str:
    """A sentence on what such sites are worth."""
    kernels = sum(site.region.kernels for site in sites)
    where = "1 site" if len(sites) == 1 else f"{len(sites):,} sites"
    return (
        f"{where} of {kernels:,} kernels are found by the order of kernels and the names of their ops, as there are no "
        "shapes: which tensor feeds which is likely and not proven, and what fusing saves is not known, so they count "
        "no bytes and no time saved; record with record_shapes=True."
    )


def _candidate(rule: Rule, ops: Sequence[Op], times: int) -> Candidate:
    kernels, device_us = sum(op.launches for op in ops), sum(op.dur_us for op in ops)
    region = Region(tuple(ops), (), (), (), kernels=kernels, device_us=device_us)
    return Candidate(rule, region, unpriced=_TOLD.format(times, device_us))


def _order_of(ops: Sequence[Op]) -> tuple[str, ...]:
    return (ops[0].phase, *(base_name(op.name) for op in ops))


def _part_known(ops: list[Op], known: Set[tuple[str, ...]]) -> list[Op]:
    for size in range(len(ops) - 1, SPELLED - 1, -1):
        for start in range(len(ops) - size + 1):
            if _order_of(ops[start : start + size]) in known:
                return ops[start : start + size]
    return []


def _goes_on(op: Op, after: Op | None) -> bool:
    return after is not None and may_join(after) and in_one_place(op, after)


def _between_gemms(line: Line) -> Iterator[list[Op]]:
    """A GEMM, what may join a chain, and the next GEMM."""
    run: list[Op] = []
    for op in line:
        is_gemm = op is not None and kind_of(op.name) == "gemm"
        if op is None or not (is_gemm or may_join(op)) or (run and not in_one_place(run[0], op)):
            run = [op] if op is not None and is_gemm else []
        elif is_gemm:
            if len(run) > 1:
                yield [*run, op]
            run = [op]
        elif run:
            run.append(op)


Step = frozenset[str]
"""Canonical kinds that one op of an order may be."""


def _spells(pattern: Pattern, steps: Sequence[Step]) -> bool:
    """Whether ``steps`` are the calls of ``pattern``, each after those that it reads."""
    return len(steps) == len(pattern.calls) and _laid(steps, pattern.calls, frozenset())


def _steps(ops: Sequence[Op]) -> list[Step]:
    """What each op may be, casts and copies left out; a sum that is divided is a mean."""
    steps: list[Step] = []
    for op in ops:
        kinds = _kinds(op)
        if steps and "sum" in steps[-1] and "div" in kinds:
            steps[-1] = frozenset({"mean"})
        elif base_name(op.name) not in CASTS | {"aten.clone"}:
            steps.append(kinds)
    return steps


def _laid(steps: Sequence[Step], calls: Sequence[Call], done: frozenset[int]) -> bool:
    if len(done) == len(steps):
        return True
    made = {id(calls[i]) for i in done}
    for i, call in enumerate(calls):
        ready = i not in done and not call.kinds.isdisjoint(steps[len(done)])
        if ready and all(id(read) in made for read in _read(call.args)) and _laid(steps, calls, done | {i}):
            return True
    return False


def _read(args: Sequence[object]) -> Iterator[Call]:
    for arg in args:
        if isinstance(arg, Call):
            yield arg
        elif isinstance(arg, Result):
            yield arg.call
        elif isinstance(arg, tuple):
            yield from _read(arg)


_ALIKE = {
    "pow": ("square",), "linalg_vector_norm": ("vector_norm",), "norm": ("vector_norm",), "_softmax": ("softmax",),
    "_safe_softmax": ("softmax",), "native_layer_norm": ("layer_norm",), "native_dropout": ("dropout",),
    "_fused_dropout": ("dropout",), "_masked_scale": ("dropout_backward",), "clamp_min": ("relu",),
    "native_dropout_backward": ("dropout_backward",), "native_group_norm_backward": ("group_norm_backward",),
    **{name.removeprefix("aten."): ("batch_norm",) for name in BATCH_NORMS},
    **{name.removeprefix("aten."): ("batch_norm_backward",) for name in BATCH_NORM_BACKWARDS},
    **{name.removeprefix("aten."): ("group_norm",) for name in GROUP_NORMS},
}  # fmt: skip
"""Canonical kinds of an op beside its own name, whatever its arguments are (:mod:`auditor.graph.normal`)."""


def _kinds(op: Op) -> Step:
    name = base_name(op.name).removeprefix("aten.")
    return frozenset({name, *_ALIKE.get(name, ())})


def _is_gate(pattern: Pattern) -> bool:
    return len(pattern.calls) == 2 and pattern.sink.kinds == {"mul"} and pattern.calls[0].kinds >= {"silu"}


Pair = tuple[frozenset[str], frozenset[str]]


def _pinned(pattern: Pattern) -> Pair | None:
    """Kinds of a GEMM and of an op that reads its result and no other tensor: ``g = mm(a, b); y = relu(g)``."""
    if len(pattern.calls) != 2:
        return None
    first, sink = pattern.calls
    reads_one = list(_read(sink.args)) == [first] and not any(isinstance(arg, Variable) for arg in sink.args)
    return (first.kinds, sink.kinds) if reads_one and first.kinds == OP_CLASSES["gemm"] else None


def _fits(pair: Pair, gemm: Op, op: Op) -> bool:
    return not _kinds(gemm).isdisjoint(pair[0]) and not _kinds(op).isdisjoint(pair[1])
