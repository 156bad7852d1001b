"""One name and one argument order for each function."""

from __future__ import annotations

from typing import Any

import pytest

from auditor.graph.normal import ConstantVariable, normalise_call

C = ConstantVariable("c_eps")


def rank_of(arg: Any) -> int | None:
    return 3 if arg in ("x", "y") else None


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("aten.add", ("x", "y"), ("add", ("x", "y"))),
        ("aten.add", ("x", "y", 2), ("add_scaled", ("x", "y", 2))),
        ("aten.add", ("x", 0), ("copy", ("x",))),
        ("aten.add_", ("x", "y", 1), ("add", ("x", "y"))),
        ("aten.sub", ("x", 1.5), ("add", ("x", -1.5))),
        ("aten.sub", ("x", "y"), ("sub", ("x", "y"))),
        ("aten.sub", ("x", "y", 3), ("add_scaled", ("x", "y", -3))),
        ("aten.rsub", ("x", "y"), ("sub", ("y", "x"))),
        ("aten.mul", ("x", 1), ("copy", ("x",))),
        ("aten.mul", (2.0, "x"), ("mul", ("x", 2.0))),
        ("aten.div", ("x", 8.0), ("mul", ("x", 0.125))),
        ("aten.div", ("x", 1), ("copy", ("x",))),
        ("aten.div", ("x", 0), ("div", ("x", 0))),
        ("aten.div", ("x", C), ("mul", ("x", C))),
        ("aten.div", ("x", "y", "floor"), ("div_rounded", ("x", "y", "floor"))),
        ("aten.pow", ("x", 2), ("square", ("x",))),
        ("aten.pow", ("x", 2.0), ("square", ("x",))),
        ("aten.pow", ("x", -0.5), ("rsqrt", ("x",))),
        ("aten.pow", ("x", 0.5), ("sqrt", ("x",))),
        ("aten.pow", ("x", -1), ("reciprocal", ("x",))),
        ("aten.pow", ("x", 3), ("pow", ("x", 3))),
        ("aten.mean", ("x", (-1,), True), ("mean", ("x", (-1,)))),
        ("aten.mean", ("x", (2,)), ("mean", ("x", (-1,)))),
        ("aten.mean", ("x", (2, 0)), ("mean", ("x", (-3, -1)))),
        ("aten.mean", ("x",), ("mean", ("x", None))),
        ("aten.sum", ("x", ()), ("sum", ("x", None))),
        ("aten.amax", ("x", 1), ("amax", ("x", (-2,)))),
        ("aten.var", ("x", (-1,), False), ("var", ("x", (-1,), 0))),
        ("aten.var", ("x", (-1,)), ("var", ("x", (-1,), 1))),
        ("aten._softmax", ("x", 2, False), ("softmax", ("x", -1))),
        ("aten.softmax", ("x", -1), ("softmax", ("x", -1))),
        ("aten.gelu", ("x", "tanh"), ("gelu", ("x",))),
        ("aten.clamp_min", ("x", 0), ("relu", ("x",))),
        ("aten.clamp_min", ("x", 1), ("clamp_min", ("x", 1))),
        ("aten._to_copy", ("x", "bf16"), ("cast", ("x",))),
        ("prims.convert_element_type", ("x", "f32"), ("cast", ("x",))),
        ("aten.clone", ("x",), ("copy", ("x",))),
        ("aten.cat", (("x", "y"), 2), ("cat", (("x", "y"), -1))),
        ("aten.stack", (("x", "y"), 3), ("stack", (("x", "y"), -1))),
        ("aten.addmm", ("b", "x", "w"), ("addmm", ("x", "w", "b"))),
        ("aten.baddbmm", ("b", "x", "w"), ("baddbmm", ("x", "w", "b"))),
        ("aten.native_layer_norm", ("x", (8,), "w", "b", 1e-5), ("layer_norm", ("x", "w", "b", 1e-5))),
        ("aten.native_dropout", ("x", 0.1, True), ("dropout", ("x",))),
        ("aten.tanh", ("x",), ("tanh", ("x",))),
        ("mylib.norm", ("x", 1), ("mylib.norm", ("x", 1))),
    ],
)
def test_canonical_call(name: str, args: tuple[Any, ...], expected: tuple[str, tuple[Any, ...]]) -> None:
    assert normalise_call(name, args, rank_of) == expected


def test_the_same_value_whether_dims_count_from_the_start_or_the_end() -> None:
    forms = {normalise_call("aten.mean", ("x", dims), rank_of) for dims in ((-1,), (2,), -1, 2)}
    assert len(forms) == 1


def test_a_call_without_arguments_keeps_its_name() -> None:
    assert normalise_call("aten.add", (), rank_of) == ("add", ())
