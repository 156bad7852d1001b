"""The severity of a finding as this dashboard shows it: what was set here, else what the audit says."""

from __future__ import annotations

from dashboard.context import current


def effective(rule: str, name: str, recorded: str) -> str:
    """What was set in this dashboard, else in the project's settings, else the rule's own."""
    set_here = current().store.rule_settings.get(rule).severity
    return set_here or current().config.severity_of(rule, name, recorded)


def shown(rule: str, recorded: str) -> str:
    """Of a finding: what was set in this dashboard, else what the audit recorded."""
    return current().store.rule_settings.get(rule).severity or recorded


def switched_off() -> frozenset[str]:
    """Ids of the rules that were switched off in this dashboard."""
    return frozenset(s.rule for s in current().store.rule_settings.all().values() if not s.enabled)
