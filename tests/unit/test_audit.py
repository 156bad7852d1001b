"""An audit: the document and what the configuration does to it."""

from __future__ import annotations

from functools import cache

import pytest

from auditor.audit import Audit, audit_graph
from auditor.config import Config, Suppression
from auditor.devices.describe import Device
from auditor.document import SCHEMA, Overhead, Run
from auditor.engine.rules import Rule, load_rules
from auditor.errors import AuditError
from auditor.graph.ssa import parse

TEXT = """
    module("layers.0.mlp", "MLP")
    g: f32[64, 512]
    u: f32[64, 512]
    y = aten.mul(aten.silu(g), u)
    module("vision.norm", "Norm")
    x: f32[64, 256]
    w: f32[256]
    var = aten.mean(aten.pow(x, 2), [-1], True)
    n = aten.mul(aten.mul(x, aten.rsqrt(aten.add(var, 1e-06))), w)
"""
DEVICE = Device(name="test device", kind="cpu")


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def audit(**settings: object) -> Audit:
    return audit_graph(parse(TEXT), rules=rules(), device=DEVICE, config=Config(**settings))  # type: ignore[arg-type]


def found(**settings: object) -> set[str]:
    return {f.rule for f in audit(**settings).findings}


def test_the_document() -> None:
    document = audit().document
    assert document.schema == SCHEMA == "fusion-audit/1"
    assert {f.rule: f.kernels for f in document.findings} == {"FUS201": 6, "FUS206": 2}
    assert document.totals.kernels == document.totals.unfused_kernels == 8
    assert document.totals.avoidable_kernels == 6


def test_select_and_ignore() -> None:
    assert found(select=["FUS206"]) == {"FUS206"}
    assert found(select=["unfused-rms-norm"]) == {"FUS201"}
    assert found(ignore=["FUS206"]) == {"FUS201", "FUS101"}
    assert found(ignore=["FUS"]) == set()


def test_a_selector_of_no_rule_is_refused() -> None:
    with pytest.raises(AuditError, match="no rule 'FUS999'"):
        audit(ignore=["FUS999"])


def test_severity() -> None:
    severities = {f.rule: f.severity for f in audit(severity={"FUS2": "error", "FUS206": "info"}).findings}
    assert severities == {"FUS201": "error", "FUS206": "info"}


def test_a_suppressed_site_is_counted_and_taken_by_no_other_rule() -> None:
    document = audit(suppress=[Suppression(rule="FUS201", modules="vision.*", reason="frozen")]).document
    assert [f.rule for f in document.findings] == ["FUS206"]
    [suppressed] = document.suppressed
    assert (suppressed.rule, suppressed.modules, suppressed.reason, suppressed.sites) == (
        "FUS201",
        "vision.*",
        "frozen",
        1,
    )


def test_a_suppression_that_suppresses_nothing_is_reported() -> None:
    document = audit(suppress=[Suppression(rule="FUS201", modules="text.*", reason="old")]).document
    assert len(document.findings) == 2
    assert document.suppressed[0].sites == 0


def test_run_overhead_and_notes_of_the_trace_are_in_the_document() -> None:
    graph = parse(TEXT)
    graph.coverage.notes = ["a pass disagreed"]
    run = Run(name="mine", notes=["first"])
    document = audit_graph(graph, rules=rules(), device=DEVICE, run=run, overhead=Overhead(bare_us=3.0)).document
    assert document.run.notes == ["first", "a pass disagreed"]
    assert (document.run.name, document.overhead.bare_us) == ("mine", 3.0)


def test_to_pandas_has_one_row_for_each_finding() -> None:
    frame = audit().to_pandas()
    assert list(frame["rule"]) == [f.rule for f in audit().findings]
    assert {"saving_likely_us", "bytes_fused", "source"} <= set(frame.columns)
    empty = audit_graph(parse("x: f32[4]"), rules=rules(), device=DEVICE)
    assert list(empty.to_pandas().columns) == list(frame.columns)
    assert len(empty.to_pandas()) == 0


def test_str_and_notebook() -> None:
    assert "unfused-rms-norm" in str(audit())
    assert "unfused-rms-norm" in audit()._repr_html_()
