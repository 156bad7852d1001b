"""``deviceProperties`` of a trace: what the profiler's machine said of its accelerators."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from auditor.collect.repair import repair
from auditor.graph.model import DeviceProperties

LONGEST_NAME = 256
"""No runtime has room for more: ``cudaDeviceProp::name`` and ``hipDeviceProp_t::name`` are ``char[256]``."""


_AMD_KERNEL = re.compile(r"^Cijk_|rocclr|miopen|rocblas|hipblas|rocprim|rccl|ck_tile|^_?ZN2ck|aiter", re.IGNORECASE)
_AMD_OP = re.compile(r"^aten::_?miopen_|^Miopen\w+Backward|^rccl:|^hip(?:Memcpy|Memset)")
_DEVICE_OP = re.compile(
    r"^aten::_?cudnn_(?!is_acceptable)|^Cudnn\w+Backward|^nccl:|^cuda(?:Memcpy|Memset)"
    r"|^aten::\w*(?:flash_attention(?!_for_cpu)|efficient_attention)|^flash_attn::"
)
"""Ops that no CPU has. ``cudnn_is_acceptable`` and ``_use_cudnn_ctc_loss`` are questions that a CPU asks, too."""
_MEMORY_KINDS = {1: "cuda", 6: "hip", 12: "xpu"}
"""``c10::DeviceType``; PyTorch for ROCm says CUDA."""


class Device(msgspec.Struct, frozen=True):
    """One accelerator; ``name`` is ``""`` where the file has none, as ROCm without its table of names writes."""

    id: int = 0
    name: str = ""
    properties: DeviceProperties = DeviceProperties()


def decode_devices(raw: bytes | msgspec.Raw) -> list[Device]:
    """The devices of a file; what is of another form than Kineto's is unknown, never a reason to refuse the trace."""
    found = _decoded(bytes(raw))
    return [_device(item) for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def kind_by_kernels(names: Iterable[str]) -> str:
    """``hip`` where a kernel has a name that only AMD's libraries give, else ``cuda``."""
    return "hip" if any(_AMD_KERNEL.search(name) for name in names) else "cuda"


def kind_by_ops(names: Collection[str]) -> str:
    """The kind of device that these ops, ranges and runtime calls are of; ``""`` where a CPU may have all of them."""
    if any(_AMD_OP.search(name) for name in names):
        return "hip"
    return "cuda" if any(_DEVICE_OP.search(name) for name in names) else ""


def kind_by_memory(marks: Iterable[bytes | msgspec.Raw]) -> str:
    """The kind of device on which memory was taken; ``""`` for none. ``marks`` are ``args`` of ``[memory]`` events."""
    for raw in marks:
        with suppress(msgspec.DecodeError, RecursionError):
            if kind := _MEMORY_KINDS.get(_MARK.decode(raw).device_type):
                return kind
    return ""


class _Mark(msgspec.Struct):
    device_type: int = msgspec.field(name="Device Type", default=0)


_MARK = msgspec.json.Decoder(_Mark)


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
