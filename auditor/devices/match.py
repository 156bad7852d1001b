"""Whether what a trace says of its device is a description's device: by name, and by nothing that speaks against it."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from auditor.devices.device import Device, compute_of
from auditor.graph.model import DeviceProperties

MEMORY_SHOWN = (0.85, 1.03)
"""What a runtime shows of the memory that the data sheet names: ECC and firmware keep up to a tenth (T4: 0.91)."""

_NAMELESS = frozenset({"", "amd radeon graphics"})
"""What ROCm calls a device for which it has no marketing name."""
_BARE_ARCH = re.compile(r"(gfx[0-9a-f]{3,5})(:.*)?")


def is_named(device: Device, name: str) -> bool:
    """``name`` is one that the description lists, or its own."""
    wanted = _plain(name)
    return wanted == _plain(device.name) or any(fnmatchcase(wanted, _plain(pattern)) for pattern in device.match)


def is_told_by_properties(device: Device, name: str, properties: DeviceProperties) -> bool:
    """A trace with no name, or one that only says the architecture, and all properties of an ``unnamed`` device."""
    wanted = _plain(name)
    bare = _BARE_ARCH.fullmatch(wanted)
    if not device.unnamed or not (wanted in _NAMELESS or (bare and bare[1] == device.arch)):
        return False
    return properties.is_complete and contradiction(device, properties) is None


def contradiction(device: Device, properties: DeviceProperties) -> str | None:
    """What of ``properties`` the described device does not have, in words; ``None`` if nothing speaks against it."""
    expected = compute_of(device.arch) if device.arch else None
    if expected and properties.compute and properties.compute != expected:
        return f"compute capability {_dotted(properties.compute)} where that has {_dotted(expected)}"
    if device.warp_size and properties.warp_size not in (0, device.warp_size):
        return f"a warp size of {properties.warp_size} where that has {device.warp_size}"
    if device.multiprocessors and properties.multiprocessors not in (0, device.multiprocessors):
        return f"{properties.multiprocessors} multiprocessors where that has {device.multiprocessors}"
    if device.memory_bytes and properties.memory_bytes and not _is_memory(properties.memory_bytes, device.memory_bytes):
        return f"{gib(properties.memory_bytes)} of memory where that has {gib(device.memory_bytes)}"
    return None


def _is_memory(shown: int, whole: int) -> bool:
    least, most = MEMORY_SHOWN
    return least <= shown / whole <= most


def gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())


def _dotted(compute: tuple[int, int]) -> str:
    return f"{compute[0]}.{compute[1]}"
