"""The ``where`` section of a rule, checked on a match. Each check answers with the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isclose
from typing import Any

from auditor.engine.match import Match
from auditor.graph.model import Value, owner_of
from auditor.graph.nodes import CValue

LAST_DECIMAL = 5.1e-7
"""Traces write numbers with six decimals: half a unit of the last one may be lost."""


@dataclass(slots=True)
class Lookup:
    """What the names of a pattern stand for in one match; ``None`` where the matched form lacks the name."""

    match: Match
    results: dict[str, CValue]

    def __call__(self, name: str) -> Value | None:
        """The tensor behind a name: an input, or the result of a call."""
        content = self.content(name)
        return content.value if content is not None else None

    def content(self, name: str) -> CValue | None:
        return self.match.variables.get(name) or self.results.get(name)

    def number(self, name: str) -> float | None:
        """The number behind a ``c_*`` name; ``None`` for one that is kept in a tensor and so unknown."""
        found = self.match.constants.get(name)
        return float(found) if isinstance(found, int | float) else None


def lookup_in(match: Match) -> Lookup:
    """The names of ``match``'s pattern."""
    return Lookup(match, {call.name: node.outs[0] for call, node in match.nodes.items() if node.outs})


def means(where: dict[str, Any], lookup: Lookup) -> bool:
    """Whether ops of the pattern's form are what the rule is about at all: else they are no match, and none is refused.

    It depends on what tensors hold (``holds``), what they are cast to right away (``cast_to``), when they are made
    (``phase``).
    """
    return all(
        content is None or check(content, wanted)
        for key, check in _MEANS.items()
        for name, wanted in where.get(key, {}).items()
        for content in (lookup.content(name),)
    )


def _holds(content: CValue, dtypes: list[str]) -> bool:
    return content.value.dtype in dtypes


def _cast_to(content: CValue, dtypes: list[str]) -> bool:
    casts = (out for user in content.users if user.kind == "cast" for out in user.outs)
    return any(_holds(made, dtypes) for made in (content, *casts))


def _phase(content: CValue, phase: str) -> bool:
    return content.producer is not None and content.producer.phase == phase


_MEANS: dict[str, Callable[[CValue, Any], bool]] = {"holds": _holds, "cast_to": _cast_to, "phase": _phase}


def violated(where: dict[str, Any], lookup: Lookup) -> str | None:
    """The first constraint that the match breaks, as a reason; ``None`` if it keeps them all.

    Names that the matched alternative does not use are passed over.
    """
    for key, wanted in where.items():
        for reason in () if key in _MEANS else _CHECKS[key](wanted, lookup):
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


def _halves_of(wanted: dict[str, list[str]], lookup: Lookup) -> list[str]:
    reasons = []
    for name, halves in wanted.items():
        whole, parts = lookup.content(name), [c for half in halves if (c := lookup.content(half)) is not None]
        if whole is not None and len(parts) == 2 and not _are_halves(whole, *parts):
            reasons.append(f"{halves[0]} and {halves[1]} are not the first and second half of {name}")
    return reasons


def _are_halves(whole: CValue, first: CValue, second: CValue) -> bool:
    if not (_is_part(first, whole) and _is_part(second, whole)):
        return False
    sizes = {2 * first.value.numel, 2 * second.value.numel}
    return sizes == {whole.value.numel} and _in_order(first.value, second.value)


def _in_order(first: Value, second: Value) -> bool:
    """``first`` lies before ``second``. A graph of inferred edges knows no offsets: there any order passes."""
    if any(v.producer is not None and v.producer.inferred for v in (first, second)):
        return True
    return first.storage != second.storage or first.offset < second.offset


def _is_part(part: CValue, whole: CValue) -> bool:
    """``part`` was cut out of ``whole``, casts and copies looked through."""
    content = part.root
    while content.producer is not None and content.producer.kind == "slice":
        content = content.producer.args[0].root
        if content is whole.root:
            return True
    return False


def _number(wanted: dict[str, float], lookup: Lookup) -> list[str]:
    return [
        f"{name} is {found:g}, expected {number:g}"
        for name, number in wanted.items()
        if (found := lookup.number(name)) is not None and not _same_number(found, number)
    ]


def _size_power(wanted: dict[str, list[Any]], lookup: Lookup) -> list[str]:
    reasons = []
    for name, (other, power) in wanted.items():
        found, whole = lookup.number(name), lookup(other)
        if found is None or whole is None or not whole.shape or not whole.shape[-1]:
            continue
        number = float(whole.shape[-1]) ** power
        if not _same_number(found, number):
            size = f"the last dimension of {other}, {whole.shape[-1]}"
            reasons.append(f"{name} is {found:g}, expected {number:g} ({size}, to the power {power:g})")
    return reasons


def _same_number(found: float, wanted: float) -> bool:
    return isclose(found, wanted, rel_tol=1e-6, abs_tol=LAST_DECIMAL)


_CHECKS: dict[str, Callable[[Any, Lookup], list[str]]] = {
    "dtype": _dtype,
    "rank": _rank,
    "row_of": _row_of,
    "same_size": _same_size,
    "full_size": _full_size,
    "parameter": _parameter,
    "computed": _computed,
    "halves_of": _halves_of,
    "number": _number,
    "size_power": _size_power,
}
