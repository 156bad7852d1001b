"""``deviceProperties`` of a trace: what the profiler's machine said of its accelerators."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgspec

from auditor.collect.repair import repair
from auditor.graph.model import DeviceProperties

LONGEST_NAME = 256
"""No runtime has room for more: ``cudaDeviceProp::name`` and ``hipDeviceProp_t::name`` are ``char[256]``."""


class Device(msgspec.Struct, frozen=True):
    """One accelerator; ``name`` is ``""`` where the file has none, as ROCm without its table of names writes."""

    id: int = 0
    name: str = ""
    properties: DeviceProperties = DeviceProperties()


def decode_devices(raw: bytes | msgspec.Raw) -> list[Device]:
    """The devices of a file; what is of another form than Kineto's is unknown, never a reason to refuse the trace."""
    found = _decoded(bytes(raw))
    return [_device(item) for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _decoded(raw: bytes) -> Any:
    """The JSON value, after the repairs that a trace needs at times; ``None`` if it is none even then."""
    for text in (raw, repair(raw)):
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return msgspec.json.decode(text)
    return None


def _device(item: dict[str, Any]) -> Device:
    name = item.get("name")
    major, minor = _number(item, "computeMajor"), _number(item, "computeMinor")
    return Device(
        id=_number(item, "id"),
        name=name.strip()[:LONGEST_NAME] if isinstance(name, str) else "",
        properties=DeviceProperties(
            memory_bytes=_number(item, "totalGlobalMem"),
            multiprocessors=_number(item, "numSms") or _number(item, "multiProcessorCount"),
            warp_size=_number(item, "warpSize"),
            compute=(major, minor) if major else None,
        ),
    )


def _number(item: dict[str, Any], key: str) -> int:
    """A whole number above 0 and of 64 bits; 0 for anything else."""
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0
    return int(value) if 0 < value < 2**63 else 0
