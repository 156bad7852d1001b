"""Making the two files of a graph pass hold the step and nothing else.

The first step of a run is held open until it is known where it ended; what came later is cut off. And the
observer writes a node when its op *ends*: an op of the script that is still open when recording stops
(``with record_function("train"): …``) leaves its children without a parent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

END = "fa.end"
STEP = "fa.step"
_HOST = frozenset({"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function", "xpu_runtime"})


class _Node(msgspec.Struct):
    id: int
    name: str
    ctrl_deps: int


class _Nodes(msgspec.Struct):
    nodes: list[_Node]


def execution_trace(path: Path, cut: int | None) -> None:
    """Drop the nodes after the ``cut``-th end mark, and give orphans to the step's own node."""
    raw = path.read_bytes()
    nodes = msgspec.json.decode(raw, type=_Nodes).nodes
    known = {node.id for node in nodes}
    orphans = any(node.ctrl_deps not in known for node in nodes)
    if cut is None and not orphans:
        return
    document: dict[str, Any] = msgspec.json.decode(raw)
    document["nodes"] = _adopt(_before(document["nodes"], cut))
    path.write_bytes(msgspec.json.encode(document))


def _before(nodes: list[dict[str, Any]], cut: int | None) -> list[dict[str, Any]]:
    ends = sorted(node["id"] for node in nodes if node["name"] == END)
    if cut is None or cut > len(ends):
        return nodes
    return [node for node in nodes if node["id"] < ends[cut - 1] or node["name"] == STEP]


def _adopt(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {node["id"] for node in nodes}
    step = next((node["id"] for node in nodes if node["name"] == STEP), None)
    for node in nodes:
        if node["ctrl_deps"] not in known and step is not None and node["id"] > step:
            node["ctrl_deps"] = step
    return nodes


def kineto(path: Path, cut: int) -> None:
    """Drop what the host did after the ``cut``-th end mark, and the kernels that it launched."""
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    events = document["traceEvents"]
    ends = sorted(event["ts"] for event in events if event.get("name") == END and event.get("ph") == "X")
    if cut > len(ends):
        return
    document["traceEvents"] = _until(events, ends[cut - 1])
    path.write_bytes(msgspec.json.encode(document))


def _until(events: list[dict[str, Any]], end: float) -> list[dict[str, Any]]:
    late = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") in _HOST and event["ts"] >= end and "correlation" in event.get("args", {})
    }
    kept = []
    for event in events:
        if _is_late(event, end, late):
            continue
        if event.get("name") == STEP and event.get("ph") == "X":
            event["dur"] = min(event["dur"], end - event["ts"])
        kept.append(event)
    return kept


def _is_late(event: dict[str, Any], end: float, launched_late: set[int]) -> bool:
    kind = event.get("ph")
    if kind == "X" and event.get("cat") not in _HOST:  # a kernel runs when it runs: its launch decides
        return event.get("args", {}).get("correlation") in launched_late
    return kind in ("X", "s", "f", "t") and bool(event["ts"] >= end)
