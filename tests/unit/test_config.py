"""Project settings: where they come from, what they mean, and how a mistake is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.config import Config, Suppression, load_config, override, read_config
from auditor.errors import AuditError

FULL = """
[project]
name = "something-else"

[tool.fusion-audit]
script = "bench.py --tiny"
name = "serving"
select = ["FUS2", "unfused-softmax"]
ignore = ["FUS203"]
rules = ["audit_rules", "/opt/rules"]

[tool.fusion-audit.severity]
FUS2 = "info"
FUS201 = "error"

[[tool.fusion-audit.suppress]]
rule = "FUS201"
modules = "model.vision.*"
reason = "frozen"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_every_key_is_read(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, FULL)) == Config(
        script="bench.py --tiny",
        name="serving",
        select=["FUS2", "unfused-softmax"],
        ignore=["FUS203"],
        rules=[str(tmp_path / "audit_rules"), "/opt/rules"],
        severity={"FUS2": "info", "FUS201": "error"},
        suppress=[Suppression(rule="FUS201", modules="model.vision.*", reason="frozen")],
    )


def test_the_nearest_file_counts_even_without_a_section(tmp_path: Path) -> None:
    write(tmp_path, FULL)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)

    assert load_config(inner).name == "serving"
    write(tmp_path / "a", "[project]\nname = 'a'\n")
    assert load_config(inner) == Config()


class TestChoice:
    def test_by_id_start_of_id_and_name_in_any_case(self, tmp_path: Path) -> None:
        config = read_config(write(tmp_path, FULL))

        chosen = [
            rule
            for rule, name in [
                ("FUS101", "unfused-elementwise-chain"),
                ("FUS201", "unfused-rms-norm"),
                ("FUS203", "unfused-layer-norm"),
                ("FUS601", "Unfused-Softmax"),
            ]
            if config.chooses(rule, name)
        ]

        assert chosen == ["FUS201", "FUS601"]

    def test_nothing_selected_is_everything(self) -> None:
        assert Config().chooses("FUS101", "x")
        assert not Config(ignore=["fus1"]).chooses("FUS101", "x")

    def test_the_most_precise_severity_wins(self, tmp_path: Path) -> None:
        config = read_config(write(tmp_path, FULL))

        assert config.severity_of("FUS201", "unfused-rms-norm", "warning") == "error"
        assert config.severity_of("FUS202", "unfused-add-rms-norm", "warning") == "info"
        assert config.severity_of("FUS301", "x", "warning") == "warning"

    def test_a_selector_that_means_nothing_is_refused(self) -> None:
        known = [("FUS201", "unfused-rms-norm"), ("FUS101", "unfused-chain")]
        Config(select=["FUS2"], ignore=["unfused-chain"]).check_selectors(known)

        with pytest.raises(AuditError, match=r"no rule 'unfused-rmsnorm'; did you mean 'unfused-rms-norm'\?; see:"):
            Config(ignore=["unfused-rmsnorm"]).check_selectors(known)


class TestOverride:
    def test_the_command_line_wins_and_adds_rule_folders(self, folder: Path) -> None:
        config = Config(name="file", select=["FUS1"], ignore=["FUS2"], rules=["/a"])

        changed = override(config, name="option", select=["FUS3"], rules=["more"])

        assert changed == Config(name="option", select=["FUS3"], ignore=["FUS2"], rules=["/a", str(folder / "more")])

    def test_nothing_given_changes_nothing(self) -> None:
        config = Config(name="file", select=["FUS1"])
        assert override(config) == config


HEAD = "[tool.other]\nselect = 3\n\n[tool.fusion-audit]\n"  # four lines, and a decoy


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "select = 'FUS1'", ":5: tool.fusion-audit.select: expected a list, got text"),
        (HEAD + "\nselct = []", ":6: tool.fusion-audit has no key 'selct'; did you mean 'select'?"),
        (
            HEAD + "xyz = 1",
            ":5: tool.fusion-audit has no key 'xyz'; there are: budgets, ignore, max_avoidable_kernels, ",
        ),
        (HEAD + "name = 7", ":5: tool.fusion-audit.name: expected text, got a number"),
        (HEAD + "ignore = ['a', 3]", ":5: tool.fusion-audit.ignore (entry 2): expected text, got a number"),
        (HEAD + "ignore = ['']", ":5: tool.fusion-audit.ignore (entry 1): expected text that isn't empty"),
        (HEAD + "severity = {FUS1 = 'loud'}", "invalid enum value 'loud'; expected error, warning or info"),
        (
            HEAD + "suppress = [{rule = 'a', modules = 'b', reason = 'c'}, {rule = 'a', modules = 'b'}]",
            ":5: tool.fusion-audit.suppress (entry 2) needs 'reason'; each has: rule, modules, reason",
        ),
        (
            HEAD + "[[tool.fusion-audit.suppress]]\nrule = 'a'\nmodules = 'b'\nreason = ''",
            ":8: tool.fusion-audit.suppress.reason (entry 1): expected text that isn't empty",
        ),
        (HEAD + "suppress = [{rule='a', modules='b', reasn='c'}]", "no key 'reasn'; did you mean 'reason'?"),
        ("[tool]\nfusion-audit = 3", ": tool.fusion-audit must be a table, not int"),
        ("[tool.fusion-audit]\nselect = [", ": is not valid TOML: Invalid value (at end of document)"),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_what_was_expected(tmp_path: Path, text: str, sentence: str) -> None:
    file = write(tmp_path, text)

    with pytest.raises(AuditError) as caught:
        read_config(file)

    assert str(caught.value).startswith(str(file))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(AuditError, match="is not UTF-8 text"):
        load_config(tmp_path)
