"""What is measured, over several runs of one program: the median of each figure, and how sure that is.

A time of one run says little: a machine's pace differs from run to run. Runs are of one program where name, device,
torch, plan, ranks, commit and all counts are equal; a commit that is not known, or with changes on top, may be of
anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from auditor.commit import DIRTY
from auditor.document import Document
from auditor.errors import AuditError
from auditor.gate.measures import KINDS, Spreads, figures_of
from auditor.gate_document import Figures, Snapshot, Spread
from auditor.measuring.ratio import Ratio
from auditor.store import RunFilter, Store, StoredRun

_MOST, _LOOKED_AT = 20, 100
"""Runs that a median is of, and stored runs among which they are looked for, the last ones."""
_WIDEST = 10.0
"""Of an interval: its end over its beginning. One that is wider says nothing, and would excuse every time."""


class _Finding(msgspec.Struct):
    """A finding of which nothing is read."""


class _Totals(Document, kw_only=True):
    """A document without its findings, which take most of the time that it takes to read one."""

    findings: list[_Finding] = []  # type: ignore[assignment]


def spreads_of(run: StoredRun, store: Store) -> Spreads:
    """Of each figure that is measured, over ``run`` and the other runs of its program in ``store``."""
    alike = [figures_of(run.document), *_alike(run, store)]
    found = {
        kind.key: spread([getattr(each, kind.key) for each in alike]) for kind in KINDS.values() if not kind.counted
    }
    return {key: value for key, value in found.items() if value is not None}


def spread(values: list[float | None]) -> Spread | None:
    """The median of what is known, with its 95 % interval where that says something; None where nothing is known.

    What is no number above 0 is not known.
    """
    known = [value for value in values if value is not None and 0 < value < math.inf]
    if not known:
        return None
    one = Ratio.of(known, [1.0] * len(known))
    if len(known) == 1 or one.high > _WIDEST * one.low:
        return Spread(runs=len(known), median=one.ratio)
    return Spread(runs=len(known), median=one.ratio, low=one.low, high=one.high)


def with_medians(snapshot: Snapshot, spreads: Spreads) -> Snapshot:
    """``snapshot`` with the medians of what is measured."""
    medians = {key: each.median for key, each in spreads.items()}
    return msgspec.structs.replace(snapshot, figures=msgspec.structs.replace(snapshot.figures, **medians))


def _alike(run: StoredRun, store: Store) -> Iterator[Figures]:
    own = run.document
    commit, name = own.run.commit, own.run.name
    if not name or not commit or commit.endswith(DIRTY):
        return
    left = _MOST - 1
    for each in store.list_runs(RunFilter(name=name, device=own.run.device.name), limit=_LOOKED_AT):
        if left and each.id != run.id and each.kernels == own.totals.kernels:
            try:
                other = store.load(each.id, _Totals).document
            except AuditError:  # deleted meanwhile, damaged or of another version: not this run's fault
                continue
            if _program(other) == _program(own):
                left -= 1
                yield figures_of(other)


def _program(document: Document) -> tuple[object, ...]:
    run, totals = document.run, document.totals
    counts = (totals.kernels, totals.unfused_kernels, totals.avoidable_kernels, totals.bytes, document.coverage.steps)
    return run.torch, run.plan, run.commit, run.exit_code, run.world_size, run.rank, counts
