"""Which rules a run uses, and which of their sites its settings leave out."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from auditor.config import Config, Suppression, covers
from auditor.document import Document, Suppressed
from auditor.engine.assemble import home_of
from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule


class Selection:
    """The settings ``config`` applied to ``rules``: those ``chosen``, and sites that are ``suppressed``."""

    def __init__(self, config: Config, rules: Sequence[Rule]) -> None:
        self.chosen = [rule for rule in rules if config.chooses(rule.id, rule.name)]
        self._suppressions = config.suppress
        self._sites = [0] * len(config.suppress)

    def suppressed(self, candidate: Candidate) -> Suppression | None:
        """The first suppression that takes the site, if any."""
        return next((s for s in self._suppressions if _takes(s, candidate)), None)

    def keep(self, candidate: Candidate) -> bool:
        """Whether the site stays in the findings; one that doesn't is counted for its suppression."""
        taken = self.suppressed(candidate)
        if taken is not None:
            self._sites[self._suppressions.index(taken)] += 1
        return taken is None

    def report(self) -> list[Suppressed]:
        """Every suppression with the sites it took so far: none means that it can go."""
        return [
            Suppressed(rule=s.rule, modules=s.modules, reason=s.reason, sites=sites)
            for s, sites in zip(self._suppressions, self._sites, strict=True)
        ]


def settings_of(document: Document) -> Config:
    """The settings that chose the findings of ``document``, as they were when it was made."""
    return Config(
        select=document.run.select,
        ignore=document.run.ignore,
        suppress=[Suppression(rule=s.rule, modules=s.modules, reason=s.reason) for s in document.suppressed],
    )


def _takes(suppression: Suppression, candidate: Candidate) -> bool:
    rule = candidate.rule
    if not covers(suppression.rule, rule.id, rule.name):
        return False
    return fnmatchcase(home_of(candidate.region.ops).module, suppression.modules)
