"""Chains of memory-bound kernels in a trace without shapes, by the order of ops, their names and their kernels' names.

Eager code is evaluated inside out, so an op mostly reads what the one before it made. A run of memory-bound kernels on
one stream of one thread, with none between that is not, is taken for a chain, and cut where order alone would mislead:

* a result that went down columns is complete only after its kernel: what follows begins a chain of its own;
* the same op twice, by the same kernel, are two tensors' (``q * cos``, ``k * cos``) and not one's, but for the two
  products in the backward of a product, and the scales of a norm after its statistics;
* an order that begins again where it ended is the same code on another tensor;
* a concatenation, a comparison and a copy into another layout read what came from elsewhere as often as what is there;
* in a backward, nothing goes on from a sum that no chain led to (a bias' gradient), and a power is of what was saved;
* a batch norm's statistics need all of its input, so it begins a chain;
* what a forward computed again for a backward made is no gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set

from auditor.engine.chains import JOINING_MOVEMENT
from auditor.engine.costs import IN_PASSES
from auditor.engine.pattern import OP_CLASSES
from auditor.graph.model import ACCUMULATE, Op, OpGraph
from auditor.graph.ops import base_name, kind_of
from auditor.kernels.columns import goes_down_columns

MAX_PERIOD = 32
"""Ops of an order that may begin again."""

LEAST_PERIOD = 4
"""From so many ops on, wherever it stands: shorter ones are in many formulas."""

Line = list[Op | None]
"""Ops with kernels as one thread launched them; ``None`` where nothing may be fused across."""

_ACTIVATIONS = frozenset(f"aten.{name}" for name in OP_CLASSES["activation"])
CASTS = frozenset({"aten._to_copy", "aten.to", "aten.copy"})
_DROPOUT = frozenset({"aten.native_dropout", "aten._fused_dropout"})
_LAYOUTS = frozenset({"aten.clone", "aten.contiguous"})
_QUESTIONS = frozenset(f"aten.{name}" for name in ("eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite"))
"""What asks something of a tensor mostly asks it of ids, lengths or a mask that came from elsewhere."""
_MASKING = frozenset({"aten.masked_fill", "aten.where", "aten.rsub", *_QUESTIONS})
_STATISTICS = frozenset({"aten.mean", "aten.sum", "aten.var", "aten.var_mean", "aten.linalg_vector_norm", "aten.norm"})


def lines(graph: OpGraph, taken: Set[int]) -> list[Line]:
    """The line of each thread; ops in ``taken``, host syncs and collectives part it.

    What adds up the gradient of a weight is passed over: nothing reads it, and nothing waits for it.
    """
    found: dict[int, Line] = defaultdict(list)
    for op in graph.ops:
        if op.scope == ACCUMULATE and kind_of(op.name) != "collective":
            continue
        if op.index in taken or kind_of(op.name) in ("sync", "collective"):
            found[op.thread].append(None)
        elif op.kernels:
            found[op.thread].append(op)
    return list(found.values())


def chains_in(line: Line) -> Iterator[list[Op]]:
    """Chains of at least two ops."""
    for run in _runs(line):
        for part in _parts(run):
            yield from _by_period(part)


def may_join(op: Op) -> bool:
    """Whether the kernels of ``op`` may be part of a chain at all: by its name, where its tensors are not known."""
    if op.scope or op.phase == "optimizer" or not op.launches:
        return False
    base = base_name(op.name)
    return kind_of(op.name) in ("pointwise", "reduction", "norm", "copy") or base in JOINING_MOVEMENT | _DROPOUT


def in_one_place(one: Op, other: Op) -> bool:
    """Whether both run in one phase, on one stream of one device."""
    return (one.phase, _stream(one)) == (other.phase, _stream(other))


def _stream(op: Op) -> tuple[int, int]:
    return op.kernels[0].device, op.kernels[0].stream


def _runs(line: Line) -> Iterator[list[Op]]:
    """Ops that may be part of a chain, as long as nothing else is in between."""
    run: list[Op] = []
    for op in line:
        able = op is not None and may_join(op)
        if run and not (able and op is not None and in_one_place(run[-1], op)):
            yield run
            run = []
        if able and op is not None:
            run.append(op)
    if run:
        yield run


def _parts(run: list[Op]) -> Iterator[list[Op]]:
    """``run``, cut where an op does not seem to read what the ones before it made."""
    start = 0
    for at in range(1, len(run)):
        if _begins_anew(run[start:at], run[at], run[at + 1 :]) or _after_list(run, at):
            yield run[start:at]
            start = at
    yield run[start:]


def _after_list(run: Sequence[Op], at: int) -> bool:
    """``f(a), f(b), g(c)``: one op on a list of tensors, then another on one of them, seldom on the last.

    What reads two tensors (``a * b + c * d``) reads the last two, if it is not on a list itself.
    """
    if at < 2 or run[at].phase == "backward" or run[at - 2].name != run[at - 1].name:
        return False
    if base_name(run[at].name) in _ACTIVATIONS:
        return not any(base_name(op.name) in _STATISTICS for op in run[:at])
    return at + 1 < len(run) and run[at].name == run[at + 1].name


def _begins_anew(chain: Sequence[Op], op: Op, rest: Sequence[Op]) -> bool:
    """Whether ``op``, before ``rest``, does not seem to read what ``chain`` makes."""
    last, name = base_name(chain[-1].name), base_name(op.name)
    if _in_columns(chain[-1]):
        return not _in_columns(op)
    if name in JOINING_MOVEMENT:  # the halves of a rotation are joined after one was negated
        return last != "aten.neg"
    if last in JOINING_MOVEMENT:
        return not (_reduces(op) or (len(chain) > 1 and base_name(chain[-2].name) == "aten.neg"))
    if name in _QUESTIONS | _LAYOUTS or (_in_passes(name) and "backward" not in name):
        return True
    if op.phase == "backward" and (anew := _in_backward(chain, last, name)) is not None:
        return anew
    if kind_of(name) == "norm" and last in _MASKING:
        return True
    return _is_twin(chain[-1], op) and not _twins_belong(chain, op, rest)


def _in_backward(chain: Sequence[Op], last: str, name: str) -> bool | None:
    """The same of an op of a backward; ``None`` where that it is one tells nothing."""
    if name == "aten.pow" or _only_sums(chain):
        return name != "aten.sum"
    if _is_gradient(name):
        made_again = last in _ACTIVATIONS or (kind_of(last) == "norm" and not _is_gradient(last))
        return True if made_again else None
    if name in _ACTIVATIONS:  # of a forward that is computed again
        return None
    # Gradients that are added up are mostly another node's than the next one's.
    of_another = chain[-1].name == "aten.add_" or (kind_of(last) == "reduction" and name == "aten.add")
    return True if of_another else None


def _only_sums(chain: Sequence[Op]) -> bool:
    """In a backward: gradients of biases, which nothing goes on from."""
    return all(base_name(op.name) == "aten.sum" for op in chain)


def _is_gradient(name: str) -> bool:
    return "_backward" in name


def _reduces(op: Op) -> bool:
    return kind_of(op.name) in ("reduction", "norm")


def _is_twin(one: Op, other: Op) -> bool:
    return one.name == other.name and one.kernels[0].name == other.kernels[0].name


def _twins_belong(chain: Sequence[Op], op: Op, rest: Sequence[Op]) -> bool:
    """Whether two calls of one op are of one chain: they read one gradient, or are the scales of one norm."""
    if op.phase == "backward":
        third = chain[-2:-1] if len(chain) > 1 else rest[:1]
        return bool(third) and not _is_twin(third[0], op)
    return any(base_name(each.name) in _STATISTICS for each in chain)


def _in_passes(name: str) -> bool:
    return any(part in name for part in IN_PASSES)


def _in_columns(op: Op) -> bool:
    return any(goes_down_columns(kernel.name) for kernel in op.kernels)


def _by_period(chain: list[Op]) -> Iterator[list[Op]]:
    """``chain``, cut where an order of its ops begins again; a short one only where the chain began with it."""
    names = [base_name(op.name) for op in chain]
    for period in range(min(MAX_PERIOD, len(chain) // 2), 1, -1):
        starts = range(len(chain) - 2 * period + 1) if period >= LEAST_PERIOD else (0,)
        for start in starts:
            if names[start : start + period] == names[start + period : start + 2 * period]:
                yield from _by_period(chain[: start + period])
                yield from _by_period(chain[start + period :])
                return
    chain = _trimmed(chain)
    of_two = _is_twin(*chain[:2]) if len(chain) > 1 else True
    if len(chain) > 3 or not (of_two and all(map(_reduces, chain[2:]))):  # a sum of one of two products: of which?
        yield chain


def _trimmed(chain: list[Op]) -> list[Op]:
    """Without casts at its ends: they may be of the next GEMM's weight. A norm that cast its input casts back."""
    while len(chain) > 1 and CASTS.issuperset(base_name(op.name) for op in chain[:2]):
        chain = chain[1:]
    end = len(chain)
    while end and base_name(chain[end - 1].name) in CASTS:
        end -= 1
    names = [base_name(op.name) for op in chain[:end]]
    casts_back = end < len(chain) and not CASTS.isdisjoint(names) and not _STATISTICS.isdisjoint(names)
    return chain[: end + 1] if casts_back else chain[:end]
