"""docs/reference/devices.md: the described devices, each figure with its source."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.devices.describe import BUILT_IN, Device, described
from reference_pages.attributes import attributes
from reference_pages.text import code, page, table

INTRODUCTION = """\
The savings model reads the figures of the device that a run was recorded on: by its name in the trace, or from
`--device FILE`. The CPU of this machine is measured once instead. A device that is not described gets the bandwidth
that its own kernels achieved. Your own files lie in `~/.config/fusion-audit/devices/` and win over these."""


def pages() -> dict[str, str]:
    keys = table(
        ("key", "type", "meaning"), ((code(a.name), code(a.annotation), a.meaning) for a in attributes(Device))
    )
    parts = [part for _, device in described(BUILT_IN) for part in _device(device)]
    return {"devices.md": page("Devices", INTRODUCTION, *parts, "## Keys of a device file", keys)}


def _device(device: Device) -> Iterator[str]:
    yield f"## {device.name}"
    rows = ((code(key), _value(getattr(device, key)), source) for key, source in device.sources.items())
    yield table(("figure", "value", "source"), rows)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item:g}" for key, item in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
