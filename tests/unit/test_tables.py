"""Graphs as tables: nothing is lost, and bad tables are refused with a sentence."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from graphs import graphs, structure
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.errors import AuditError
from auditor.graph.model import Coverage, Kernel, Op, OpGraph, Source
from auditor.graph.tables import SCHEMAS, from_tables, to_tables


@settings(max_examples=150, deadline=None)
@given(graphs(), st.sampled_from(["observed", "inferred"]), st.floats(allow_nan=False))
def test_a_graph_survives(graph: OpGraph, provenance: str, step_us: float) -> None:
    # GIVEN a graph with facts of its own, and kernels that no op claims
    graph.provenance, graph.step_us, graph.device_kind, graph.device_name = provenance, step_us, "cuda", "H100"  # type: ignore[assignment]
    graph.coverage = Coverage(3, 2, 1, 0, 0, 4, ["a note"])
    graph.unlinked = [Kernel("early", 0.5, 1.0, 7, 1)]
    for i, op in enumerate(graph.ops):
        op.thread, op.sequence, op.inferred = i, 2**40 + i, bool(i % 2)
    # WHEN it goes to tables and back
    again = from_tables(to_tables(graph))
    # THEN everything is there
    assert structure(again) == structure(graph)
    for field in ("provenance", "step_us", "device_kind", "device_name", "coverage", "unlinked"):
        assert getattr(again, field) == getattr(graph, field)
    for op, back in zip(graph.ops, again.ops, strict=True):
        assert (back.index, back.kernels) == (op.index, op.kernels)
        assert (back.thread, back.sequence, back.inferred) == (op.thread, op.sequence, op.inferred)
        assert [type(a) for a in back.args] == [type(a) for a in op.args]
    for value, back_value in zip(graph.values, again.values, strict=True):
        assert (back_value.id, back_value.name, back_value.storage) == (value.id, value.name, value.storage)
        assert [c.index for c in back_value.consumers] == [c.index for c in value.consumers]
        assert (back_value.producer and back_value.producer.index) == (value.producer and value.producer.index)
        assert back_value.output_index == value.output_index


def one_op(*args: object) -> OpGraph:
    graph = OpGraph()
    x, y = graph.value("f32", (2,)), graph.value("f32", (2,))
    graph.add(Op(0, "mylib.op", (x, *args), (y,)))  # type: ignore[arg-type]
    return graph


@pytest.mark.parametrize(
    "constant",
    [math.inf, -math.inf, 1e-300, -0.0, 2**100, -(2**63), 1 + 2j, complex(math.inf, -0.0), True, None, "bf16", "\ud800",
     (1, (2.0, (None, "x"))), (), (1, math.inf)],
)  # fmt: skip
def test_constants_survive_with_their_type(constant: object) -> None:
    (op,) = from_tables(to_tables(one_op(constant))).ops
    assert repr(op.args[1]) == repr(constant)


def test_nan_survives() -> None:
    (op,) = from_tables(to_tables(one_op(math.nan, complex(math.nan, 1.0)))).ops
    assert math.isnan(op.args[1])
    assert math.isnan(op.args[2].real)
    assert op.args[2].imag == 1.0


def test_arguments_are_json_that_sql_can_read() -> None:
    args = to_tables(one_op(1.5, math.nan, 2j))["ops"].column("args").to_pylist()
    assert args == ['[{"v":0},1.5,{"f":"nan"},{"c":["0.0","2.0"]}]']


def test_parquet_keeps_it(tmp_path: Path) -> None:
    graph = one_op((1, 2), "gelu")
    graph.ops[0].source = Source("model.py", 7, "forward")
    for name, table in to_tables(graph).items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    again = from_tables({name: pq.read_table(tmp_path / f"{name}.parquet") for name in SCHEMAS})
    assert structure(again) == structure(graph)


def test_an_empty_graph() -> None:
    assert structure(from_tables(to_tables(OpGraph()))) == [[]]


def test_half_of_a_surrogate_pair_in_a_name_is_written_out() -> None:
    graph = one_op()
    graph.ops[0].module = "layer\ud800"
    assert from_tables(to_tables(graph)).ops[0].module == "layer\\ud800"


def test_what_is_no_argument_is_refused() -> None:
    with pytest.raises(AuditError, match=r"op 0 \(mylib\.op\) has an argument that cannot be stored: set"):
        to_tables(one_op({1}))


def test_a_number_beyond_64_bits_in_a_column_is_refused() -> None:
    graph = one_op()
    graph.values[0].storage = 2**70
    with pytest.raises(AuditError, match="column storage"):
        to_tables(graph)


def test_bad_tables_are_refused() -> None:
    tables = to_tables(one_op())
    with pytest.raises(AuditError, match="table of kernels is missing"):
        from_tables({k: v for k, v in tables.items() if k != "kernels"})
    with pytest.raises(AuditError, match="table of values lacks storage"):
        from_tables({**tables, "values": tables["values"].drop_columns(["storage"])})
    with pytest.raises(AuditError, match="was not written by fusion-audit"):
        from_tables({**tables, "ops": tables["ops"].replace_schema_metadata(None)})
    with pytest.raises(AuditError, match="another version"):
        from_tables({**tables, "ops": tables["ops"].replace_schema_metadata({"fusion-audit": '{"version": 99}'})})
    with pytest.raises(AuditError, match="do not fit together"):
        from_tables({**tables, "values": tables["values"].slice(0, 1)})
    stray = pa.table({"op": [5], "name": ["k"], "start_us": [0.0], "dur_us": [0.0], "stream": [0], "device": [0]})
    with pytest.raises(AuditError, match="do not fit together"):
        from_tables({**tables, "kernels": stray})
