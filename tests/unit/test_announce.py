"""An audit in one line."""

from __future__ import annotations

import pytest

from auditor.document import Document, Finding, Run, Saving, Totals, TotalSaving
from auditor.integrations import ranks
from auditor.report.announce import announcement

RUN = Run(id="1m8abc", name="train\x1b[31m")
FOUND = [Finding(rule="FUS201", name="unfused-rms-norm", family="reduction", sites=2, saving=Saving(likely_us=1200.0))]
TOTALS = Totals(
    kernels=40, unfused_kernels=14, avoidable_kernels=12, step_us=103_000.0,
    saving=TotalSaving(likely_us=1200.0, step_us=2500.0),
)  # fmt: skip


def test_what_was_found_what_it_costs_and_what_comes_next() -> None:
    assert announcement(Document(run=RUN, totals=TOTALS, findings=FOUND)) == (
        r"train\x1b[31m: 14 of 40 kernels unfused, 12 avoidable, 1 finding · likely saving 1.20 ms of kernel time, "
        "2.50 ms of 103 ms wall time · next: fusion-audit show 1m8abc"
    )


def test_nothing_found_and_a_store_of_another_place() -> None:
    document = Document(run=Run(id="1m8abc", name="train"), totals=Totals(kernels=9))
    assert announcement(document, "my store").endswith(
        "0 of 9 kernels unfused, 0 avoidable, 0 findings · next: fusion-audit show 1m8abc --db 'my store'"
    )


def test_what_could_not_be_stored() -> None:
    assert announcement(Document(run=Run(name="train"), totals=Totals(kernels=9))).endswith(" · not stored")


@pytest.mark.parametrize(("rank", "records"), [("", True), ("0", True), ("1", False), ("x", True)])
def test_rank_0_records_where_ranks_do_not_meet(rank: str, records: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    assert ranks.records() is records
