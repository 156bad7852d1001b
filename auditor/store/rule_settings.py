"""What was set for rules in the dashboard: switched off, or another severity."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import select

from auditor.store.models import RuleSettingRow
from auditor.store.rowtable import RowTable, now


@dataclass(frozen=True)
class RuleSetting:
    """Of one rule. ``severity`` is empty where it is the rule's own."""

    rule: str
    enabled: bool = True
    severity: str = ""
    changed: str = ""


class RuleSettingTable(RowTable):
    """The table of rule settings."""

    def get(self, rule: str) -> RuleSetting:
        """What was set for the rule with this id; what holds by itself where nothing was."""
        return self.all().get(rule, RuleSetting(rule))

    def all(self) -> dict[str, RuleSetting]:
        """Rule id → what was set."""
        columns = (RuleSettingRow.rule, RuleSettingRow.enabled, RuleSettingRow.severity, RuleSettingRow.changed)
        with self._reading() as session:
            return {row.rule: RuleSetting(*row) for row in session.execute(select(*columns))}

    def put(self, setting: RuleSetting) -> RuleSetting:
        """Store it in place of what was set before."""
        changed = RuleSetting(setting.rule, setting.enabled, setting.severity, now())
        self._put(RuleSettingRow, asdict(changed))
        return changed
