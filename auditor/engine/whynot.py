"""Why a rule found nothing at a place: claimed, suppressed, refused, or how far the pattern got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Protocol

from auditor.engine.claims import claim
from auditor.engine.detect import LAST
from auditor.engine.fused import Fusion, fusion_of, leaves_fused_alone
from auditor.engine.legality import Refusal
from auditor.engine.nearest import nearest
from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, OpGraph

MAX_LINES = 12


class Suppressing(Protocol):
    """A setting that leaves sites out."""

    @property
    def reason(self) -> str: ...


def explain(
    graph: OpGraph,
    rule: Rule,
    at: str,
    *,
    chosen: Sequence[Rule],
    suppressed: Callable[[Candidate], Suppressing | None] = lambda _: None,
) -> str:
    """Sentences, one a line, on what ``rule`` did at ``at``: a module (glob allowed), ``file.py:LINE`` or ``op 35``.

    ``chosen`` are the rules that the run used, ``suppressed`` says which setting left a site out.
    Raises AuditError where ``at`` names no recorded op.
    """
    ops = ops_at(graph, at)
    groups = [group for group in _Why(graph, rule, ops, chosen, suppressed).groups() if group]
    said = [line for group in groups for line in _cut(group, MAX_LINES // len(groups))]
    head = f"{rule.id} {rule.name} at {at}: {len(ops)} ops recorded, {sum(op.launches for op in ops)} kernels"
    return "\n".join([head, *(f"  {line}" for line in said)])


def _cut(lines: list[str], limit: int) -> list[str]:
    unique = list(dict.fromkeys(lines))
    return unique if len(unique) <= limit else [*unique[:limit], f"… and {len(unique) - limit} more"]


class _Why:
    """One rule at one place."""

    def __init__(
        self,
        graph: OpGraph,
        rule: Rule,
        ops: Sequence[Op],
        chosen: Sequence[Rule],
        suppressed: Callable[[Candidate], Suppressing | None],
    ) -> None:
        self.graph = Canonical(graph)
        self.rule = rule
        self.ops = ops
        self.here = {op.index for op in ops}
        self.ignored = all(r.id != rule.id for r in chosen)
        self.left_out: list[tuple[Candidate, str]] = []
        claims = claim(
            self.graph, chosen, keep=lambda site: self._keep(site, suppressed(site)), possible=leaves_fused_alone
        )
        self.sites = claims.sites
        self.refused = [r for owner, r in claims.refused if owner.id == rule.id]

    def _keep(self, site: Candidate, setting: Suppressing | None) -> bool:
        if setting is not None:
            self.left_out.append((site, setting.reason))
        return setting is None

    def groups(self) -> list[list[str]]:
        """What was found and what was refused, apart: many of one kind must not hide the other."""
        if self.ignored:
            return [["the rule is ignored: the run's settings did not choose it", *self._alone()]]
        claimed = self._claimed()
        return [claimed, self._refusals(self.refused)] if claimed else [self._alone()]

    def _claimed(self) -> list[str]:
        found = [f"found: {_span(site)}; it is in the findings" for site in self.sites if self._is_ours(site)]
        return found + [
            f"suppressed: {reason} (pyproject.toml); {_span(site)}"
            for site, reason in self.left_out
            if self._is_ours(site)
        ]

    def _is_ours(self, site: Candidate) -> bool:
        return site.rule.id == self.rule.id and not self.here.isdisjoint(_members(site))

    def _alone(self) -> list[str]:
        """What the rule does when no other rule is there to take the kernels."""
        alone = claim(self.graph, [self.rule])
        lines = [self._lost(site) for site in alone.sites if self._is_ours(site)]
        lines += self._refusals([*self.refused, *(r for _, r in alone.refused)])
        return lines or nearest(self.graph, self.rule, self.ops)

    def _refusals(self, refusals: Sequence[Refusal]) -> list[str]:
        return [_refused(r) for r in refusals if self.here & {op.index for op in (r.at, *r.ops)}]

    def _lost(self, site: Candidate) -> str:
        live = next((op for op in site.region.ops if fusion_of(op) is not None), None)
        if live is not None:
            return f"matched, but {live.name} (op {live.index}) ran as a fused kernel already: {_told(fusion_of(live))}"
        members = _members(site)
        taken = [(s, "") for s in self.sites] + [(s, f", suppressed: {reason}") for s, reason in self.left_out]
        winner, note = next(((s, note) for s, note in taken if _members(s) & members), (None, ""))
        if winner is None:
            return f"it would match: {_span(site)}" if self.ignored else f"matched on its own only: {_span(site)}"
        op = next(o for o in site.region.ops if o.index in _members(winner))
        took = f"{winner.rule.id} {winner.rule.name} took {op.name} (op {op.index})"
        return f"matched, but {took}: {self._because(winner, site)}{note}"

    def _because(self, winner: Candidate, site: Candidate) -> str:
        if self.rule.chain is not None or (self.rule.detect or {}).get("what") in LAST:
            return f"{self.rule.id} takes only what no other rule claims"
        if winner.rule.id in self.rule.yields_to:
            return f"{self.rule.id} leaves such kernels to {winner.rule.id}"
        return f"it saves {winner.bytes_saved:,} bytes there, this {site.bytes_saved:,}"


def _told(fusion: Fusion | None) -> str:
    return ": ".join(part for part in fusion if part) if fusion is not None else ""


def ops_at(graph: OpGraph, at: str) -> list[Op]:
    """The ops of a module (and of what it contains), or of a source line.

    ``at`` is a module path or glob, a module class, ``file.py:LINE`` with any tail of the path, a line number alone
    where no module is called so, or ``op 35`` with or without its name, as reports call an op of no known place.
    """
    file, _, line = at.rpartition(":")
    is_line = line.isdigit() and len(line) < 10
    found = [] if file and is_line else [op for op in graph.ops if _in_module(op, at)]
    if not found and is_line:
        found = [
            op
            for op in graph.ops
            if op.source and op.source.line == int(line) and (not file or _same_file(op.source.file, file))
        ]
    found = found or _numbered(graph, at)
    if not found:
        raise AuditError(
            f"no op was recorded at {at!r}; give a module, its class, or file.py:LINE; {_known(graph, is_line)}"
        )
    return found


def _numbered(graph: OpGraph, at: str) -> list[Op]:
    word, _, rest = at.partition(" ")
    number, _, name = rest.partition(" ")
    # Only these digits: int() takes others and what no list is as long as
    if word != "op" or not (number.isascii() and number.isdigit() and len(number) < 10):
        return []
    return [op for op in graph.ops[int(number) : int(number) + 1] if name in ("", op.name)]


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


def _refused(refusal: Refusal) -> str:
    where = f" ({refusal.op.source})" if refusal.op.source else ""
    return f"refused: {refusal.reason}; op {refusal.op.index} {refusal.op.name}{where}"


def _span(site: Candidate) -> str:
    first, last = site.region.ops[0], site.region.ops[-1]
    return f"a site of {len(site.region.ops)} ops, op {first.index} {first.name} to op {last.index} {last.name}"
