"""Why a rule found nothing at a place: claimed, suppressed, refused, or how far the pattern got."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath

from auditor.engine.claims import claim
from auditor.engine.legality import Refusal
from auditor.engine.nearest import nearest
from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, OpGraph

MAX_LINES = 12


def explain(graph: OpGraph, rules: Sequence[Rule], rule_id: str, at: str) -> str:
    """Sentences, one a line, on what ``rule_id`` did at ``at``: a module (glob allowed) or ``file.py:LINE``.

    Raises AuditError where ``at`` names no recorded op.
    """
    ops = ops_at(graph, at)
    here = {op.index for op in ops}
    rule = next(r for r in rules if r.id == rule_id)
    canonical = Canonical(graph)
    claims = claim(canonical, rules)
    lines = [_found(c) for c in claims.sites if c.rule.id == rule_id and here & _members(c)]
    alone = claim(canonical, [rule])
    if not lines:
        lines = _taken(alone.sites, claims.sites, here, rule_id)
        lines += [_refused(r) for _, r in alone.refused if here & {op.index for op in r.ops}]
    if not lines:
        lines = nearest(canonical, rule, ops)
    unique = list(dict.fromkeys(lines))
    if len(unique) > MAX_LINES:
        unique = [*unique[:MAX_LINES], f"… and {len(unique) - MAX_LINES} more"]
    head = f"{rule.id} {rule.name} at {at}: {len(ops)} ops recorded, {sum(op.launches for op in ops)} kernels"
    return "\n".join([head, *(f"  {line}" for line in unique)])


def ops_at(graph: OpGraph, at: str) -> list[Op]:
    """The ops of a module (and of what it contains), or of a source line.

    ``at`` is a module path or glob, a module class, or ``file.py:LINE`` with any tail of the path.
    """
    file, colon, line = at.rpartition(":")
    if colon and line.isdigit():
        found = [
            op for op in graph.ops if op.source and op.source.line == int(line) and _same_file(op.source.file, file)
        ]
    else:
        found = [op for op in graph.ops if _in_module(op, at)]
    if not found:
        raise AuditError(f"no op was recorded at {at!r}; {_known(graph, bool(colon and line.isdigit()))}")
    return found


def _in_module(op: Op, at: str) -> bool:
    return (
        op.module == at
        or (bool(at) and op.module.startswith(at + "."))
        or op.module_class == at
        or fnmatchcase(op.module, at)
    )


def _same_file(recorded: str, wanted: str) -> bool:
    have, want = PurePath(recorded.replace("\\", "/")).parts, PurePath(wanted.replace("\\", "/")).parts
    return have[-len(want) :] == want


def _known(graph: OpGraph, line: bool) -> str:
    if line:
        places = dict.fromkeys(str(op.source) for op in graph.ops if op.source)
        what = "lines with ops"
    else:
        places = dict.fromkeys(op.module for op in graph.ops if op.module)
        what = "modules"
    if not places:
        return f"this run has no {what}"
    shown = list(places)[:8]
    return f"{what}: {', '.join(shown)}{', …' if len(places) > len(shown) else ''}"


def _members(candidate: Candidate) -> set[int]:
    return {op.index for op in candidate.region.ops}


def _found(candidate: Candidate) -> str:
    ops = candidate.region.ops
    return f"found: a site of {len(ops)} ops, {_span(ops)}; it is in the findings"


def _taken(alone: Iterable[Candidate], claimed: Iterable[Candidate], here: set[int], rule_id: str) -> list[str]:
    lines = []
    for candidate in alone:
        members = _members(candidate)
        if not here & members:
            continue
        winner = next((c for c in claimed if c.rule.id != rule_id and _members(c) & members), None)
        if winner is not None:
            shared = min(_members(winner) & members)
            op = next(o for o in candidate.region.ops if o.index == shared)
            lines.append(
                f"matched, but {winner.rule.id} {winner.rule.name} took {op.name} (op {op.index}): "
                f"it saves {winner.bytes_saved:,} bytes there, this {candidate.bytes_saved:,}"
            )
        else:
            lines.append(
                f"matched: a site of {len(members)} ops, {_span(candidate.region.ops)}; "
                "its rule is ignored or suppressed"
            )
    return lines


def _refused(refusal: Refusal) -> str:
    where = f" ({refusal.op.source})" if refusal.op.source else ""
    return f"refused: {refusal.reason}; op {refusal.op.index} {refusal.op.name}{where}"


def _span(ops: Sequence[Op]) -> str:
    return f"op {ops[0].index} {ops[0].name} to op {ops[-1].index} {ops[-1].name}"
