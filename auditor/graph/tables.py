"""Op graphs as columns, without loss: what the store keeps as Parquet, and what pandas or SQL can read.

=========== ==================================================================================================
ops         one row per op, in order: name, overload, args (JSON), outputs and mutates (value ids), module,
            module_class, source_file, source_line, source_function, phase, thread, sequence, inferred, scope
values      one row per value: id, dtype, shape, strides, offset (elements), storage, device, name, base (a
            value id or null), escapes
kernels     one row per kernel: op (its row, null where no op claims it), name, start_us, dur_us, stream, device
host        one row per op whose call on the host was timed: op (its row), start_us, dur_us; only with a device
=========== ==================================================================================================

In ``args`` a value is ``{"v": id}``, a complex number ``{"c": [re, im]}``, and a float that JSON has no word for
``{"f": "nan"}``. Producers and consumers follow from ``outputs`` and ``args``. What belongs to the whole graph is
in the schema metadata of each table, as JSON under ``fusion-audit``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import accumulate, chain, groupby, pairwise
from typing import Any

import pyarrow as pa

from auditor.errors import AuditError
from auditor.graph.garbage import collection_paused
from auditor.graph.model import Arg, Coverage, HostCall, Kernel, Op, OpGraph, Source, StepSpan, StepSpans, Value

VERSION = 1
_KEY = b"fusion-audit"

_INTS = pa.list_(pa.int64())
OPS = pa.schema(
    [
        ("name", pa.string()), ("overload", pa.string()), ("args", pa.string()), ("outputs", _INTS),
        ("mutates", _INTS), ("module", pa.string()), ("module_class", pa.string()), ("source_file", pa.string()),
        ("source_line", pa.int64()), ("source_function", pa.string()), ("phase", pa.string()),
        ("thread", pa.int64()), ("sequence", pa.int64()), ("inferred", pa.bool_()),
        ("scope", pa.string()),
    ]
)  # fmt: skip
VALUES = pa.schema(
    [
        ("id", pa.int64()), ("dtype", pa.string()), ("shape", _INTS), ("strides", _INTS), ("offset", pa.int64()),
        ("storage", pa.int64()), ("device", pa.string()), ("name", pa.string()), ("base", pa.int64()),
        ("escapes", pa.bool_()),
    ]
)  # fmt: skip
KERNELS = pa.schema(
    [
        ("op", pa.int64()), ("name", pa.string()), ("start_us", pa.float64()), ("dur_us", pa.float64()),
        ("stream", pa.int64()), ("device", pa.int64()),
    ]
)  # fmt: skip
HOST = pa.schema([("op", pa.int64()), ("start_us", pa.float64()), ("dur_us", pa.float64())])
_Column = Sequence[Any]
SCHEMAS = {"ops": OPS, "values": VALUES, "kernels": KERNELS}


def to_tables(graph: OpGraph) -> dict[str, pa.Table]:
    """The graph as the tables ``ops``, ``values`` and ``kernels``, and ``host`` where it has something.

    :raises AuditError: where an op's argument is nothing that a graph can hold, or a number exceeds 64 bits.
    """
    metadata = {_KEY: json.dumps(_facts(graph))}
    calls = [(op.index, *op.host) for op in graph.ops if op.host is not None]
    with collection_paused():
        columns = {
            "ops": _op_columns(graph.ops), "values": _value_columns(graph.values),
            "kernels": _transposed(_kernel_rows(graph), KERNELS),
        }  # fmt: skip
        tables = {name: _table(schema, columns[name], metadata) for name, schema in SCHEMAS.items()}
        return tables | {"host": _table(HOST, _transposed(calls, HOST), metadata)} if calls else tables


def from_tables(tables: Mapping[str, pa.Table]) -> OpGraph:
    """The graph that :func:`to_tables` wrote.

    :raises AuditError: where a table or a column is missing, or the tables are of a later version.
    """
    with collection_paused():
        columns = {name: _columns(name, tables) for name in SCHEMAS}
        graph = _graph(tables["ops"])
        try:
            _fill(graph, columns)
            if "host" in tables:
                _call(graph, tables["host"])
            _give_steps(graph, json.loads(tables["ops"].schema.metadata[_KEY]).get("steps"))
        except (KeyError, IndexError) as e:
            raise AuditError(f"the graph tables do not fit together (no row {e}); record the run again") from None
        return graph


def _fill(graph: OpGraph, columns: dict[str, list[list[Any]]]) -> None:
    graph.values = list(map(_value, *columns["values"]))
    by_id = {value.id: value for value in graph.values}
    for value, base in zip(graph.values, columns["values"][VALUES.get_field_index("base")], strict=True):
        value.base = None if base is None else by_id[base]
    decode = _Decoder(by_id)
    for row in zip(*columns["ops"], strict=True):
        graph.add(_op(row, by_id, decode))
    _attach(graph, columns["kernels"])


def _call(graph: OpGraph, host: pa.Table) -> None:
    for op, start_us, dur_us in zip(*(host.column(name).to_pylist() for name in HOST.names), strict=True):
        graph.ops[op].host = HostCall(start_us, dur_us)


def _facts(graph: OpGraph) -> dict[str, Any]:
    return {
        "version": VERSION, "provenance": graph.provenance, "coverage": asdict(graph.coverage),
        "step_us": graph.step_us, "device_kind": graph.device_kind, "device_name": graph.device_name,
        "steps": _step_facts(graph),
    }  # fmt: skip


def _graph(ops: pa.Table) -> OpGraph:
    try:
        facts = json.loads((ops.schema.metadata or {})[_KEY])
    except (KeyError, ValueError):
        raise AuditError(
            "the table of ops lacks its fusion-audit metadata; it was not written by fusion-audit"
        ) from None
    if facts.pop("version") != VERSION:
        raise AuditError("the graph tables were written by another version of fusion-audit; record the run again")
    facts.pop("steps", None)
    return OpGraph(coverage=Coverage(**facts.pop("coverage")), **facts)


def _give_steps(graph: OpGraph, facts: dict[str, Any] | None) -> None:
    if not facts:  # of one step, or of an earlier version
        return
    graph.steps = _spans(facts)
    launched = chain.from_iterable([time_us] * count for time_us, count in facts["launched"])
    for kernel, time_us in zip(graph.unlinked, launched, strict=False):
        kernel.launched_us = time_us


def _step_facts(graph: OpGraph) -> dict[str, Any] | None:
    """Steps, and when kernels that no op holds were launched, alike ones in a row as one: those of a graph's replay.

    JSON has no word for the end of what goes on: it is ``null``.
    """
    steps = graph.steps
    if not steps.spans:
        return None
    spans = [(s.name, _finite(s.start_us), _finite(s.end_us), s.complete) for s in steps.spans]
    launched = [(time_us, len(list(run))) for time_us, run in groupby(k.launched_us for k in graph.unlinked)]
    return {"by": steps.by, "marker": steps.marker, "spans": spans, "launched": launched}


def _finite(time_us: float) -> float | None:
    return time_us if math.isfinite(time_us) else None


def _spans(facts: dict[str, Any]) -> StepSpans:
    made = (
        StepSpan(name, -math.inf if start is None else start, math.inf if end is None else end, complete)
        for name, start, end, complete in facts["spans"]
    )
    return StepSpans(facts["by"], facts["marker"], tuple(made))


def _op_columns(ops: list[Op]) -> list[_Column]:
    """Column by column: no row is made for each of hundreds of thousands of ops."""
    sources = [op.source for op in ops]
    return [
        [op.name for op in ops], [op.overload for op in ops], list(map(_encoded, ops)),
        [[v.id for v in op.outputs] for op in ops], [[v.id for v in op.mutates] for op in ops],
        [op.module for op in ops], [op.module_class for op in ops], [s and s.file for s in sources],
        [s and s.line for s in sources], [s and s.function for s in sources], [op.phase for op in ops],
        [op.thread for op in ops], [op.sequence for op in ops], [op.inferred for op in ops], [op.scope for op in ops],
    ]  # fmt: skip


def _value_columns(values: list[Value]) -> list[_Column]:
    return [
        [v.id for v in values], [v.dtype for v in values], [v.shape for v in values], [v.strides for v in values],
        [v.offset for v in values], [v.storage for v in values], [v.device for v in values], [v.name for v in values],
        [None if v.base is None else v.base.id for v in values], [v.escapes for v in values],
    ]  # fmt: skip


def _kernel_rows(graph: OpGraph) -> Iterable[tuple[Any, ...]]:
    for index, op in enumerate(graph.ops):
        for k in op.kernels:
            yield (index, k.name, k.start_us, k.dur_us, k.stream, k.device)
    for k in graph.unlinked:
        yield (None, k.name, k.start_us, k.dur_us, k.stream, k.device)


def _transposed(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> list[_Column]:
    return list(zip(*rows, strict=True)) or [()] * len(schema)


def _table(schema: pa.Schema, columns: Sequence[_Column], metadata: dict[bytes, str]) -> pa.Table:
    schema = schema.with_metadata(metadata)
    return pa.Table.from_arrays([_array(c, f) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _array(column: _Column, field: pa.Field) -> pa.Array:
    try:
        if field.type == _INTS:
            return _list_array(column)
        return pa.array(column, field.type)
    except UnicodeEncodeError:  # half of a surrogate pair, from a trace that is not quite text
        return pa.array([c and c.encode("utf-8", "backslashreplace").decode() for c in column], field.type)
    except (OverflowError, pa.ArrowException) as e:
        raise AuditError(f"column {field.name} of the graph cannot be stored: {e}") from None


def _list_array(column: _Column) -> pa.Array:
    """From flat numbers and where each row starts: several times faster than from nested sequences."""
    starts = pa.array([0, *accumulate(map(len, column))], pa.int32())
    return pa.ListArray.from_arrays(starts, pa.array(list(chain.from_iterable(column)), pa.int64()))


def _columns(name: str, tables: Mapping[str, pa.Table]) -> list[list[Any]]:
    if name not in tables:
        raise AuditError(f"the graph's table of {name} is missing; record the run again")
    table = tables[name]
    if name == "ops" and "scope" not in table.column_names:  # written before there was one
        table = table.append_column("scope", pa.array([""] * len(table), pa.string()))
    missing = [n for n in SCHEMAS[name].names if n not in table.column_names]
    if missing:
        raise AuditError(f"the graph's table of {name} lacks {', '.join(missing)}; record the run again")
    return [_unpacked(table.column(f.name), f) for f in SCHEMAS[name]]


def _unpacked(column: pa.ChunkedArray, field: pa.Field) -> list[Any]:
    if field.type != _INTS:
        return list(column.to_pylist())
    rows: list[Any] = []
    for chunk in column.chunks:
        starts, flat = chunk.offsets.to_pylist(), chunk.values.to_pylist()
        rows.extend(tuple(flat[a:b]) for a, b in pairwise(starts))
    return rows


def _value(
    id_: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, storage: int, device: str,
    name: str, _base: int | None, escapes: bool,
) -> Value:  # fmt: skip
    return Value(id_, dtype, shape, strides, offset, storage, device, name, escapes=escapes)


def _op(row: tuple[Any, ...], values: dict[int, Value], decode: _Decoder) -> Op:
    (name, overload, args, outputs, mutates, module, module_class, file, line, function, phase, thread, sequence,
     inferred, scope) = row  # fmt: skip
    source = None if file is None else decode.source(file, line, function)
    return Op(
        0, name, decode(args), tuple([values[i] for i in outputs]), overload, (), tuple([values[i] for i in mutates]),
        module, module_class, source, phase, thread, sequence, inferred, scope=scope,
    )  # fmt: skip


def _attach(graph: OpGraph, columns: list[list[Any]]) -> None:
    """Give kernels back to their ops. Rows of one op are neighbours, in order."""
    owned: dict[int, list[Kernel]] = {}
    for op, name, start_us, dur_us, stream, device in zip(*columns, strict=True):
        kernel = Kernel(name, start_us, dur_us, stream, device)
        (graph.unlinked if op is None else owned.setdefault(op, [])).append(kernel)
    for index, kernels in owned.items():
        graph.ops[index].kernels = tuple(kernels)


def _encoded(op: Op) -> str:
    try:
        return _json(op.args)
    except TypeError as e:
        raise AuditError(f"op {op.index} ({op.name}) has an argument that cannot be stored: {e}") from None


def _json(arg: Any) -> str:
    """By hand: three times faster than a ``JSONEncoder`` that has to ask for every value."""
    kind = type(arg)
    if kind is Value:
        return f'{{"v":{arg.id}}}'
    if kind is int:
        return repr(arg)
    if arg is None:
        return "null"
    if kind is tuple or kind is list:
        return f"[{','.join(map(_json, arg))}]"
    if isinstance(arg, float):
        return repr(arg) if math.isfinite(arg) else f'{{"f":"{arg!r}"}}'
    if isinstance(arg, complex):
        return f'{{"c":["{arg.real!r}","{arg.imag!r}"]}}'
    if isinstance(arg, (bool, int, str)):
        return json.dumps(arg)
    raise TypeError(type(arg).__name__)


class _Decoder:
    """JSON text to arguments, with the values that it names; equal places in the source become one object."""

    def __init__(self, values: dict[int, Value]) -> None:
        self.values = values
        self.source = cache(Source)
        self.decode = json.JSONDecoder(object_hook=self.untagged).raw_decode

    def __call__(self, text: str) -> tuple[Arg, ...]:
        return tuple([_tupled(a) if type(a) is list else a for a in self.decode(text)[0]])

    def untagged(self, tag: dict[str, Any]) -> Value | complex | float:
        if "v" in tag:
            return self.values[tag["v"]]
        if "c" in tag:
            return complex(float(tag["c"][0]), float(tag["c"][1]))
        return float(tag["f"])


def _tupled(items: list[Any]) -> Arg:
    return tuple([_tupled(i) if type(i) is list else i for i in items])
