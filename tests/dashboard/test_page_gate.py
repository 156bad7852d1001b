"""The gate: what a budget would hold."""

from __future__ import annotations

from typing import Any

import pytest
from audited import GATES, save
from shown import by_id, page, parts, text

from auditor.store import Store

pytestmark = pytest.mark.usefixtures("browsing")


def verdicts(shown: Any) -> dict[str, str]:
    rows = [part for part in parts(shown) if type(part).__name__ == "Tr"]
    cells = [[text(cell) for cell in row.children] for row in rows]
    return {row[0]: row[4] for row in cells if len(row) == 5 and row[4] in ("worse", "better", "same", "unknown")}


def test_the_gate_of_a_run_that_got_worse(store: Store) -> None:
    save(store, GATES)
    save(store)

    shown = page("gate").layout(model="llama")

    said = text(shown)
    assert "Worse: unfused kernels, avoidable kernels, kernels, bytes moved by kernels, peak memory." in said
    assert "1 finding is new or larger." in said
    assert verdicts(shown)["avoidable kernels"] == "worse"
    assert "+6 (+600 %)" in said


def test_the_gate_of_a_run_that_got_better_and_of_an_equal_one(store: Store) -> None:
    save(store)
    save(store, GATES)
    assert "Better, and worse in nothing that is counted." in text(page("gate").layout(model="llama"))

    save(store, GATES)
    assert "No change in what is counted." in text(page("gate").layout(model="llama"))


def test_the_baseline_is_the_run_that_the_address_names(store: Store) -> None:
    first = save(store)
    save(store, GATES)
    save(store, GATES)

    shown = page("gate").layout(model="llama", baseline=first)

    assert "Better, and worse in nothing that is counted." in text(shown)
    assert by_id(shown, "gate-baseline").value.endswith(first)
    assert "no run 'nowhere'" in text(page("gate").layout(model="llama", baseline="nowhere"))


def test_counts_of_a_trace_of_several_steps_are_a_step_each(store: Store) -> None:
    from dashboard.data.gate import against

    one = save(store)
    loaded = store.load(one)
    of_three = loaded.document
    of_three.run.source, of_three.coverage.steps = "trace", 3
    for field in ("kernels", "unfused_kernels", "avoidable_kernels", "bytes", "step_us"):
        setattr(of_three.totals, field, 3 * getattr(of_three.totals, field))
    three = store.save(of_three, dict(loaded.tables))

    measured = against(one, three).measures

    assert {m.label: m.verdict for m in measured} == {
        "unfused kernels": "same", "avoidable kernels": "same", "kernels": "same", "bytes moved by kernels": "same",
        "peak memory": "same",
        "memory-bound share of kernel time": "same", "step time": "same",
    }  # fmt: skip


def test_the_gate_of_one_run_and_of_none(store: Store) -> None:
    assert "No audits yet." in text(page("gate").layout())
    save(store)
    assert "One run has nothing to be compared with." in text(page("gate").layout())
    assert "No run is called bert." in text(page("gate").layout(model="bert"))
