"""What `fusion-audit rules list` and `rules show` print."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import pytest

from auditor.cli.rules import summary
from auditor.engine.rules import load_rules

pytestmark = pytest.mark.usefixtures("folder")
Cli = Callable[..., tuple[int, str, str]]


def test_list_says_what_each_rule_finds(fusion_audit: Cli) -> None:
    code, out, err = fusion_audit("rules", "list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    rules = load_rules()
    assert len(lines) == 2 * len(rules)
    for rule, head, what in zip(rules, lines[::2], lines[1::2], strict=True):
        assert head.split() == [rule.id, rule.name, rule.family, rule.status, rule.severity]
        assert what == f"        {summary(rule)}"


def test_list_on_a_narrow_terminal_is_cut(fusion_audit: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    whole = fusion_audit("rules", "list")[1].splitlines()[1::2]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cut = fusion_audit("rules", "list")[1].splitlines()[1::2]
    assert max(map(len, whole)) > 50 >= max(map(len, cut))
    assert all(w == c or (c.endswith("…") and w.startswith(c[:-1])) for w, c in zip(whole, cut, strict=True))
    assert whole != cut


def test_show_wraps_prose_and_keeps_code(fusion_audit: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    [rule] = [r for r in load_rules() if r.id == "FUS101"]
    out = fusion_audit("rules", "show", "unfused-elementwise-chain")[1]
    head, *sections = out.split("\n\n")
    assert head == "FUS101 unfused-elementwise-chain"
    titles = [s.split("\n")[0] for s in sections[1:]]
    assert titles == ["What it finds", "Why it costs", "Example", "Use instead", "Safety"]
    what = sections[1].split("\n")[1:]
    assert all(len(line) <= 60 for line in what)
    assert " ".join(" ".join(what).split()) == rule.docs["what"]
    assert "\n".join(f"  {line}" for line in rule.docs["example"].splitlines()) in out
    assert re.search(r"^elementwise · stable · warning · \d+ tests\n.*FUS101\.yaml$", sections[0])
