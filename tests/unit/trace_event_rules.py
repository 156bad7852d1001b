"""The rules of the Chrome Trace Event Format, as far as a file of complete events, flows and metadata is bound by them.

Source: "Trace Event Format" (Google), the sections on complete, flow and metadata events, and what Perfetto's importer
of JSON traces reports as an error: slices of one track have to nest, and a flow needs a slice to start and to end in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import Any

METADATA = {
    "process_name": ("name", str), "thread_name": ("name", str), "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}  # fmt: skip
NANOSECOND = 0.001
"""Half of the last digit that is written, twice: an end is the sum of two rounded numbers."""


def broken_rules(trace: Any) -> list[str]:
    """What is wrong with a decoded trace file, a sentence each; nothing where it keeps every rule."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["it is no object with a list of traceEvents"]
    wrong = [] if trace.get("displayTimeUnit", "ms") in ("ms", "ns") else ["displayTimeUnit is neither ms nor ns"]
    tracks: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    named: set[tuple[int, int]] = set()
    flows: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for i, event in enumerate(trace["traceEvents"]):
        wrong += [f"event {i} ({event.get('name')!r}): {reason}" for reason in _fields(event)]
        if event.get("ph") == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["dur"], event["name"]))
        elif event.get("ph") in ("s", "f"):
            flows[event.get("id")].append(event)
        elif event.get("name") == "thread_name":
            if (event["pid"], event["tid"]) in named:
                wrong.append(f"track {event['pid']}/{event['tid']} is named twice")
            named.add((event["pid"], event["tid"]))
    wrong += [f"track {pid}/{tid} has no name" for pid, tid in tracks if (pid, tid) not in named]
    for track, slices in tracks.items():
        wrong += [f"track {track[0]}/{track[1]}: {reason}" for reason in _nesting(slices)]
    starts = {track: sorted((ts, ts + dur) for ts, dur, _ in slices) for track, slices in tracks.items()}
    for flow, ends in flows.items():
        wrong += [f"flow {flow}: {reason}" for reason in _flow(ends, starts)]
    return wrong


def _fields(event: dict[str, Any]) -> list[str]:
    wrong = []
    if not isinstance(event.get("name"), str) or not event["name"]:
        wrong.append("name is no text")
    wrong += [f"{key} is no whole number" for key in ("pid", "tid") if type(event.get(key)) is not int]
    if "args" in event and not isinstance(event["args"], dict):
        wrong.append("args is no object")
    kind = event.get("ph")
    if kind == "M":
        key, type_ = METADATA.get(event["name"], ("", object))
        if not key or not isinstance(event.get("args", {}).get(key), type_):
            wrong.append("is no metadata that viewers know")
        return wrong
    if kind not in ("X", "s", "f"):
        return [*wrong, f"ph {kind!r} is not expected here"]
    if not isinstance(event.get("cat"), str):
        wrong.append("cat is no text")
    times = ("ts", "dur") if kind == "X" else ("ts",)
    for key in times:
        value = event.get(key)
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            wrong.append(f"{key} is {value!r}")
    if kind != "X" and "id" not in event:
        wrong.append("a flow needs an id")
    if kind == "f" and event.get("bp") != "e":
        wrong.append("without bp e a flow ends at the next slice, not in this one")
    return wrong


def _nesting(slices: list[tuple[float, float, str]]) -> list[str]:
    """In the order of the file: viewers take the first of two slices that begin together for the outer one."""
    wrong, open_ = [], list[tuple[float, str]]()
    before = -math.inf
    for ts, dur, name in slices:
        if ts < before:
            wrong.append(f"{name!r} stands behind a later slice")
        before = ts
        while open_ and open_[-1][0] <= ts + NANOSECOND:
            open_.pop()
        if open_ and ts + dur > open_[-1][0] + NANOSECOND:
            wrong.append(f"{name!r} reaches out of {open_[-1][1]!r}")
        open_.append((ts + dur, name))
    return wrong


def _flow(ends: list[dict[str, Any]], slices: dict[tuple[int, int], list[tuple[float, float]]]) -> list[str]:
    if [end["ph"] for end in ends] != ["s", "f"]:
        return ["is no start and an end"]
    start, end = ends
    wrong = [] if start["ts"] <= end["ts"] else ["ends before it starts"]
    for event in ends:
        held = slices.get((event["pid"], event["tid"]), [])
        at = bisect_right(held, (event["ts"], math.inf)) - 1
        if at < 0 or held[at][1] + NANOSECOND < event["ts"]:
            wrong.append(f"its {event['ph']} is in no slice")
    return wrong
