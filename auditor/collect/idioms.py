"""Idioms whose reads shape and order cannot tell apart; the ops that follow can.

* Rotary embedding, ``x·a + rotate(x)·b``: after ``x·a`` the next read looks alike for ``x``, for ``x·a`` and for every
  other head tensor. If nothing but rearranging, one product and one sum come, the rearranged tensor is ``x``.
* GELU by tanh, ``0.5·x·(1 + tanh(c·(x + d·x³)))``: ``0.5·x`` waits for its product while ``x`` is read twice more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from auditor.collect.foreign_ops import ForeignOp

_REARRANGE = frozenset({"neg", "cat", "stack", "roll", "flip", "clone", "copy_"})
_SUMS = frozenset({"add", "sub", "add_", "sub_"})
_LONGEST = 6
"""Most rearranging ops between the two products of a rotation."""
_GELU = ("mul", "pow", "mul", "add", "mul", "tanh", "add", "mul")


@dataclass(slots=True)
class Idioms:
    """``product_of``: for each op (by number) inside an idiom, the number of the product that still waits there.
    ``products`` and ``sums``: first and last ops of rotations. ``others``: ops inside an idiom that read neither that
    product nor what it was made from.
    """

    product_of: dict[int, int] = field(default_factory=dict)
    products: set[int] = field(default_factory=set)
    sums: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)


def find_idioms(ops: Sequence[ForeignOp]) -> Idioms:
    """Idioms among the ops of one thread."""
    compute = [op for op in ops if not op.call.is_view]
    found = Idioms()
    for first, second, total in _rotations(compute):
        found.product_of.update((number, first) for number in range(first + 1, second))
        found.products.add(first)
        found.sums.add(total)
    for half, power, scaled, total, *rest in _gelus(compute):
        found.product_of.update((number, half) for number in (power, scaled, total, *rest[:-1]))
        found.others.update((scaled, *rest[:-1]))
    return found


def _rotations(compute: Sequence[ForeignOp]) -> Iterator[tuple[int, int, int]]:
    """Numbers of the two products and the sum."""
    for i, product in enumerate(compute):
        if product.call.manner.base != "mul":
            continue
        j = i + 1
        while j < len(compute) and j - i <= _LONGEST and compute[j].call.manner.base in _REARRANGE:
            j += 1
        if j > i + 1 and j + 1 < len(compute) and _closes(product, compute[j], compute[j + 1]):
            yield product.number, compute[j].number, compute[j + 1].number


def _closes(first: ForeignOp, second: ForeignOp, total: ForeignOp) -> bool:
    if second.call.manner.base != "mul" or total.call.manner.base not in _SUMS:
        return False
    return len({op.call.effect.outputs[0].shape for op in (first, second, total) if op.call.effect.outputs}) == 1


def _gelus(compute: Sequence[ForeignOp]) -> Iterator[list[int]]:
    """Numbers of the ops of each."""
    names = [op.call.manner.base for op in compute]
    for i in range(len(names) - len(_GELU) + 1):
        if names[i] == "mul" and tuple(names[i : i + len(_GELU)]) == _GELU:
            yield [op.number for op in compute[i : i + len(_GELU)]]
