"""A large trace out of a real one: the same events again and again in time, each copy with ids of its own."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec

_IDS = (
    "correlation", "External id", "Record function id", "Python id", "Python parent id", "Ev Idx", "Sequence number",
)  # fmt: skip
"""Arguments of an event that name it, or another one: a copy's are its own."""


def replicate(source: Path, target: Path, copies: int) -> None:
    """Write the events of ``source`` (JSON, or gzip of it) ``copies`` times to ``target``, one after the other in time.

    Events without a time, such as names of processes, stand once. Memory: that of ``source`` alone.
    """
    data = source.read_bytes()
    content = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    events: list[dict[str, Any]] = content.pop("traceEvents")
    timed = [event for event in events if event.get("ts") is not None]
    begin = min(event["ts"] for event in timed)
    span = max(event["ts"] + (event.get("dur") or 0) for event in timed) - begin + 1000
    width = 1 + max(_largest(event) for event in timed)

    def encode(value: Any) -> bytes:  # with a space behind "," and ":", as Kineto and json.dump write
        return msgspec.json.format(msgspec.json.encode(value), indent=0)

    with target.open("wb") as file:
        file.write(encode(content)[:-1] + (b"," if content else b"") + b'"traceEvents":[')
        lines = [encode(event) for event in events if event.get("ts") is None]
        file.write(b",\n".join(lines))
        separator = b",\n" if lines else b""
        for number in range(copies):
            for event in timed:
                file.write(separator + encode(_moved(event, number * span, number * width)))
                separator = b",\n"
        file.write(b"]}")


def _largest(event: dict[str, Any]) -> int:
    args = event.get("args") or {}
    numbers = [event.get("id"), *(args.get(key) for key in _IDS)]
    return max((n for n in numbers if isinstance(n, int)), default=0)


def _moved(event: dict[str, Any], later: float, width: int) -> dict[str, Any]:
    if not width:
        return event
    args = event.get("args")
    moved = event | {"ts": event["ts"] + later}
    if isinstance(event.get("id"), int):
        moved["id"] = event["id"] + width
    if args:
        moved["args"] = args | {key: args[key] + width for key in _IDS if isinstance(args.get(key), int)}
    return moved
