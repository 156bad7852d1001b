"""Rules: what each finds, and whether it is on."""

from __future__ import annotations

from fastapi import APIRouter

from auditor.api import rules_of
from auditor.engine.rules import Rule
from auditor.store import Missing
from auditor.store.rule_settings import RuleSetting
from dashboard.api import models
from dashboard.api.errors import responses
from dashboard.api.parts import TheStore
from dashboard.context import current

router = APIRouter(prefix="/api/v1/rules", tags=["rules"])


@router.get("", responses=responses())
def list_rules(store: TheStore) -> models.Rules:
    """Every rule that is there for the project."""
    settings = store.rule_settings.all()
    rules = rules_of(current().config)
    return models.Rules(rules=[_shown(rule, settings.get(rule.id, RuleSetting(rule.id))) for rule in rules])


@router.get("/{rule}", responses=responses(404))
def get_rule(rule: models.RuleId, store: TheStore) -> models.Rule:
    return _shown(_found(rule), store.rule_settings.get(rule))


@router.put("/{rule}", responses=responses(404))
def set_rule(rule: models.RuleId, setting: models.RuleSetting, store: TheStore) -> models.Rule:
    """Switch a rule on or off for jobs, or show its findings with another severity."""
    known = _found(rule)
    changed = store.rule_settings.put(RuleSetting(known.id, setting.enabled, setting.severity))
    return _shown(known, changed)


def _found(rule: str) -> Rule:
    for known in rules_of(current().config):
        if known.id == rule:
            return known
    raise Missing(f"no rule {rule!r}; see: fusion-audit rules list")


def _shown(rule: Rule, setting: RuleSetting) -> models.Rule:
    own = current().config.severity_of(rule.id, rule.name, rule.severity)
    return models.Rule(
        id=rule.id, name=rule.name, family=rule.family, severity=setting.severity or own, enabled=setting.enabled,
        replacement=rule.replacement, docs=rule.docs,
    )  # fmt: skip
