"""Every rule that ships: its own tests, its docs, its names, and the schema that editors use."""

from __future__ import annotations

import ast
from collections import Counter

import jsonschema
import pytest
import yaml

from auditor.cli.rules import summary
from auditor.engine.rulefile import builtin_folder, schema
from auditor.engine.rules import Rule, RuleTest, load_rules
from auditor.engine.ruletests import run_test

RULES = load_rules()
FAMILY_OF_HUNDRED = {
    "1": {"elementwise"}, "2": {"reduction", "elementwise"}, "3": {"epilogue"}, "4": {"prologue"}, "5": {"horizontal"},
    "6": {"algorithmic"}, "7": {"launch"}, "8": {"compiler"}, "9": {"movement"},
}  # fmt: skip
each_rule = pytest.mark.parametrize("rule", RULES, ids=[r.id for r in RULES])


@pytest.mark.parametrize(("rule", "test"), [pytest.param(r, t, id=f"{r.id}: {t.name}") for r in RULES for t in r.tests])
def test_in_file_test(rule: Rule, test: RuleTest) -> None:
    result = run_test(rule, test)
    assert result.passed, result.message


@each_rule
def test_has_a_positive_and_a_negative_test_among_at_least_three(rule: Rule) -> None:
    sites = [test.expect["sites"] for test in rule.tests]
    assert len(sites) >= 3
    assert any(n > 0 for n in sites)
    assert any(n == 0 for n in sites)
    assert len({test.name for test in rule.tests}) == len(rule.tests)
    assert any("kernels" in test.expect for test in rule.tests)


WITHOUT_REFUSED_ESCAPE = {"FUS101", "FUS102", "FUS501", "FUS801"}
"""A chain writes what is read outside, and siblings have nothing between them: a host sync is what they refuse."""
WITHOUT_REFUSAL = {"FUS701", "FUS901", "FUS902"}
"""They leave kernels out, or launch them otherwise: no kernel is made of several that something could keep apart."""


@each_rule
def test_is_tested_in_both_precisions_in_training_and_on_what_it_must_not_take(rule: Rule) -> None:
    sites = [test for test in rule.tests if test.expect["sites"] > 0]
    assert any("bf16" not in test.graph for test in sites)
    assert any("bf16" in test.graph for test in sites)
    assert any('phase("backward")' in test.graph for test in sites)
    assert any(test.expect["sites"] == 0 and "reason" not in test.expect for test in rule.tests)
    wanted = "host sync" if rule.id in WITHOUT_REFUSED_ESCAPE else "escapes"
    assert rule.id in WITHOUT_REFUSAL or any(wanted in test.expect.get("reason", "") for test in rule.tests)


@each_rule
def test_docs_have_all_sections_and_say_something(rule: Rule) -> None:
    assert {"what", "why", "example", "instead", "safety"} <= rule.docs.keys()
    assert all(len(rule.docs[section]) > 15 for section in rule.docs)
    assert not rule.docs["what"].rstrip(".").endswith(("TODO", "…"))


@each_rule
def test_first_sentence_of_the_docs_fits_a_line_of_the_list(rule: Rule) -> None:
    assert summary(rule).startswith("Finds ")
    assert summary(rule).endswith(".")
    assert len(summary(rule)) <= 92


@each_rule
def test_code_in_the_docs_is_python(rule: Rule) -> None:
    for section in ("example", "instead"):
        ast.parse(rule.docs[section])


@each_rule
def test_file_is_named_after_its_id_and_fits_its_family(rule: Rule) -> None:
    assert rule.path.name == f"{rule.id}.yaml"
    assert rule.family in FAMILY_OF_HUNDRED[rule.id[3]]


@each_rule
def test_file_keeps_the_schema(rule: Rule) -> None:
    document = yaml.safe_load(rule.path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema()).validate(document)


def test_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_ids_and_names_are_unique() -> None:
    for names in (Counter(r.id for r in RULES), Counter(r.name for r in RULES)):
        assert [n for n, times in names.items() if times > 1] == []


def test_every_file_of_the_folder_is_loaded() -> None:
    assert {r.path for r in RULES} == set(builtin_folder().glob("*.yaml"))


def test_the_catch_all_comes_with_the_package() -> None:
    assert [r.id for r in RULES if r.chain is not None] == ["FUS101"]
