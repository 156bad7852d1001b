"""The document as JSON, there and back."""

from __future__ import annotations

import json
import math

import pytest
from report_factory import clean, hostile, llama

from auditor.document import Document, Totals
from auditor.errors import AuditError
from auditor.report import load_json, render


@pytest.mark.parametrize(
    "document", [llama(), clean(), hostile(), Document()], ids=["llama", "clean", "hostile", "empty"]
)
def test_a_document_comes_back_equal(document, tmp_path):
    # GIVEN a document on disk
    path = tmp_path / "audit.json"
    path.write_text(render(document, None, "json"))
    # WHEN it is read
    # THEN it is the same, and written again it has the same bytes
    assert load_json(path) == document
    assert render(load_json(str(path)), None, "json") == path.read_text()


def test_keys_keep_the_order_of_the_contract_and_lines_are_indented():
    text = render(llama(), None, "json")
    assert text.startswith('{\n  "schema": "fusion-audit/1",\n  "run": {\n    "id": "3f2a91c0"')
    assert text.endswith("}\n")
    assert list(json.loads(text)) == [
        "schema",
        "run",
        "coverage",
        "overhead",
        "totals",
        "findings",
        "refused",
        "suppressed",
        "ranks",
        "steps",
        "families",
        "live",
        "unplaced",
    ]
    assert list(json.loads(text)["findings"][1]["variant"]) == ["eps", "weight"]


def test_numbers_that_are_not_finite_are_written_as_unknown(tmp_path):
    # GIVEN a cap without bound and a time that is no number, nested and at the top
    document = llama()
    document.totals = Totals(step_us=math.nan, idle_us=-math.inf)
    document.findings[0].amdahl_cap = math.inf
    document.findings[0].saving.step_us = math.nan
    # WHEN it is written
    path = tmp_path / "audit.json"
    path.write_text(render(document, None, "json"))
    # THEN strict JSON readers accept it, and the fields have their defaults
    json.loads(path.read_text(), parse_constant=pytest.fail)
    back = load_json(path)
    assert (back.totals.step_us, back.totals.idle_us) == (0.0, 0.0)
    assert (back.findings[0].amdahl_cap, back.findings[0].saving.step_us) == (1.0, 0.0)
    assert math.isnan(document.totals.step_us), "the document itself is left alone"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"schema": "fusion-audit/1", "run": {', "is not JSON"),
        (b"\x1f\x8b\x08\x00", "is it compressed?"),
        (b'\xff\xfe{"a": 1}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "is JSON but no audit"),
        (b'{"traceEvents": []}', "use fusion-audit import for a trace"),
        (b'{"schema": "fusion-audit/9"}', "has schema fusion-audit/9, this version reads fusion-audit/1"),
        (b'{"schema": 3}', "is JSON but no audit"),
        (b'{"schema": "fusion-audit/1", "totals": {"kernels": "many"}}', "got `str` - at `$.totals.kernels`"),
        (b'{"schema": "fusion-audit/1", "findings": [{"rule": "FUS201"}]}', "missing required field `name`"),
    ],
)  # fmt: skip
def test_bad_files_give_one_sentence(content, reason, tmp_path):
    path = tmp_path / "audit.json"
    path.write_bytes(content)
    with pytest.raises(AuditError) as error:
        load_json(path)
    message = str(error.value)
    assert message.startswith(str(path))
    assert reason in message
    assert message.endswith(".")
    assert "\n" not in message


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(AuditError, match=r"absent\.json cannot be read \(no such file or directory\)"):
        load_json(tmp_path / "absent.json")
    with pytest.raises(AuditError, match=r"cannot be read \(is a directory\)"):
        load_json(tmp_path)


def test_fields_of_a_later_minor_version_are_accepted(tmp_path):
    path = tmp_path / "audit.json"
    path.write_text('{"schema": "fusion-audit/1", "novelty": [1], "run": {"id": "a", "mood": "good"}}')
    assert load_json(path).run.id == "a"
