"""Rules: docs, hits, settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audited import GATES, HOSTILE, save
from shown import by_id, links, page, parts, text

from auditor.engine.rules import load_rules
from auditor.store import Store
from dashboard.context import Context, install

pytestmark = pytest.mark.usefixtures("browsing")


def test_rules_say_what_they_found(store: Store) -> None:
    save(store)
    save(store, GATES)

    shown = page("rules")._fill(1)

    rows = [text(row).split() for row in parts(shown) if type(row).__name__ == "Tr"]
    gates = next(row for row in rows if row[0] == "FUS206")
    assert gates[gates.index("on") + 1 :][:3] == ["2", "2", "2"]
    norms = next(row for row in rows if row[0] == "FUS202")
    assert norms[norms.index("on") + 1 :][:3] == ["1", "1", "6"]
    assert len(rows) - 1 == len(load_rules())


def test_a_rule_has_its_docs_kernels_and_history(store: Store) -> None:
    run = save(store)

    shown = page("rule").layout(rule_id="fus202")
    history = page("rule")._history("FUS202")

    assert "What it finds" in text(shown)
    assert "Safety" in text(shown)
    assert links(history)["llama"] == f"/run/{run}"
    assert "In 1 of the last 1 run" in text(history)
    assert "It found nothing in the last 1 run" in text(page("rule")._history("FUS601"))


def test_a_rule_that_is_not_there() -> None:
    said = text(page("rule").layout(rule_id=HOSTILE))

    assert "is loaded here; there are: FUS101, FUS102" in said
    assert "\x1b" not in said


def test_settings_of_a_rule_are_kept_and_need_a_login(store: Store, browsing: Context) -> None:
    saved, badge = page("rule")._save(False, "error", "FUS202")
    assert (text(saved), text(badge)) == ("Saved.", "error")
    kept = store.rule_settings.get("FUS202")
    assert (kept.enabled, kept.severity) == (False, "error")

    saved, badge = page("rule")._save(True, None, "FUS202")
    assert (text(saved), text(badge)) == ("Saved.", "warning")
    assert text(by_id(page("rule").layout(rule_id="FUS202"), "rule-severity-now")) == "warning"
    kept = store.rule_settings.get("FUS202")
    assert (kept.enabled, kept.severity) == (True, "")

    install(replace(browsing, may_change=lambda: False))
    assert "Read only" in text(page("rule")._save(False, "error", "FUS202")[0])
    assert store.rule_settings.get("FUS202") == kept


def test_a_severity_or_rule_that_there_is_not_is_not_kept(store: Store) -> None:
    from dash.exceptions import PreventUpdate

    for rule, severity in (("FUS202", "fatal"), ("FUS999", "error")):
        with pytest.raises(PreventUpdate):
            page("rule")._save(True, severity, rule)
    assert store.rule_settings.all() == {}
