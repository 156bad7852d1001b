"""Documents without the parts that only one page needs: the sites of a large run take most of its time and memory."""

from __future__ import annotations

import msgspec

from auditor.document import Document, Finding


class _Skipped(msgspec.Struct, frozen=True, gc=False):
    """A site of which nothing is kept: only their number is."""


class _SiteOps(msgspec.Struct, frozen=True, gc=False):
    """A site of which only the ops are kept, rows of the run's table of ops, or its kernels that have none."""

    ops: list[int]
    unlinked: list[int] = []


class HeadFinding(Finding, kw_only=True):
    """A finding whose ``places`` can be counted, and no more."""

    places: list[_Skipped] = []  # type: ignore[assignment]


class HeadDocument(Document, kw_only=True):
    """A document as lists and overviews need it."""

    findings: list[HeadFinding] = []  # type: ignore[assignment]


class OpsFinding(Finding, kw_only=True):
    """A finding whose ``places`` have ``ops`` and ``unlinked`` alone."""

    places: list[_SiteOps] = []  # type: ignore[assignment]


class OpsDocument(Document, kw_only=True):
    """A document that says which ops and kernels are in which finding."""

    findings: list[OpsFinding] = []  # type: ignore[assignment]
