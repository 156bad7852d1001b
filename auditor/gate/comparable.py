"""Whether a baseline can be held against a run: counts of another device, torch or set of rules mean something else."""

from __future__ import annotations

from auditor.errors import AuditError
from auditor.gate_document import Head
from auditor.report.format import safe

_AGAIN = "make a baseline anew with: fusion-audit baseline {run} -o FILE"


def check_comparable(baseline: Head, run: Head, label: str) -> None:
    """Refuse a ``baseline`` (which ``label`` names) that says nothing of ``run``, with what to do.

    Raises:
        AuditError: another kind of device, another minor version of torch, other rules, only one's edges observed, or
            another number of ranks that are not alike.
    """
    again = _AGAIN.format(run=safe(run.id or "latest"))
    if baseline.kind != run.kind:
        raise AuditError(
            f"{label} is of a {safe(baseline.kind)} and the run of a {safe(run.kind)}: kernels are counted "
            f"differently there; record the run on the same kind of device, or {again}"
        )
    theirs, ours = minor(baseline.torch), minor(run.torch)
    if theirs and ours and theirs != ours:
        raise AuditError(
            f"{label} is of torch {safe(theirs)} and the run of torch {safe(ours)}, which dispatch other kernels for "
            f"the same code; run with torch {safe(theirs)}, or {again}"
        )
    if _rules(baseline) != _rules(run):
        raise AuditError(
            f"{label} was audited with {_chosen(baseline)} and the run with {_chosen(run)}; run again with the same "
            f"--select and --ignore, or {again}"
        )
    if (baseline.edges == "inferred") != (run.edges == "inferred"):
        raise AuditError(
            f"{label} has {safe(baseline.edges)} edges and the run {safe(run.edges)} ones, so that findings differ "
            f"without a change of the program; give the trace its --execution-trace, or {again}"
        )
    _check_ranks(baseline, run, label, again)


def _check_ranks(baseline: Head, run: Head, label: str, again: str) -> None:
    """Another number of ranks compares only where every rank ran the same: then one of them stands for all."""
    theirs, ours = baseline.world_size, run.world_size
    if theirs == ours or (min(theirs, ours) > 1 and baseline.alike and run.alike):
        return
    if min(theirs, ours) <= 1:
        words = [("one process" if size <= 1 else f"{size} ranks") for size in (theirs, ours)]
        raise AuditError(
            f"{label} is of {words[0]} and the run of {words[1]}: ranks also run the copies and collectives between "
            f"them; record the run in {words[0]}, or {again}"
        )
    raise AuditError(
        f"{label} is of {theirs} ranks and the run of {ours}, and not all ranks of one run the same kernels: which of "
        f"them to compare can't be told; run it with {theirs} ranks, or {again}"
    )


def minor(torch: str) -> str:
    """``2.13`` of ``2.13.0+cpu``; empty where a trace does not say."""
    return ".".join(torch.split("+")[0].split(".")[:2])


def _rules(head: Head) -> tuple[list[str], list[str]]:
    return sorted(map(str.lower, head.select)), sorted(map(str.lower, head.ignore))


def _chosen(head: Head) -> str:
    parts = [f"only {', '.join(map(safe, head.select))}" if head.select else "every rule"]
    return " ".join([*parts, f"but {', '.join(map(safe, head.ignore))}"] if head.ignore else parts)
