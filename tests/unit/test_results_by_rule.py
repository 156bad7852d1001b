"""What rules say that an op makes, against what PyTorch makes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from auditor.collect import propagate
from auditor.collect.dispatched import overloads
from auditor.collect.recorded_inputs import Recorded, RecordedInputs, TensorSpec
from auditor.collect.results import results_by_rule
from auditor.graph.infer import _FORMS, _UNLESS_NEEDED
from auditor.graph.layout import VIEWS
from auditor.graph.model import Value, contiguous_strides
from auditor.graph.ops import POINTWISE
from auditor.graph.promotion import broadcast, pointwise_strides

POINTWISE_CALLS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "add": (2, torch.add), "neg": (1, torch.neg), "sigmoid": (1, torch.sigmoid), "maximum": (2, torch.maximum),
    "addcmul": (3, torch.addcmul), "eq": (2, torch.eq), "gelu": (1, torch.nn.functional.gelu),
    "silu_backward": (2, torch.ops.aten.silu_backward.default),
}  # fmt: skip
MEMORY = torch.zeros(4096)


def a_layout(shape: tuple[int, ...], chance: random.Random) -> tuple[int, ...]:
    """Row-major, or any order of dimensions, with gaps, with one that repeats."""
    if not shape or chance.random() < 0.4:
        return contiguous_strides(shape)
    order = chance.sample(range(len(shape)), len(shape))
    padded = contiguous_strides(tuple(shape[i] * chance.choice([1, 1, 2]) for i in order))
    strides = [0] * len(shape)
    for place, dim in enumerate(order):
        strides[dim] = padded[place]
    if chance.random() < 0.15:
        strides[chance.randrange(len(strides))] = 0
    return tuple(strides)


def broadcastable(shape: tuple[int, ...], chance: random.Random) -> tuple[int, ...]:
    if chance.random() < 0.5:
        return shape
    smaller = tuple(1 if chance.random() < 0.4 else n for n in shape)
    return smaller[chance.randrange(len(smaller) + 1) :] if chance.random() < 0.5 else smaller


@pytest.mark.parametrize("name", POINTWISE_CALLS)
def test_a_pointwise_result_lies_as_pytorch_lays_it(name: str) -> None:
    count, call = POINTWISE_CALLS[name]
    chance = random.Random(name)
    for _ in range(300):
        whole = tuple(chance.choice([1, 2, 3, 4]) for _ in range(chance.randrange(1, 5)))
        shapes = [whole if name.endswith("backward") else broadcastable(whole, chance) for _ in range(count)]
        layouts = [a_layout(shape, chance) for shape in shapes]
        made = call(*(MEMORY.as_strided(*look) for look in zip(shapes, layouts, strict=True)))
        values = [Value(-1, "f32", shape, strides) for shape, strides in zip(shapes, layouts, strict=True)]
        shape = broadcast(shapes)
        assert (shape, pointwise_strides(shape, values)) == (tuple(made.shape), made.stride()), (shapes, layouts)


SHAPES = (((2, 3), (2, 3), (2, 3)), ((2, 3), (3,), (2, 1)), ((2, 3), (), ()))
DTYPES = ("f64", "f32", "bf16", "i64", "bool")


def calls_of(schema: Any) -> Iterator[RecordedInputs]:
    """Calls with tensors of every pair of dtypes, row-major, whose numbers are whole and broken."""
    kinds = [str(a.type) for a in schema.arguments]
    tensors = sum(kind in ("Tensor", "Optional[Tensor]") for kind in kinds)
    if tensors > 3:
        return
    numbers = (2, 2.5) if any("number" in kind or kind == "float" for kind in kinds) else (2,)
    for shapes, number in itertools.product(SHAPES, numbers):
        for dtypes in itertools.product(DTYPES, repeat=tensors):
            looks = iter([TensorSpec(d, s, contiguous_strides(s)) for d, s in zip(dtypes, shapes, strict=False)])
            values = tuple([_value(kind, looks, number) for kind in kinds])
            yield RecordedInputs(tuple("Scalar" for _ in kinds), values, known=True, spoken=True)


def _value(kind: str, looks: Iterator[TensorSpec], number: float) -> Recorded:
    if kind in ("Tensor", "Optional[Tensor]"):
        return next(looks)
    if kind == "int":
        return 1
    return number if "number" in kind or kind == "float" else None


@pytest.mark.parametrize("op", sorted(POINTWISE))
def test_rules_and_pytorch_agree_on_pointwise_ops(op: str) -> None:
    name = op.replace(".", "::")
    chance = random.Random(op)
    for schema in overloads(name):
        calls = list(calls_of(schema))
        for inputs in chance.sample(calls, min(len(calls), 12)):
            by_rule = results_by_rule(name, schema, inputs, "")
            asked = propagate._run(name, schema, inputs, "") if by_rule is not None else None
            assert asked is None or by_rule == asked, (schema, inputs.values)


def look(dtype: str, *shape: int, strides: Sequence[int] = ()) -> TensorSpec:
    return TensorSpec(dtype, shape, tuple(strides) or contiguous_strides(shape))


X = look("bf16", 4, 8, 16)
TURNED = look("f32", 8, 4, strides=(1, 8))
SAME_AS_PYTORCH = [
    ("mm", "", (look("f32", 4, 8), TURNED)),
    ("bmm", "", (X, look("bf16", 4, 16, 2))),
    ("addmm", "", (look("f32", 4), look("f32", 2, 8), TURNED, 1, 1)),
    ("cat", "", ((X, look("bf16", 4, 8, 2)), -1)),
    ("sum", "dim_IntList", (look("i64", 4, 8), (1,), True, None)),
    ("mean", "dim", (X, (-1,), False, 6)),
    ("_softmax", "", (X, -1, False)),
    ("native_layer_norm", "", (X, (16,), look("bf16", 16), look("bf16", 16), 1e-5)),
    ("transpose", "int", (TURNED, 0, 1)),
    ("view", "", (X, (32, -1))),
    ("embedding", "", (look("f32", 100, 8), look("i64", 3, 5), -1, False, False)),
    ("clone", "", (X, None)),
    ("clone", "", (look("f32", 4, 3, 2, strides=(2, 16, 1)), None)),
    ("clone", "", (TURNED, 0)),
    ("arange", "", (5, None, None, None, False)),
    ("arange", "start", (2, 9.5, None, None, None, False)),
    ("arange", "start_step", (0, 10, 3, 3, None, None, False)),
    ("lift_fresh", "", (TURNED,)),
    ("mul", "out", (X, look("f64"), X)),
]


@pytest.mark.parametrize(("name", "overload", "values"), SAME_AS_PYTORCH, ids=str)
def test_rules_tell_what_common_ops_make(name: str, overload: str, values: tuple[Recorded, ...]) -> None:
    (schema,) = (s for s in overloads(f"aten::{name}") if s.overload_name == overload)
    inputs = RecordedInputs(tuple("" for _ in values), values, known=True, spoken=True)
    by_rule = results_by_rule(f"aten::{name}", schema, inputs, "bf16")
    assert by_rule is not None
    assert by_rule == propagate._run(f"aten::{name}", schema, inputs, "bf16")


ODD = (
    None, -1, 0, 1, 3, 10**400, 1e308, -1e308, 5e-324,
    2**40, 2**63, -(2**70), 1.5, float("inf"), float("nan"), "none", True, (), (-1,), (0, 2**62),
    ("a", None), X, look("", 2, 3), (X, X), ((1,), 2),
)  # fmt: skip
RULED = sorted({*_FORMS, *VIEWS, *_UNLESS_NEEDED, "aten.add", "aten.where", "aten.gelu", "aten.arange"})


@pytest.mark.parametrize("op", RULED)
def test_arguments_that_no_recorder_writes_make_nothing_or_a_tensor(op: str) -> None:
    chance = random.Random(op)
    for schema in overloads(op.replace(".", "::")):
        for _ in range(25):
            values = tuple(chance.choice(ODD) for _ in schema.arguments)
            inputs = RecordedInputs(tuple("" for _ in values), values, known=True, spoken=chance.random() < 0.7)
            effect = propagate.effect_of(op.replace(".", "::"), replace(inputs, types=_types(values)), "f32")
            assert all(0 <= n < 2**53 for spec in effect.outputs for n in (*spec.shape, *spec.strides))
            for spec, offset in results_by_rule(op.replace(".", "::"), schema, inputs, "f32") or ():
                assert 0 <= offset < 2**53
                assert all(0 <= n < 2**53 for n in (*spec.shape, *spec.strides))


def _types(values: tuple[Recorded, ...]) -> tuple[str, ...]:
    kinds = {TensorSpec: "float", tuple: "ScalarList", type(None): ""}
    return tuple(kinds.get(type(value), "Scalar") for value in values)


def test_no_list_is_made_that_no_memory_holds() -> None:
    values = (look("f32", 2**40), 1, 0)
    inputs = RecordedInputs(("float", "Scalar", "Scalar"), values, known=True, spoken=True)
    assert not propagate.effect_of("aten::split", inputs).known


ONLY_PYTORCH_KNOWS = [
    # Arguments of other overloads stand elsewhere: the generator before the dtype.
    ("aten::randn", "generator", ((2, 3), None, 15, 0, None, False), True),
    # The order of an in-between layout is that of the kernel.
    ("aten::threshold_backward", "", (look("f32", 8, 4), TURNED, 0), True),
    # A length that no machine holds, and one that is not there.
    ("aten::arange", "", (1e300, None, None, None, False), True),
    ("aten::arange", "", (None, None, None, None, None), False),
    ("aten::arange", "", (10**400, None, None, None, False), True),
    ("aten::arange", "start", (-1e308, 1e308, None, None, None, False), True),
    ("aten::arange", "start_step", (0, 1, 5e-324, None, None, None, False), True),
    # A view whose sizes were not recorded.
    ("aten::view", "", (X, None), False),
    # A Python number of unknown type makes integers integers, or floats.
    ("aten::mul", "Scalar", (look("i64", 4), None), False),
    ("c10d::broadcast_", "", ((look("f32", 4),), None, 0, 0, True, -1), True),
]


@pytest.mark.parametrize(("name", "overload", "values", "spoken"), ONLY_PYTORCH_KNOWS)
def test_rules_do_not_guess(name: str, overload: str, values: tuple[Recorded, ...], spoken: bool) -> None:
    schemas = [s for s in overloads(name) if s.overload_name == overload]
    schema = schemas[0] if schemas else overloads("aten::add")[0]
    inputs = RecordedInputs(tuple("" for _ in values), values, known=True, spoken=spoken)
    assert results_by_rule(name, schema, inputs, "f32") is None
