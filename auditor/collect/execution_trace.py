"""PyTorch execution traces (``ExecutionTraceObserver``): which op read and wrote which tensor.

Forms 1.0.x (flat fields: ``parent``, ``input_shapes``) and 1.1.x (``ctrl_deps``, ``inputs.values``, ``attrs``).
Format: https://github.com/pytorch/pytorch/blob/main/torch/csrc/profiler/standalone/execution_trace_observer.cpp
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from auditor.collect.file_kind import described
from auditor.collect.tracefile import Reading, decode_trace, read_trace_bytes
from auditor.errors import AuditError

_NO_NODES = "no nodes in it, so not an execution trace; give ExecutionTraceObserver's file"


class _Side(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] = []


class _Attr(msgspec.Struct):
    name: str
    value: int | float | str | bool | None = None


class _FileNode(msgspec.Struct):
    id: int
    name: str = ""
    ctrl_deps: int | None = None
    inputs: _Side | list[Any] = []
    outputs: _Side | list[Any] = []
    attrs: list[_Attr] = []
    parent: int | None = None
    rf_id: int = 0
    seq_id: int = -1
    tid: int = 0
    fw_tid: int = 0
    op_schema: str = ""
    input_shapes: list[Any] = []
    input_types: list[str] = []
    output_shapes: list[Any] = []
    output_types: list[str] = []


class _File(msgspec.Struct):
    nodes: list[_FileNode] | None = None
    schema: str = ""


@dataclass(slots=True)
class Side:
    """Inputs or outputs of a node, in schema order. A tensor is
    ``[tensor id, storage id, offset, numel, itemsize, device]``; offset and numel in elements.
    """

    values: list[Any]
    shapes: list[Any]
    types: list[str]
    strides: list[Any]


@dataclass(slots=True)
class Node:
    """One op, annotation or thread. ``sequence`` is the autograd sequence number, -1 where there is none."""

    id: int
    name: str
    parent: int
    inputs: Side
    outputs: Side
    schema: str = ""
    rf_id: int = 0
    sequence: int = -1
    thread: int = 0
    forward_thread: int = 0
    kernel_backend: str = ""


@dataclass(slots=True)
class ExecutionTrace:
    """Nodes by id, in order of their start. ``children`` maps a node's id to its children, in the same order."""

    path: Path
    nodes: dict[int, Node] = field(default_factory=dict)
    children: dict[int, list[Node]] = field(default_factory=dict)
    roots: list[Node] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be read, a sentence each."""
    partial: bool = False
    """The file is cut off or damaged, and what was whole was taken."""

    def hang(self) -> None:
        """Set ``children`` and ``roots`` by the parents of ``nodes``; a node that is its own parent is a root.

        Raises:
            AuditError: a node is its own ancestor.
        """
        self.children, self.roots = {}, []
        for node in self.nodes.values():
            if node.parent == node.id or node.parent not in self.nodes:
                self.roots.append(node)
            else:
                self.children.setdefault(node.parent, []).append(node)
        self._refuse_rings()

    def _refuse_rings(self) -> None:
        """What no root leads to would be left out, and nobody told."""
        reached: set[int] = set()
        todo = list(self.roots)
        while todo:
            node = todo.pop()
            reached.add(node.id)
            todo += self.children.get(node.id, ())
        lost = next((node for node in self.nodes.values() if node.id not in reached), None)
        if lost is not None:
            raise AuditError(
                f"{self.path}: node {lost.id} ({lost.name[:80]}) is its own ancestor; record the execution trace again."
            )


def load_execution_trace(path: str | Path, reading: Reading | None = None) -> ExecutionTrace:
    """Read an execution trace, ``.json`` or ``.json.gz``.

    Raises:
        AuditError: the file cannot be read, is not JSON, is not an execution trace, or its nodes' parents form a ring.
    """
    path, reading = Path(path), reading or Reading()
    data = read_trace_bytes(path, reading)
    try:
        file = decode_trace(data, _File, path, reading, nonfinite_as_text=True)
    except msgspec.ValidationError as error:
        raise AuditError(
            f"{path}: not an execution trace of a known form ({error}); give ExecutionTraceObserver's file."
        ) from None
    if file.nodes is None:
        raise AuditError(f"{path}: {described(data) or _NO_NODES}.")
    trace = ExecutionTrace(path, notes=reading.notes, partial=reading.partial)
    for raw in sorted(file.nodes, key=lambda n: n.id):
        trace.nodes.setdefault(raw.id, _node(raw))
    if repeated := len(file.nodes) - len(trace.nodes):
        trace.notes.append(f"{repeated:,} nodes of the execution trace have the id of another one and were left out.")
    if reading.partial:
        trace.notes.append(f"Only a part of the execution trace is there: {len(trace.nodes):,} whole nodes were saved.")
    trace.hang()
    return trace


def _node(raw: _FileNode) -> Node:
    attrs = {attr.name: attr.value for attr in raw.attrs}
    parent = raw.ctrl_deps if raw.ctrl_deps is not None else raw.parent
    return Node(
        raw.id, raw.name, raw.id if parent is None else parent,
        _side(raw.inputs, raw.input_shapes, raw.input_types),
        _side(raw.outputs, raw.output_shapes, raw.output_types),
        schema=str(attrs.get("op_schema") or raw.op_schema),
        rf_id=_whole(attrs.get("rf_id"), raw.rf_id),
        sequence=_whole(attrs.get("seq_id"), raw.seq_id),
        thread=_whole(attrs.get("tid"), raw.tid),
        forward_thread=_whole(attrs.get("fw_tid"), raw.fw_tid),
        kernel_backend=str(attrs.get("kernel_backend") or ""),
    )  # fmt: skip


def _side(side: _Side | list[Any], shapes: list[Any], types: list[str]) -> Side:
    if isinstance(side, list):
        return Side(side, shapes, types, [])
    return Side(side.values, side.shapes, side.types, side.strides)


def _whole(value: object, default: int) -> int:
    """``value`` as a whole number of 64 bits."""
    try:
        number = int(value) if isinstance(value, int | float | str) else default
    except (ValueError, OverflowError):
        return default
    return number if -(2**63) <= number < 2**63 else default
