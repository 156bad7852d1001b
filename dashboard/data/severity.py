"""What was set for rules in this dashboard: the severity that findings are shown with, and rules that are off."""

from __future__ import annotations

from dataclasses import dataclass

from auditor.engine.rules import Rule
from auditor.store.rule_settings import RuleSetting
from dashboard.context import current


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """The settings of all rules, read at once for a page."""

    by_rule: dict[str, RuleSetting]

    def severity(self, rule: str, recorded: str) -> str:
        """Of a finding: what was set here, else what the audit recorded."""
        setting = self.by_rule.get(rule)
        return (setting.severity if setting else "") or recorded

    def severity_of(self, rule: Rule) -> str:
        """Of a rule: what was set here, else in the project's settings, else its own."""
        return self.severity(rule.id, current().config.severity_of(rule.id, rule.name, rule.severity))

    def is_on(self, rule: str) -> bool:
        setting = self.by_rule.get(rule)
        return setting is None or setting.enabled


def rule_settings() -> RuleSettings:
    """What is set now."""
    return RuleSettings(current().store.rule_settings.all())
