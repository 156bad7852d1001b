"""The code of replacements, read without importing it."""

from __future__ import annotations

import ast

import pytest
from shown import parts, text

from dashboard.components.replacement import accesses, kernel_code, replacement_view


def test_the_lines_that_touch_memory_are_marked() -> None:
    source = "x = tl.load(a)\ny = tl.load(b) + x\ntl.store(c, tl.load(d))\ntl.atomic_add(e, y)\nz = load(f)"

    assert accesses(ast.parse(source)) == {1: "load", 2: "load", 3: "both", 4: "both"}


def test_a_norm_has_its_forward_and_backward() -> None:
    codes = {code.name: code for code in kernel_code("rms_norm")}

    assert {"rms_norm_forward", "rms_norm_backward"} <= set(codes)
    forward = codes["rms_norm_forward"]
    marked = {forward.text.splitlines()[line - forward.first].strip() for line in forward.accesses}
    assert any(line.startswith("x_N = tl.load(x ") for line in marked)
    assert any(line.startswith("tl.store(y ") for line in marked)
    assert len(marked) == forward.text.count("tl.load(") + forward.text.count("tl.store(")


def test_what_a_kernel_calls_in_another_file_is_shown_too() -> None:
    names = [code.name for code in kernel_code("add_rms_norm")]

    assert "forward_row" in names
    assert names.index("forward_row") < names.index("add_rms_norm_forward")


def test_every_replacement_has_code_to_show() -> None:
    from fused_replacements._registry import HOME

    for name in HOME:
        assert "What a model calls" in text(replacement_view(name)), name


@pytest.mark.parametrize("name", ["../../etc/passwd", "_registry", "__init__", "nothing", "check"])
def test_no_other_file_is_shown(name: str) -> None:
    shown = replacement_view(name)

    assert "is not part of this library" in text(shown)
    assert not [part for part in parts(shown) if type(part).__name__ == "Pre"]
