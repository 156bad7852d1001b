"""Whether a fused kernel that has to run did run: read from the tables of ops and kernels of a stored run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from auditor.budget import Requirement
from auditor.config import covers
from auditor.document import Document
from auditor.engine.fused import REPLACEMENTS, FusedNames
from auditor.engine.rules import Rule
from auditor.gate.budget import Demand
from auditor.gate.culprits import of_change, of_found
from auditor.gate_document import Check, Culprit, FindingChange, Snapshot
from auditor.graph.model import Kernel, OpGraph
from auditor.report.format import clip, count, plural, safe

if TYPE_CHECKING:
    from auditor.store import StoredRun

_SHOWN, _LONGEST = 5, 60


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel: its name, and the op and module that launched it (empty where no op claims it)."""

    kernel: str
    op: str = ""
    module: str = ""


def launches_of(run: StoredRun, rank: int | None = None) -> list[Launch]:
    """Every kernel of a stored run, or of another ``rank`` of it, transfers left out.

    Raises:
        AuditError: its tables are not there.
    """
    before = "" if rank is None else f"rank{rank}_"
    ops = run.table(f"{before}ops", ["name", "module"])
    names, modules = (ops.column(column).to_pylist() for column in ("name", "module"))
    kernels = run.table(f"{before}kernels", ["op", "name"])
    pairs = zip(kernels.column("op").to_pylist(), kernels.column("name").to_pylist(), strict=True)
    return [
        Launch(kernel) if op is None else Launch(kernel, names[op], modules[op])
        for op, kernel in pairs
        if not Kernel(kernel, 0.0, 0.0).is_transfer
    ]


def launches_in(graph: OpGraph) -> list[Launch]:
    """Every kernel of an op graph, transfers left out: what :func:`launches_of` gives once it is stored."""
    claimed = [Launch(k.name, op.name, op.module) for op in graph.ops for k in op.kernels if not k.is_transfer]
    return claimed + [Launch(kernel.name) for kernel in graph.unlinked if not kernel.is_transfer]


def check_live(
    demand: Demand, launches: Sequence[Launch], document: Document, now: Snapshot, rules: Sequence[Rule],
    changes: Sequence[FindingChange] = (),
) -> Check:  # fmt: skip
    """Whether the kernels that are demanded are among ``launches``, and what ran instead.

    ``changes`` are those against a baseline: what came since then is where a kernel that only has a name was lost.
    """
    wanted = demand.wanted
    inside = [each for each in launches if not wanted.modules or fnmatchcase(each.module, wanted.modules)]
    live = sum(map(_test(wanted, rules), inside))
    title = f"{_named(wanted)} is live{f' in {safe(wanted.modules)}' if wanted.modules else ''}"
    enough = live >= wanted.at_least
    message = f"{plural(live, 'kernel')} of it ran" if live else "no kernel of it ran"
    if not enough:
        message += f", at least {count(wanted.at_least)} must; what ran instead: {_instead(inside)}"
    return Check(
        id=demand.id, key="require", title=title, status="passed" if enough else "failed", value=live,
        limit=wanted.at_least, message=message, file=demand.file, line=demand.line,
        culprits=[] if enough else list(_in_its_place(wanted, document, now, rules, changes)),
    )  # fmt: skip


def _test(wanted: Requirement, rules: Sequence[Rule]) -> Callable[[Launch], bool]:
    if wanted.kernel:
        glob = wanted.kernel
        return lambda launch: fnmatchcase(launch.kernel, glob)
    if wanted.replacement:
        name = wanted.replacement
        return lambda launch: _is_replacement(launch.op, name)
    meant = _meant(wanted, rules)
    names, ours = FusedNames(meant), [rule.replacement for rule in meant if rule.replacement]
    return lambda launch: names.covers(launch.kernel) or any(_is_replacement(launch.op, name) for name in ours)


def _is_replacement(op: str, name: str) -> bool:
    """Whether ``op`` is the replacement's, in one of its forms (``rope_one``) or backward."""
    own = op.removeprefix(REPLACEMENTS)
    return own != op and (own == name or own.startswith(f"{name}_"))


def _meant(wanted: Requirement, rules: Sequence[Rule]) -> list[Rule]:
    return [rule for rule in rules if wanted.rule and covers(wanted.rule, rule.id, rule.name)]


def _named(wanted: Requirement) -> str:
    if wanted.kernel:
        return f"kernel {safe(wanted.kernel)}"
    return (
        f"replacement {safe(wanted.replacement)}" if wanted.replacement else f"the fusion of {safe(wanted.rule or '')}"
    )


def _instead(inside: Sequence[Launch]) -> str:
    names = Counter(launch.kernel for launch in inside)
    if not names:
        return "nothing, no op was recorded there"
    shown = [f"{clip(safe(name), _LONGEST)} × {count(n)}" for name, n in names.most_common(_SHOWN)]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {plural(more, 'other')}" if more > 0 else "")


def _in_its_place(
    wanted: Requirement, document: Document, now: Snapshot, rules: Sequence[Rule], changes: Sequence[FindingChange]
) -> Iterator[Culprit]:
    """The findings that the demanded kernel would do away with; where it only has a name, those that came or grew."""
    ids = {rule.id for rule in _meant(wanted, rules)}
    inside = dict(_inside(wanted, document))
    if wanted.kernel:
        grown = (change for change in changes if change.change in ("new", "more"))
        yield from (of_change(change, inside[change.after]) for change in grown if change.after in inside)
        return
    meant = {
        finding.fingerprint
        for finding in document.findings
        if finding.rule in ids or (wanted.replacement and finding.replacement == wanted.replacement)
    }
    for found in now.findings:
        if found.fingerprint in meant and found.fingerprint in inside:
            yield of_found(found, inside[found.fingerprint])


def _inside(wanted: Requirement, document: Document) -> Iterator[tuple[str, str]]:
    """Fingerprints of the findings where the kernel is demanded, each with a module of it that lies there."""
    for finding in document.findings:
        module = next((m for m in finding.modules if not wanted.modules or fnmatchcase(m, wanted.modules)), None)
        if module is not None:
            yield finding.fingerprint, module
