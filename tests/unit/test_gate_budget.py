"""Budgets as a project writes them: what they mean, and how a mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.budget import Amount
from auditor.errors import AuditError
from auditor.gate.amounts import Allowed, increase, limit
from auditor.gate.budget import UNSEEN, Demands, Scope, file_demands, project_demands
from auditor.gate_document import Unit

KNOWN = [("FUS201", "unfused-rms-norm"), ("FUS206", "unfused-gated-activation")]
FULL = """
[tool.fusion-audit]
max_unfused_kernels = 0
max_bytes = "1.2 GB"
max_peak_memory = "4 GiB"
max_memory_bound_share = "60 %"

[tool.fusion-audit.max_increase]
kernels = 2
bytes = "2 %"

[[tool.fusion-audit.budgets]]
model = "llama*"
rule = "fus2"
max_avoidable_kernels = 3

[[tool.fusion-audit.budgets]]
modules = "model.layers.*"
max_bytes = 1000

[[tool.fusion-audit.require]]
replacement = "rms_norm"
modules = "model.*"
at_least = 2
"""


def test_every_limit_knows_what_it_is_of_and_where_it_stands(folder: Path) -> None:
    file = folder / "pyproject.toml"
    file.write_text(FULL)

    demands = project_demands(KNOWN)

    assert [(each.id, each.scope, each.most, each.increase, each.line) for each in demands.limits] == [
        ("max_unfused_kernels", Scope(), 0, None, 3),
        ("max_bytes", Scope(), 1.2e9, None, 4),
        ("max_peak_memory", Scope(), 4 * 2**30, None, 5),
        ("max_memory_bound_share", Scope(), 0.6, None, 6),
        ("max_increase.kernels", Scope(), None, Allowed(2), 9),
        ("max_increase.bytes", Scope(), None, Allowed(0.02, relative=True), 10),
        ("budgets[1].max_avoidable_kernels", Scope(model="llama*", rule="fus2"), 3, None, 15),
        ("budgets[2].max_bytes", Scope(modules="model.layers.*"), 1000, None, 19),
    ]
    assert {each.file for each in demands.limits} == {str(file)}
    (required,) = demands.required
    assert (required.id, required.line, required.wanted.at_least) == ("require[1]", 21, 2)


def test_a_file_in_yaml_says_the_same(folder: Path) -> None:
    (folder / "budget.yaml").write_text(
        "max_unfused_kernels: 0\nmax_increase:\n  bytes: 2 %\nbudgets:\n  - rule: FUS201\n    max_bytes: 1.5 MB\n"
    )

    limits = file_demands(Path("budget.yaml"), KNOWN).limits

    assert [(each.id, each.line) for each in limits] == [
        ("max_unfused_kernels", 1), ("max_increase.bytes", 3), ("budgets[1].max_bytes", 6),
    ]  # fmt: skip
    assert limits[0].file == str(folder / "budget.yaml")


def test_without_a_table_no_count_may_grow_against_a_baseline(folder: Path) -> None:
    (folder / "b.yaml").write_text("budgets: [{rule: FUS201, max_increase: {bytes: 5}}]")

    held = file_demands(Path("b.yaml"), KNOWN).against_baseline().limits

    assert [(each.id, each.increase) for each in held[1:]] == [
        *(
            (f"max_increase.{key}", Allowed(0.0))
            for key in ("unfused_kernels", "avoidable_kernels", "kernels", "bytes")
        ),
        ("max_increase.peak_memory", Allowed(0.01, relative=True)),
    ]
    (folder / "c.yaml").write_text("max_increase: {kernels: 1}")
    one = file_demands(Path("c.yaml"), KNOWN)
    assert one.against_baseline() == one


def test_peak_memory_of_several_ranks_is_held_only_where_a_project_says_so() -> None:
    held = {limit.kind.key for limit in Demands().against_baseline(2).limits}
    assert held == {"unfused_kernels", "avoidable_kernels", "kernels", "bytes"}


def test_no_settings_are_no_demands(folder: Path) -> None:
    assert not project_demands(KNOWN)
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert project_demands(KNOWN) == Demands()


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
"""Nine lines that stand for 10^9 values."""


@pytest.mark.parametrize(
    ("amount", "unit", "value"),
    [
        (12, "count", 12), (12.0, "count", 12), ("1.2 GB", "bytes", 1.2e9), ("512KiB", "bytes", 524288),
        ("7", "bytes", 7), (0.6, "share", 0.6), ("62 %", "share", 0.62), (1, "share", 1),
    ],
)  # fmt: skip
def test_amounts(amount: Amount, unit: Unit, value: float) -> None:
    assert limit(amount, unit) == value


@pytest.mark.parametrize(
    ("amount", "unit", "reason"),
    [
        (-1, "count", "must not be negative, not -1"), ("-2 GB", "bytes", "must not be negative, not -2 GB"),
        (1.5, "count", "must be a whole number, not 1.5"), ("many", "count", "must be a whole number, not 'many'"),
        ("3 GB", "count", "must be a whole number, not '3 GB'"), ("1 parsec", "bytes", 'such as "1.2 GB", not'),
        ("5 %", "bytes", 'such as "1.2 GB", not'), (60, "share", 'must be a share such as 0.6 or "60 %", not 60'),
        (float("nan"), "bytes", "not nan"), (float("inf"), "count", "not inf"),
    ],
)  # fmt: skip
def test_amounts_that_make_no_sense(amount: Amount, unit: Unit, reason: str) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        limit(amount, unit)
    assert reason in str(caught.value)


def test_increases_are_absolute_or_of_what_was() -> None:
    assert increase("2 %", "bytes").over(1000) == 1020
    assert increase(20, "bytes").over(1000) == 1020
    assert increase("2 %", "count").over(100) == 102
    assert increase("5 %", "share").over(0.6) == pytest.approx(0.65)


TABLE = "[tool.fusion-audit]\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TABLE + "max_kernel = 1", ":2: tool.fusion-audit has no key 'max_kernel'; did you mean 'max_kernels'?"),
        (TABLE + "max_kernels = true", ":2: tool.fusion-audit.max_kernels: expected a number or text, got true or"),
        (TABLE + "\nmax_kernels = -3", ":3: tool.fusion-audit.max_kernels: must not be negative, not -3"),
        (TABLE + "max_bytes = '1 parsec'", ":2: tool.fusion-audit.max_bytes: must be a number of bytes, or text"),
        (TABLE + "max_increase = { kernel = 1 }", ":2: tool.fusion-audit.max_increase has no key 'kernel'; did you m"),
        (TABLE + "max_increase = 3", ":2: tool.fusion-audit.max_increase: expected a table, got a number"),
        (
            TABLE + "[[tool.fusion-audit.budgets]]\nrule = 'FUS201'\nmax_bytes = 1\n"
            "[[tool.fusion-audit.budgets]]\nrule = 'FUS999'\nmax_bytes = 1",
            ":6: tool.fusion-audit.budgets[2].rule: no rule 'FUS999'; see: fusion-audit rules list",
        ),
        (
            TABLE + "[[tool.fusion-audit.budgets]]\nrule = 'FUS201'\nmax_kernels = 1",
            ":4: tool.fusion-audit.budgets[1].max_kernels: can't be counted by rule or modules: kernels belong to the",
        ),
        (
            TABLE + "[[tool.fusion-audit.budgets]]\nmodules = 'a.*'\nmax_increase = { bytes = 1 }",
            ":4: tool.fusion-audit.budgets[1].max_increase: can't be set for modules",
        ),
        (TABLE + "[[tool.fusion-audit.budgets]]\nmax_bytes = 1", ":2: tool.fusion-audit.budgets[1]: narrows nothing"),
        (TABLE + "[[tool.fusion-audit.budgets]]\nrule = 'FUS2'", ":2: tool.fusion-audit.budgets[1]: sets no limit"),
        (
            TABLE + "[[tool.fusion-audit.budgets]]\nrules = 'FUS201'",
            ":3: tool.fusion-audit.budgets has no key 'rules'; did you mean 'rule'?",
        ),
        (
            TABLE + "[[tool.fusion-audit.require]]\nrule = 'FUS201'\nkernel = 'x'",
            ":2: tool.fusion-audit.require[1]: needs one of rule, kernel and replacement, and has rule and kernel",
        ),
        (
            TABLE + "[[tool.fusion-audit.require]]\nmodules = 'x'",
            "needs one of rule, kernel and replacement, and has no",
        ),
        (
            TABLE + "[[tool.fusion-audit.require]]\nreplacement = 'rmsnorm'",
            ":3: tool.fusion-audit.require[1].replacement: no replacement 'rmsnorm'; there are: act_mul, ",
        ),
        (
            TABLE + "[[tool.fusion-audit.require]]\nreplacement = 'attention'",
            ":3: tool.fusion-audit.require[1].replacement: attention runs as ops of PyTorch's own; require a rule",
        ),
        (
            TABLE + "[[tool.fusion-audit.require]]\nrule = 'FUS201'\nat_least = 0",
            ":4: tool.fusion-audit.require[1].at_least: must be at least 1, not 0",
        ),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(folder: Path, text: str, sentence: str) -> None:
    (folder / "pyproject.toml").write_text(text)

    with pytest.raises(AuditError) as caught:
        project_demands(KNOWN)

    assert str(caught.value).startswith(f"{folder / 'pyproject.toml'}:")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_kernel: 1", "b.yaml:1: the file has no key 'max_kernel'; did you mean 'max_kernels'?"),
        ("budgets:\n- rule: FUS201\n  max_bytes: -1", "b.yaml:3: budgets[1].max_bytes: must not be negative, not -1"),
        ("max_kernels: 1\nmax_kernels: 2", "b.yaml:2: is not valid YAML: the key 'max_kernels' is there already"),
        ("- 1", "b.yaml:1: the file: expected a table, got a list"),
        ("max_kernels: [", "b.yaml:2: is not valid YAML: "),
        ("max_kernels: '1__0'", "b.yaml:1: max_kernels: must be a whole number, not '1__0'"),
        (f"max_kernels: {'9' * 400}", "b.yaml:1: max_kernels: must be a whole number, not 999"),
        (f"max_kernels: {'9' * 5000}", "b.yaml: is not valid YAML: Exceeds the limit"),
        ("max_kernels: 2026-13-41", "b.yaml: is not valid YAML: month must be in 1..12"),
        (
            "require: [{kernel: x, at_least: 1.5}]",
            "b.yaml:1: require.at_least (entry 1): expected a whole number, got one with",
        ),
        (BOMB, "b.yaml:1: is not valid YAML: it holds more than 100,000 values, each alias counted with what it"),
        ("", "b.yaml: sets no limit; write one such as max_unfused_kernels, or leave --budget out"),
    ],
)
def test_a_mistake_in_yaml(folder: Path, text: str, sentence: str) -> None:
    (folder / "b.yaml").write_text(text)

    with pytest.raises(AuditError) as caught:
        file_demands(Path("b.yaml"), KNOWN)

    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(AuditError, match=r"gone.yaml: No such file or directory$"):
        file_demands(folder / "gone.yaml", KNOWN)


def test_replacements_that_leave_no_op_can_not_be_demanded() -> None:
    from fused_replacements import replacements

    assert {each.name for each in replacements() if not each.ops} - {"elementwise_chain"} == set(UNSEEN)
