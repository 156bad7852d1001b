"""What may be fused, and the reason and the op where it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditor.engine.legality import Refusal, Region, check
from auditor.graph.canonical import Canonical
from auditor.graph.model import OpGraph
from auditor.graph.ssa import parse

HEAD = "x: f32[16, 16]\nz: f32[16, 16]\nm: f32[16, 16]\n"


def decide(graph: OpGraph | str, *members: int, allowed: set[int] | None = None, gemms: int = 1) -> Region | Refusal:
    graph = parse(HEAD + graph) if isinstance(graph, str) else graph
    return check(Canonical(graph), [graph.ops[i] for i in members], allowed, gemms=gemms)


def refused(graph: OpGraph | str, *members: int, allowed: set[int] | None = None) -> tuple[str, int]:
    answer = decide(graph, *members, allowed=allowed)
    assert isinstance(answer, Refusal)
    assert [op.index for op in answer.ops] == sorted(members)
    assert answer.at.index == min(members)
    return answer.reason, answer.op.index


def legal(graph: OpGraph | str, *members: int, gemms: int = 1) -> Region:
    answer = decide(graph, *members, gemms=gemms)
    assert isinstance(answer, Region), answer
    return answer


def test_a_region_knows_what_it_reads_writes_and_saves() -> None:
    region = legal("a = aten.mul(x, z)\nb = aten.exp(a)\ny = aten.add(b, x)\nn = aten.neg(b)\nreturn y, n", 0, 1, 2)
    assert [v.name for v in region.inputs] == ["x", "z"]
    assert [v.name for v in region.outputs] == ["b", "y"]
    assert (region.kernels, region.bytes_now, region.bytes_fused) == (3, 3072 + 2048 + 3072, 4096)


@pytest.mark.parametrize(
    ("graph", "members", "reason", "op"),
    [
        (
            "a = aten.exp(x)\nb = aten.mm(a, m)\ny = aten.add(a, b)",
            (0, 2),
            "a path leaves and comes back through aten.mm",
            1,
        ),
        (
            "a = aten.exp(x)\nb = aten.mm(a, m)\nc = aten.mm(b, m)\ny = aten.add(a, c)",
            (0, 3),
            "a path leaves and comes back",
            2,
        ),
        (
            "a = aten.exp(x)\naten.add_(z, a)\ny = aten.add(a, z)",
            (0, 2),
            "a path leaves and comes back through aten.add_",
            1,
        ),
        (
            "a = aten.exp(x)\nu = aten.mm(a, z)\naten.add_(z, a)",
            (0, 2),
            "a path leaves and comes back through aten.mm",
            1,
        ),
        (
            "a = aten.exp(x)\nu = aten.mm(a, z)\naten.mul_(z, m)\ny = aten.add(a, z)",
            (0, 3),
            "a path leaves and comes back",
            2,
        ),
        (
            "a = aten.exp(x)\naten._local_scalar_dense(aten.amax(a))\ny = aten.neg(a)",
            (0, 3),
            "a host sync in between waits for it",
            2,
        ),
        (
            "a = aten.exp(x)\nr: f32[16, 16] = _c10d_functional.all_reduce(a, 'sum')\ny = aten.neg(a)",
            (0, 2),
            "a collective in between waits for it",
            1,
        ),
        ("a = aten.exp(x)\ni: i64[4, 2] = aten.nonzero(a)\ny = aten.neg(a)", (0, 2), "a host sync in between", 1),
        (
            "a = aten.exp(x)\naten.mul_(x, 2)\ny = aten.neg(a)",
            (0, 2),
            "aten.mul_ writes in place to an input in between",
            1,
        ),
        (
            "a = aten.exp(x)\naten.mul_(aten.slice(x, 0, 0, 4), 2)\ny = aten.neg(a)",
            (0, 3),
            "aten.mul_ writes in place",
            2,
        ),
        (
            'a = aten.exp(x)\nphase("backward")\ny = aten.neg(a)',
            (0, 1),
            "aten.neg runs in the backward, aten.exp in the forward",
            1,
        ),
        ("a = aten.mm(x, m)\ny = aten.mm(a, m)", (0, 1), "it would join 2 GEMMs", 1),
        (
            "a = aten.mm(x, m)\nb = aten.relu(a)\nq = aten.view(b, [1, 16, 16])\ny = aten.bmm(q, q)",
            (0, 1, 3),
            "join 2 GEMMs",
            3,
        ),
    ],
)
def test_refused(graph: str, members: tuple[int, ...], reason: str, op: int) -> None:
    said, at = refused(graph, *members)
    assert reason in said
    assert at == op


@pytest.mark.parametrize(
    ("graph", "members"),
    [
        ("a = aten.exp(x)\nb = aten.mm(z, m)\ny = aten.add(a, b)", (0, 2)),
        ("a = aten.exp(x)\nb = aten.mm(a, m)\ny = aten.neg(a)", (0, 2)),
        ("a = aten.exp(x)\naten._local_scalar_dense(aten.amax(z))\ny = aten.neg(a)", (0, 3)),
        ("a = aten.exp(x)\naten.mul_(z, 2)\ny = aten.neg(a)", (0, 2)),
        ("aten.mul_(x, 2)\na = aten.exp(x)\ny = aten.neg(a)\naten.mul_(x, 2)", (1, 2)),
        ("a = aten.exp(x)\nb = aten.mm(a, z)\naten.mul_(z, 2)\ny = aten.neg(a)", (0, 3)),
        ("aten.mul_(x, 2)\naten.add_(x, 1)", (0, 1)),
    ],
)
def test_legal(graph: str, members: tuple[int, ...]) -> None:
    legal(graph, *members)


def test_two_gemms_are_legal_where_the_rule_takes_two() -> None:
    legal("a = aten.mm(x, m)\ny = aten.mm(a, m)", 0, 1, gemms=2)


def test_another_stream_device_or_thread() -> None:
    for change, said in (
        ({"stream": 7}, "aten.neg runs on another stream or device"),
        ({"device": 1}, "aten.neg runs on another stream or device"),
        ({}, "aten.neg is launched by another thread"),
    ):
        graph = parse(HEAD + "a = aten.exp(x)\ny = aten.neg(a)")
        neg = graph.ops[1]
        neg.kernels = tuple(replace(k, **change) for k in neg.kernels)
        neg.thread = 0 if change else 5
        assert refused(graph, 0, 1) == (said, 1)


def test_a_device_to_host_copy_is_a_sync() -> None:
    graph = parse(HEAD + "a = aten.exp(x)\nh = aten._to_copy(a, f32)\ny = aten.neg(a)")
    copy = graph.ops[1]
    copy.kernels = tuple(replace(k, name="Memcpy DtoH (Device -> Pinned)") for k in copy.kernels)
    assert refused(graph, 0, 2) == ("a host sync in between waits for it: aten._to_copy", 1)


# ── what is read outside ─────────────────────────────────────────────────────────────────────────────────────────────


def test_only_allowed_values_may_be_read_outside() -> None:
    graph = parse(HEAD + "a = aten.exp(x)\ny = aten.neg(a)\nn = aten.sin(aten.view(a, [256]))")
    a, y = graph.ops[0].outputs[0], graph.ops[1].outputs[0]
    assert refused(graph, 0, 1, allowed={y.id}) == ("the result of aten.exp escapes to aten.sin", 3)
    region = decide(graph, 0, 1, allowed={a.id, y.id})
    assert isinstance(region, Region)
    assert region.outputs == (a, y)


def test_a_result_of_the_step_escapes() -> None:
    graph = parse(HEAD + "a = aten.exp(x)\ny = aten.neg(a)\nreturn a, y")
    assert refused(graph, 0, 1, allowed={graph.ops[1].outputs[0].id})[0].endswith("escapes as a result of the step")


def test_what_only_the_backward_reads_is_saved_and_needs_no_leave() -> None:
    graph = parse(HEAD + 'a = aten.exp(x)\ny = aten.neg(a)\nphase("backward")\ng = aten.mul(a, z)\nreturn y, g')
    region = decide(graph, 0, 1, allowed={graph.ops[1].outputs[0].id})
    assert isinstance(region, Region)
    assert [v.name for v in region.saved] == ["a"]
    assert region.bytes_written == 2048


def test_a_buffer_from_before_the_step_is_an_output_though_nobody_reads_it() -> None:
    region = legal("aten.mul_(x, 2)\ny = aten.neg(x)\nreturn y", 0, 1)
    assert len(region.outputs) == 2
