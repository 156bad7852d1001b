"""Loading rule files: what a rule says, and for each mistake one sentence with file, line and what was expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from auditor.engine import rulefile
from auditor.engine.claims import claim
from auditor.engine.newrule import new_rule
from auditor.engine.rules import load_rule_files, load_rules
from auditor.engine.ruletests import run_rule_tests
from auditor.errors import AuditError
from auditor.graph.ssa import parse

GOOD = """\
id: USR001
name: scaled-tanh
family: elementwise
status: preview
severity: warning
match:
  any_of:
    - |
      a = aten.mul(x, c_scale)
      y = aten.tanh(a)
  outputs: []
where:
  dtype: {x: [f32, bf16]}
yields_to: []
docs: {what: Finds it., why: Because., example: x, instead: y, safety: none}
tests:
  - name: one
    graph: |
      x: f32[64]
      y = aten.tanh(aten.mul(x, 2.0))
    expect: {sites: 1, kernels: 2}
"""


def test_a_rule_is_loaded_beside_the_built_in_ones(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.yml").write_text(GOOD.replace("yields_to: []", "yields_to: [FUS101]"))
    rules = {r.id: r for r in load_rules([tmp_path])}
    assert set(rules) == {r.id for r in load_rules()} | {"USR001"}
    mine = rules["USR001"]
    assert (mine.name, mine.status, mine.severity) == ("scaled-tanh", "preview", "warning")
    assert mine.where == {"dtype": {"x": ["f32", "bf16"]}}
    assert mine.yields_to == ("FUS101",)
    assert [t.name for t in mine.tests] == ["one"]
    assert [len(p.calls) for p in mine.patterns] == [2]
    with pytest.raises(AuditError, match="no rule FUS101"):
        load_rules([tmp_path / "sub" / "mine.yml"], builtin=False)


def test_rules_come_sorted_by_id() -> None:
    ids = [r.id for r in load_rules()]
    assert ids == sorted(ids)


OPTIONALS = "y = aten.tanh(" + "optional(aten.neg(" * 9 + "x" + "))" * 9 + ")"

MISTAKES = {
    # what: (replace, by, line, part of the message)
    "broken YAML": ("name: scaled-tanh", "name: [scaled", 3, "not valid YAML"),
    "tab": ("name: scaled-tanh", "\tname: x", 2, "not valid YAML"),
    "unknown key": ("severity: warning", "severity: warning\nweight: 3", 6, "unknown key 'weight'; expected one of id"),
    "unknown key in match": ("  outputs: []", "  output: []", 11, "unknown key 'output'"),
    "unknown key in a test": ("sites: 1,", "sitess: 1,", 21, "sitess"),
    "missing section": ("severity: warning\n", "", 1, "missing 'severity'"),
    "missing doc section": (", safety: none", "", 15, "missing 'safety'"),
    "wrong type": ("name: scaled-tanh", "name: 3", 2, "name"),
    "list for text": ("family: elementwise", "family: [elementwise]", 3, "family"),
    "unknown family": ("family: elementwise", "family: elementary", 3, "is not one of elementwise, reduction"),
    "bad id": ("id: USR001", "id: usr1", 1, "Letters and three or four digits"),
    "bad name": ("name: scaled-tanh", "name: Scaled Tanh", 2, "kebab-case"),
    "two ways to match": ("  outputs: []", "  chain: {min: 2}", 6, "exactly one of"),
    "no way to match": (
        "  any_of:\n    - |\n      a = aten.mul(x, c_scale)\n      y = aten.tanh(a)\n",
        "",
        6,
        "exactly one of",
    ),
    "no tests": (GOOD[GOOD.index("tests:") :], "tests: []\n", 16, "tests"),
    "negative sites": ("sites: 1", "sites: -1", 21, "-1"),
    "unknown op class": ("aten.tanh(a)", "anyof.trig(a)", 8, "known: anyof.gemm"),
    "keyword in a pattern": ("aten.mul(x, c_scale)", "aten.mul(x, other=2)", 8, "keyword arguments"),
    "no Python": ("y = aten.tanh(a)", "y = aten.tanh(a", 8, "a pattern line reads"),
    "no assignment": ("      y = aten.tanh(a)", "      aten.tanh(a)", 8, "expected `name = aten.op(args)`"),
    "too few arguments": ("aten.mul(x, c_scale)", "aten.addmm(x)", 8, "needs more arguments"),
    "not an op": ("aten.tanh(a)", "tanh(a)", 8, "is not an op"),
    "nine optionals": ("y = aten.tanh(a)", OPTIONALS, 8, "at most 8"),
    "empty pattern": ("      a = aten.mul(x, c_scale)\n      y = aten.tanh(a)\n", "      # nothing\n", 8, "empty"),
    "unknown name in where": ("{x: [f32, bf16]}", "{z: [f32]}", 13, "'z' is not a name"),
    "unknown name in outputs": ("outputs: []", "outputs: [b]", 11, "'b' is not a name"),
    "output listed twice": ("outputs: []", "outputs: [a, a]", 11, "twice"),
    "yields to nobody": ("yields_to: []", "yields_to: [FUS999]", 14, "no rule FUS999"),
    "a name of a nested constraint": (
        "{x: [f32, bf16]}",
        "{x: [f32]}\n  halves_of: {x: [a, z]}",
        14,
        "'z' is not a name",
    ),
    "a number of a tensor": (
        "{x: [f32, bf16]}",
        "{x: [f32]}\n  number: {x: 3}",
        14,
        "number needs a c_* constant, not 'x'",
    ),
    "a dtype of a number": ("{x: [f32, bf16]}", "{c_scale: [f32]}", 13, "dtype needs a tensor, not 'c_scale'"),
    "a size of a number": ("dtype: {x: [f32, bf16]}", "size_power: {c_scale: [c_other, 2]}", 13, "c_other"),
    "a power that is none": ("dtype: {x: [f32, bf16]}", "size_power: {c_scale: [x, y]}", 13, "'y' is not of type"),
    "a phase that there is not": ("dtype: {x: [f32, bf16]}", "phase: {y: sideways}", 13, "is not one of forward"),
    "a number that holds": ("dtype: {x: [f32, bf16]}", "holds: {c_scale: [i8]}", 13, "holds needs a tensor"),
    "a cast of nothing": ("dtype: {x: [f32, bf16]}", "cast_to: {z: [i8]}", 13, "'z' is not a name"),
    "three halves": ("dtype: {x: [f32, bf16]}", "halves_of: {x: [a, a, a]}", 13, "too long"),
    "a key twice": ("yields_to: []", "yields_to: []\nname: other", 15, "the key 'name' is there already, in line 2"),
    "unknown constraint": ("  dtype:", "  dtypes:", 13, "unknown key 'dtypes'"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_sentence_with_file_and_line(what: str, tmp_path: Path) -> None:
    old, new, line, message = MISTAKES[what]
    assert GOOD.count(old) >= 1
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(AuditError) as error:
        load_rules([tmp_path], builtin=False)
    said = str(error.value)
    assert message in said
    assert "\n" not in said
    found = re.match(rf"{re.escape(str(path))}:(\d+):", said)
    assert found, said
    assert int(found[1]) == line, said


@pytest.mark.parametrize(
    ("condition", "meant", "other"),
    [
        (
            "holds: {x: [bf16]}",
            "x: bf16[64]\ny = aten.tanh(aten.mul(x, 2.0))",
            "x: f32[64]\ny = aten.tanh(aten.mul(x, 2.0))",
        ),
        (
            "cast_to: {y: [i8]}",
            "x: f32[64]\ny = aten.tanh(aten.mul(x, 2.0))\nq = aten._to_copy(y, i8)",
            "x: f32[64]\ny = aten.tanh(aten.mul(x, 2.0))\nq = aten._to_copy(y, f16)",
        ),
        (
            "phase: {y: backward}",
            'phase("backward")\nx: f32[64]\ny = aten.tanh(aten.mul(x, 2.0))',
            "x: f32[64]\ny = aten.tanh(aten.mul(x, 2.0))",
        ),
    ],
    ids=["holds", "cast_to", "phase"],
)
def test_what_a_rule_does_not_mean_is_neither_matched_nor_refused(
    condition: str, meant: str, other: str, tmp_path: Path
) -> None:
    # GIVEN a rule that is about some dtypes or one phase only
    path = tmp_path / "r.yaml"
    path.write_text(GOOD.replace("dtype: {x: [f32, bf16]}", condition))
    [rule] = load_rule_files([path])

    # THEN it matches there, and of the same ops elsewhere it says nothing
    assert len(claim(parse(meant), [rule]).sites) == 1
    claims = claim(parse(other), [rule])
    assert (claims.sites, claims.refused) == ([], [])


def test_numbers_are_checked_where_they_are_known(tmp_path: Path) -> None:
    # GIVEN a rule that wants one over the size of a row
    path = tmp_path / "r.yaml"
    path.write_text(GOOD.replace("dtype: {x: [f32, bf16]}", "size_power: {c_scale: [x, -1]}"))
    [rule] = load_rule_files([path])

    def sites(factor: str) -> int:
        graph = parse(f"x: f32[2, 64]\nt: f32\ny = aten.tanh(aten.mul(x, {factor}))")
        return len(claim(graph, [rule]).sites)

    # THEN that number passes, as traces round it too, another does not, and one in a tensor is not known
    assert [sites(f) for f in ("0.015625", "0.0156254", "t")] == [1, 1, 1]
    assert [sites(f) for f in ("0.0158", "0.5", "64.0", "-0.015625")] == [0, 0, 0, 0]
    [(_, refusal)] = claim(parse("x: f32[2, 64]\ny = aten.tanh(aten.mul(x, 0.5))"), [rule]).refused
    assert refusal.reason == "c_scale is 0.5, expected 0.015625 (the last dimension of x, 64, to the power -1)"


def test_a_rule_keeps_the_constraints_of_the_rule_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(GOOD)
    start, end = GOOD.index("  any_of:"), GOOD.index("where:")
    form = "  extend: USR001\n  with: x = aten.neg(z)\n"
    text = GOOD[:start] + form + GOOD[end:].replace("{x: [f32, bf16]}", "{z: [f32]}")
    (tmp_path / "more.yaml").write_text(text.replace("USR001\nname: scaled", "USR002\nname: negated-scaled"))
    [base, more] = load_rules([tmp_path], builtin=False)
    assert base.where == {"dtype": {"x": ["f32", "bf16"]}}
    assert more.where == {"dtype": {"x": ["f32", "bf16"], "z": ["f32"]}}


def test_the_built_in_rules_are_each_parsed_once_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that needs rules waits for this: 0.11 s, with the pure Python parser 0.4 s."""
    parsed: list[str] = []

    class Counted(rulefile.Loader):  # type: ignore[misc]
        def __init__(self, text: str) -> None:
            parsed.append(text)
            super().__init__(text)

    monkeypatch.setattr(rulefile, "Loader", Counted)
    rules = load_rules()
    assert len(parsed) == len(set(parsed)) == len(rules)
    assert issubclass(Counted, yaml.CSafeLoader) or not yaml.__with_libyaml__


@pytest.mark.parametrize("line", ["extend: FUS999\n  with: a = aten.neg(x)", "extend: FUS101\n  with: a = aten.neg(x)"])
def test_extending_what_has_no_patterns(line: str, tmp_path: Path) -> None:
    start, end = GOOD.index("  any_of:"), GOOD.index("where:")
    (tmp_path / "bad.yaml").write_text(GOOD[:start] + f"  {line}\n" + GOOD[end:])
    with pytest.raises(AuditError, match=r"bad\.yaml:7: match\.extend: 'FUS\d+' is not a rule with any_of"):
        load_rules([tmp_path])


def test_an_id_that_is_taken_by_a_built_in_rule_or_by_a_neighbour(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.replace("USR001", "FUS201"))
    with pytest.raises(AuditError, match=r"a\.yaml.*rule id FUS201 is taken by .*FUS201\.yaml; choose another id"):
        load_rules([tmp_path])
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(GOOD)
    with pytest.raises(AuditError, match=r"b\.yaml.*USR001 is taken by .*a\.yaml"):
        load_rules([tmp_path])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a mapping with id, name, match, docs, tests; found NoneType"),
        (b"- a\n- b\n", "expected a mapping"),
        (b"just text", "found str"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "not UTF-8"),
        (b"id: \x00", "not valid YAML"),
        (b"a: &x [*x, *y]", "not valid YAML"),
        (b"[" * 5000, "not valid YAML"),
        ("name: größe".encode("latin-1"), "not UTF-8"),
        (b"2: 3\n", "unknown key 2; expected one of id, name"),
        (b"!!python/object:os.system {}", "not valid YAML"),
    ],
)
def test_files_that_are_no_rules(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(AuditError) as error:
        load_rules([tmp_path], builtin=False)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_folders_without_rules(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"holds no \.yaml rule file; `fusion-audit rules new NAME` makes one"):
        load_rules([tmp_path])
    with pytest.raises(AuditError, match="no such rules folder"):
        load_rules([tmp_path / "missing"])


def test_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").mkdir()
    with pytest.raises(AuditError, match=r"x\.yaml: cannot be read: Is a directory"):
        load_rules([tmp_path])


# ── new rules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_rule_loads_and_passes_its_tests(tmp_path: Path) -> None:
    path = new_rule("unfused-scaled-tanh", tmp_path / "rules")
    assert path == tmp_path / "rules" / "unfused-scaled-tanh.yaml"
    assert "unfused-scaled-tanh" in {r.name for r in load_rules([tmp_path / "rules"])}
    results = run_rule_tests(load_rule_files([path]))
    assert len(results) >= 2
    assert [r for r in results if not r.passed] == []


def test_new_rules_get_ids_of_their_own(tmp_path: Path) -> None:
    new_rule("first", tmp_path)
    new_rule("second", tmp_path)
    ids = {r.name: r.id for r in load_rules([tmp_path])}
    assert (ids["first"], ids["second"]) == ("USR001", "USR002")


@pytest.mark.parametrize("name", ["", "Upper", "two words", "-x", "x-", "a--b", "../escape", "a/b", "größe", "x\n"])
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"is no rule name; use lower-case words joined by hyphens"):
        new_rule(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_new_rule_overwrites_nothing(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="unfused-rms-norm exists already"):
        new_rule("unfused-rms-norm", tmp_path)
    new_rule("mine", tmp_path)
    with pytest.raises(AuditError, match="mine exists already"):
        new_rule("mine", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match=r"cannot be written|exists already"):
        new_rule("other", tmp_path / "file" / "below")


# ── rule tests ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("{sites: 2}", "expected sites 2, found 1"),
        ("{sites: 1, kernels: 3}", "expected kernels 3, found 2"),
        ("{sites: 1, bytes_now: 1}", "expected bytes_now 1, found 1024"),
        ("{sites: 1, bytes_fused: 1}", "expected bytes_fused 1, found 512"),
        ("{sites: 1, outputs: 2}", "expected outputs 2, found 1"),
        ("{sites: 1, variant: {casts: no}}", "expected variant"),
        ("{sites: 1, reason: escapes}", "expected a refusal with 'escapes', found none"),
    ],
)
def test_a_failing_rule_test_says_what_came(expect: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(GOOD.replace("{sites: 1, kernels: 2}", expect))
    [result] = run_rule_tests(load_rule_files([path]))
    assert (result.rule, result.test, result.passed) == ("USR001", "one", False)
    assert message in result.message


def test_a_graph_that_does_not_parse_is_a_failed_test(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(GOOD.replace("y = aten.tanh(aten.mul(x, 2.0))", "y = aten.tanh(z)"))
    [result] = run_rule_tests(load_rule_files([path]))
    assert not result.passed
    assert result.message.startswith("r.yaml: one:2:")


def test_a_built_in_file_given_by_hand_is_loaded_once() -> None:
    [builtin] = [r for r in load_rules() if r.id == "FUS202"]
    [given] = load_rule_files([builtin.path])
    assert [p.text for p in given.patterns] == [p.text for p in builtin.patterns]
