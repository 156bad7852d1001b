"""Steps of a trace in which nothing marks them, and that are alike without being the same.

An update every few steps, a read-out now and then, state that the first step makes, a loader that loads more or less:
a few ops differ, and the sequence of all does not repeat. A run of ops that comes once in each step and nowhere else
still tells where each stands, and it is only believed where all steps between have nearly the same ops in nearly the
same order, each is a step and no layer, and nothing else is in the window. What it takes for granted is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from auditor.collect.kineto import Event, Trace
from auditor.collect.repetition import is_fed_from_outside, main_ops, starts_of_backward, waits_before

_RUN = 8
"""Ops in a row that tell a place of a step."""
_ORDER = 3
"""Ops in a row of which two steps have to have the same: their order counts, too."""
_SHORTEST = 24
"""Ops of a step: fewer are alike by chance."""
_SPREAD = 1.6
"""Longest by shortest step, in ops."""
_ALIKE, _FIRST_ALIKE = 0.8, 0.5
"""Part of the runs of ops that a step, and the first one, which makes state, has in common with the usual one."""
_RELATED = 0.4
"""The same of steps that are too different to be told, and still are steps."""
_WHOLE = 0.9
"""The same of the last one, where steps are to begin with the window: one that ends in mid-step may begin so."""
_MOST_LEAD = 0.25
"""Part of a step before the run that tells it, in the first one of the window."""
_SHIFT = 8
"""Ops by which that part of another step may be longer or shorter."""
_PAUSE = 3.0
"""Wait before a step by the usual one between two ops: less tells nothing."""
_FEEDS = ("aten::embedding", "aten::nll_loss", "aten::cross_entropy_loss")
"""What a step does and its layers do not; layers of experts have ``topk``, and may read numbers out."""
_BASE = np.uint64(0x9E3779B97F4A7C15)

Codes = NDArray[np.int64]
Piece = tuple[int, int]
"""Ops from the first on up to the second."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """``marks``: when each step begins. ``assumed`` is a sentence on what that rests on, ``unit`` what repeats.

    ``at_begin``: the first begins where the window does.
    """

    marks: tuple[float, ...]
    unit: str
    assumed: str
    at_begin: bool


@dataclass(frozen=True, slots=True)
class _Thread:
    """Ops of the thread that calls the model: names as ``codes``, runs of a few (``order``) and of some (``runs``) as
    numbers, how long it waited before each, and when backward nodes started on any thread.
    """

    ops: Sequence[Event]
    codes: Codes
    order: Codes
    runs: Codes
    waits: NDArray[np.float64]
    backward: Sequence[float]


def likeness(trace: Trace, ops: Sequence[Event]) -> Iterator[Likeness]:
    """What may be the steps of ``trace``, the shortest first; at least two begin in the window."""
    outer = main_ops(ops)
    if len(outer) < 2 * _SHORTEST:
        return
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(event.name, len(numbers)) for event in outer], np.int64)
    backward = starts_of_backward(trace)
    waits = np.array(waits_before(outer, backward))
    thread = _Thread(outer, codes, _runs(codes, _ORDER), _runs(codes, _RUN), waits, backward)
    for places in _once_a_step(thread):
        for begins in _turned(thread, places):
            if (made := _judged(thread, begins)) is not None:
                yield made
                break
        if len(places[0]) > 2 and _usual(thread, _between(places[0]), [_RELATED] * (len(places[0]) - 1)) is not None:
            return  # these are steps, too different to be told or of unknown begin: several of them are none


def _runs(codes: Codes, length: int) -> Codes:
    """A number for each run of ``length`` ops; equal runs have equal ones."""
    hashes = np.zeros(len(codes) - length + 1, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(length):
            hashes = hashes * _BASE + codes[i : len(codes) - length + 1 + i].astype(np.uint64) + np.uint64(1)
    return np.unique(hashes, return_inverse=True)[1].astype(np.int64)


def _once_a_step(thread: _Thread) -> Iterator[Codes]:
    """Places of the runs that are as often there as each other, a row for each: of the most frequent first."""
    size = len(thread.ops)
    order = np.argsort(thread.runs, kind="stable")
    counts = np.bincount(thread.runs)
    first = np.cumsum(counts) - counts
    for often in sorted(set(counts[counts > 1].tolist()), reverse=True):
        if (often - 1) * _SHORTEST > size:
            continue
        places = order[first[counts == often][:, None] + np.arange(often)]
        gaps = np.diff(places, axis=1)
        longest = gaps.max(axis=1)
        fits = (gaps.min(axis=1) >= _SHORTEST) & (longest <= _SPREAD * gaps.min(axis=1))
        fits &= (places[:, 0] <= _SPREAD * longest) & (size - places[:, -1] <= _SPREAD * longest)
        if fits.any():
            yield places[fits]


def _turned(thread: _Thread, places: Codes) -> Iterator[Codes]:
    """Where steps may begin: with the window, or after the longest wait."""
    runs = thread.runs
    for behind in range(_RUN):  # a run that ends one step and begins the next as the window begins
        moved = places[places[:, -1] + behind < len(runs)] + behind
        alike = moved[(runs[moved] == runs[0]).all(axis=1)]
        if len(alike):
            yield alike[0] if alike[0, 0] == 0 else np.append(0, alike[0])
            break
    earliest = places[np.argmin(places[:, 0])]
    lead = int(earliest[0])
    if lead <= _MOST_LEAD * np.diff(earliest).min():
        yield np.array([_begin(thread, lead, place) for place in earliest.tolist()])
    usual = np.median(thread.waits[places], axis=1)
    if usual.max() > _PAUSE * np.median(thread.waits):
        yield places[np.argmax(usual)]


def _begin(thread: _Thread, lead: int, place: int) -> int:
    """Where the step begins whose run is at ``place``, as in the first step it is ``lead`` ops behind the begin."""
    codes, order, begin = thread.codes, thread.order, place - lead
    differ = np.flatnonzero(codes[:lead][::-1] != codes[begin:place][::-1])
    if not len(differ):
        return begin
    near = sorted(range(max(begin - _SHIFT, 0), min(begin + _SHIFT, place)), key=lambda at: abs(at - begin))
    return next((at for at in near if order[at] == order[0]), place - int(differ[0]))


def _between(begins: Codes) -> list[Piece]:
    return list(pairwise(begins.tolist()))


def _judged(thread: _Thread, begins: Codes) -> Likeness | None:
    """``begins`` as steps, if what lies between them, and after the last where that is whole, is alike."""
    pieces = _between(begins)
    last = (int(begins[-1]), len(thread.ops))
    with_window = int(begins[0]) == 0
    if with_window or len(pieces) == 1 or last[1] - last[0] >= _ALIKE * median_low(b - a for a, b in pieces):
        pieces.append(last)
    first = _FIRST_ALIKE if len(pieces) > 3 else _ALIKE
    usual = _usual(thread, pieces, [first, *(_ALIKE for _ in pieces[2:]), _WHOLE if with_window else _ALIKE])
    if usual is None:
        return None
    named = Counter(thread.codes[slice(*pieces[usual])].tolist())
    differ = [_difference(named, Counter(thread.codes[a:b].tolist())) for a, b in pieces]
    marks = tuple(thread.ops[begin].start for begin in begins.tolist())
    size = pieces[usual][1] - pieces[usual][0]
    assumed = _assumed(thread.ops[int(begins[0])].name, with_window, size, differ)
    return Likeness(marks, f"about {size:,} ops", assumed, with_window)


def _usual(thread: _Thread, pieces: Sequence[Piece], least: Sequence[float]) -> int | None:
    """The piece of median size, if all are steps, and each at ``least`` so much like it."""
    kinds = int(thread.order.max()) + 1

    def runs_of(piece: Piece) -> Codes:
        return np.bincount(thread.order[piece[0] : max(piece[1] - _ORDER + 1, piece[0])], minlength=kinds)

    sizes = [b - a for a, b in pieces]
    usual = sizes.index(median_low(sizes))
    runs = runs_of(pieces[usual])
    for piece, wanted in zip(pieces, least, strict=True):  # one by one: there may be thousands, of as many kinds
        if _alike(runs_of(piece), runs) < wanted:
            return None
    return usual if _are_steps(thread, pieces, usual) else None


def _alike(one: Codes, other: Codes) -> float:
    total = int(one.sum() + other.sum())
    return 2 * int(np.minimum(one, other).sum()) / total if total else 1.0


def _are_steps(thread: _Thread, pieces: Sequence[Piece], usual: int) -> bool:
    """Whether each piece trains as much as the others, or else takes its input from outside."""
    ops = thread.ops
    unit = ops[slice(*pieces[usual])]
    if not thread.backward:
        return any(event.name.startswith(_FEEDS) for event in unit) or is_fed_from_outside(unit)
    edges = [ops[a].start for a, _ in pieces]
    edges.append(ops[pieces[-1][1]].start if pieces[-1][1] < len(ops) else np.inf)
    nodes = np.diff(np.searchsorted(thread.backward, edges))
    return bool(nodes.min() > 0 and nodes.min() >= _ALIKE * nodes.max())


def _difference(one: Counter[int], other: Counter[int]) -> int:
    """Ops that only one of two steps has."""
    return (one - other).total() + (other - one).total()


def _assumed(op: str, with_window: bool, size: int, differ: Sequence[int]) -> str:
    rest = max(differ[1:], default=0)
    told = [f"the first differs by {differ[0]:,} ops"] if differ[0] > rest else []
    told += [f"{'others' if told else 'they differ'} by up to {rest:,}"] if rest else []
    where = "with the window" if with_window else "after the longest wait"
    return (
        f"Nothing marks the steps of the trace, and they are alike, not the same: of {size:,} ops "
        f"{', '.join(told) or 'none differs but in its order'}. It is assumed that a step begins {where}, at {op}."
    )
