"""Rows that replace each other: whoever writes last is kept, however many write at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from auditor.store import Store
from auditor.store.registrations import Registration
from auditor.store.rule_settings import RuleSetting


def test_the_last_writer_is_kept(place: str) -> None:
    first = Registration("1m8aaaaaaaaa", "here", "/f", "/f/a.py", "a.py", ["--x"], "0" * 64)
    with Store.open(place) as store:
        for enabled in (True, False):
            store.rule_settings.put(RuleSetting("FUS101", enabled, "info"))
        for folder in ("/f", "/g"):
            store.registrations.put(replace(first, folder=folder))
        found, setting = store.registrations.get(first.run, "here"), store.rule_settings.get("FUS101")
    assert found is not None
    assert (found.folder, found.args) == ("/g", ["--x"])
    assert (setting.enabled, setting.severity) == (False, "info")


def test_many_writers_at_once(place: str) -> None:
    with Store.open(place) as store, ThreadPoolExecutor(8) as pool:
        for rule in range(10):
            written = [pool.submit(store.rule_settings.put, RuleSetting(f"FUS{rule}")) for _ in range(8)]
            for one in written:
                one.result()
        assert len(store.rule_settings.all()) == 10


@pytest.mark.parametrize("severity", ["", "error"])
def test_a_setting_says_when_it_was_changed(store: Store, severity: str) -> None:
    assert store.rule_settings.put(RuleSetting("FUS101", severity=severity)).changed
