"""The ``where`` section of a rule, checked on a match. Each check answers with the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auditor.engine.match import Match
from auditor.graph.canonical import CValue
from auditor.graph.model import Value, owner_of

Lookup = Callable[[str], Value | None]


def lookup_in(match: Match) -> Lookup:
    """The value behind a name of the pattern: an input, or the result of a call."""
    by_call = {call.name: node for call, node in match.nodes.items()}

    def lookup(name: str) -> Value | None:
        variable: CValue | None = match.variables.get(name)
        if variable is not None:
            return variable.value
        node = by_call.get(name)
        return node.outs[0].value if node is not None and node.outs else None

    return lookup


def violated(where: dict[str, Any], lookup: Lookup) -> str | None:
    """The first constraint that the match breaks, as a reason; ``None`` if it keeps them all.

    Names that the matched alternative does not use are passed over.
    """
    for key, wanted in where.items():
        for reason in _CHECKS[key](wanted, lookup):
            return reason
    return None


def _dtype(wanted: dict[str, list[str]], lookup: Lookup) -> list[str]:
    return [
        f"{name} is {value.dtype}, expected {' or '.join(allowed)}"
        for name, allowed in wanted.items()
        if (value := lookup(name)) is not None and value.dtype not in allowed
    ]


def _rank(wanted: dict[str, int], lookup: Lookup) -> list[str]:
    return [
        f"{name} has rank {_true_rank(value)}, expected {rank}"
        for name, rank in wanted.items()
        if (value := lookup(name)) is not None and _true_rank(value) > rank
    ]


def _true_rank(value: Value) -> int:
    """Rank without leading dimensions of size 1, which broadcasting adds freely."""
    shape = list(value.shape)
    while shape and shape[0] == 1:
        shape.pop(0)
    return len(shape)


def _row_of(wanted: dict[str, str], lookup: Lookup) -> list[str]:
    reasons = []
    for name, other in wanted.items():
        value, whole = lookup(name), lookup(other)
        if value is not None and whole is not None and whole.shape and value.numel != whole.shape[-1]:
            reasons.append(f"{name} has {value.numel} elements, the last dimension of {other} has {whole.shape[-1]}")
    return reasons


def _same_size(wanted: list[list[str]], lookup: Lookup) -> list[str]:
    reasons = []
    for names in wanted:
        found = [(n, v.numel) for n in names if (v := lookup(n)) is not None]
        if len({size for _, size in found}) > 1:
            reasons.append(f"{found[0][0]} and {found[-1][0]} differ in size ({found[0][1]}, {found[-1][1]})")
    return reasons


def _full_size(wanted: dict[str, str], lookup: Lookup) -> list[str]:
    return [
        f"{name} is broadcast over {other}"
        for name, other in wanted.items()
        if (value := lookup(name)) is not None and (whole := lookup(other)) is not None and value.numel != whole.numel
    ]


def _parameter(wanted: list[str], lookup: Lookup) -> list[str]:
    return [
        f"{name} is computed in the step, expected a weight"
        for name in wanted
        if (value := lookup(name)) is not None and owner_of(value).producer is not None
    ]


def _computed(wanted: list[str], lookup: Lookup) -> list[str]:
    return [
        f"{name} is not computed in the step"
        for name in wanted
        if (value := lookup(name)) is not None and owner_of(value).producer is None
    ]


_CHECKS: dict[str, Callable[[Any, Lookup], list[str]]] = {
    "dtype": _dtype,
    "rank": _rank,
    "row_of": _row_of,
    "same_size": _same_size,
    "full_size": _full_size,
    "parameter": _parameter,
    "computed": _computed,
}
