"""What becomes of an audit that a training made: stored, told in a line, held to a budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.integrations import say
from auditor.report.announce import announcement
from auditor.stored import Origin, save

if TYPE_CHECKING:
    from collections.abc import Sequence

    from auditor.audit import Audit
    from auditor.engine.rules import Rule
    from auditor.gate.budget import Demands
    from auditor.gate_document import GateDocument


@dataclass(frozen=True, slots=True)
class Place:
    """Where audits go: the store (``None``: the project's own, as for commands), and the code that they are of."""

    db: str | Path | None
    origin: Origin


def finish(audit: Audit, place: Place) -> bool:
    """Store the audit and tell of it in a line. False where it could not be stored, which is said."""
    from auditor.store import Store

    stored = False
    with say.harmless("the audit could not be stored"):
        with Store.open(place.db) as store:
            save(store, audit, place.origin)
        stored = True
    if not stored:
        audit.document.run.id = ""
    say.line(announcement(audit.document, str(place.db or "")))
    return stored


def held(audit: Audit, demands: Demands, rules: Sequence[Rule], place: Place) -> GateDocument:
    """The verdict on a stored audit: that of ``fusion-audit gate`` on the same run and limits, without a baseline.

    Raises:
        AuditError: the store can't be read.
    """
    from auditor.commit import repository_of
    from auditor.gate.verdict import judge
    from auditor.store import Store

    with Store.open(place.db, create=False) as store:
        run = store.load(audit.document.run.id)
        return judge(run, demands, None, rules, store=store, root=repository_of(Path.cwd()))


def broken(gate: GateDocument) -> str:
    """The limits that are broken, each with what breaks it; empty where none is."""
    from auditor.report.gate_plain import message

    return "\n\n".join(message(gate, check) for check in gate.checks if check.status == "failed")
