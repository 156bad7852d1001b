"""Device descriptions: one YAML file per device, each figure with its source.

The built-in files lie beside this module; a user's own in ``<user config>/fusion-audit/devices/*.yaml``
and win over them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from platformdirs import user_config_path

from auditor.devices.device import KINDS, Bandwidth, Device
from auditor.devices.file import load_device
from auditor.devices.match import contradiction, gib, is_named, is_told_by_properties
from auditor.errors import AuditError
from auditor.graph.model import DeviceProperties

__all__ = [
    "BUILT_IN", "KINDS", "Bandwidth", "Device", "described", "device_called", "find_device", "load_device",
    "unknown_device_note", "user_folder",
]  # fmt: skip

BUILT_IN = Path(__file__).parent
NOTHING_KNOWN = DeviceProperties()


def user_folder() -> Path:
    """Where users put descriptions of their own devices."""
    return user_config_path("fusion-audit") / "devices"


def find_device(name: str, kind: str, properties: DeviceProperties = NOTHING_KNOWN) -> Device | None:
    """The description of the device that a trace names, a user's own first; ``None`` for an unknown device.

    ``properties`` are what the trace says beside the name: a description that they contradict is left out (a MIG slice
    or a partition is not the device), and where the name is empty they tell the device, if only one has them. A name
    that two built-in descriptions share and nothing tells apart is unknown.
    """
    for _, device in described(user_folder()):
        if device.kind == kind and _is(device, name, properties):
            return device
    found = [device for _, device in described(BUILT_IN) if device.kind == kind and _is(device, name, properties)]
    return found[0] if len(found) == 1 else None


def _is(device: Device, name: str, properties: DeviceProperties) -> bool:
    if is_named(device, name):
        return contradiction(device, properties) is None
    return is_told_by_properties(device, name, properties)


def device_called(place: str | Path) -> Device:
    """A description by its file, or by the file's or the device's name (``h100_sxm``, ``NVIDIA L4 24GB``).

    Raises:
        AuditError: there is no such file and no such device, or the file can't be used.
    """
    path, wanted = Path(place), str(place).strip().casefold()
    if not path.exists():
        known = [*described(user_folder()), *described(BUILT_IN)]
        for stem, device in known:
            if wanted in (stem.casefold(), device.name.casefold()):
                return device
        if path.suffix.casefold() not in (".yaml", ".yml") and path.name == str(place):
            stems = [stem for stem, _ in known]
            near = [s for s in stems if wanted and s.startswith(wanted)] or difflib.get_close_matches(
                wanted, stems, 3, 0.4
            )
            hint = f"nearest: {', '.join(near)}; " if near else ""
            raise AuditError(f"no device {str(place)!r} and no file of this name; {hint}see: fusion-audit devices list")
    return load_device(path)


def described(folder: Path) -> Iterator[tuple[str, Device]]:
    """Every description in ``folder`` with its file's name, in order. Raises AuditError for one that can't be used."""
    for path in sorted(folder.glob("*.yaml")):
        try:
            changed = path.stat().st_mtime_ns
        except OSError:  # a link to nothing: reading it says so
            changed = 0
        yield path.stem, _load_cached(path, changed)


@lru_cache(maxsize=256)
def _load_cached(path: Path, mtime_ns: int) -> Device:  # noqa: ARG001 - a changed file is read again
    return load_device(path)


def unknown_device_note(name: str, kind: str, properties: DeviceProperties = NOTHING_KNOWN, achieved: str = "") -> str:
    """What to tell the user of a device that nobody described; ``achieved`` is the bandwidth that its trace shows."""
    best = f", at best {achieved}" if achieved else ""
    if not name and properties == NOTHING_KNOWN and kind not in ("", "cpu"):
        return (
            f"The trace does not say which {kind} device it ran on: savings use the bandwidth that its own kernels "
            f"reached{best}. Pass --device NAME with one of fusion-audit devices list, or describe it in one file "
            "(fusion-audit devices new) and pass --device FILE."
        )
    shown = repr(name) if name else f"this {kind} device"
    facts = _facts(properties)
    return (
        f"No description of {shown} ({', '.join([kind, *facts])}){_why(name, kind, properties)}: savings use the "
        f"bandwidth that the trace's own kernels reached{best}. Describe it in one file (fusion-audit devices new) and "
        f"pass --device FILE, or put the file in {user_folder()}."
    )


def _facts(properties: DeviceProperties) -> list[str]:
    found = []
    if properties.multiprocessors:
        found.append(f"{properties.multiprocessors} multiprocessors")
    if properties.memory_bytes:
        found.append(gib(properties.memory_bytes))
    return found


def _why(name: str, kind: str, properties: DeviceProperties) -> str:
    """Why a description that has the name is not taken: it is contradicted, or another has the name too."""
    known = [*described(user_folder()), *described(BUILT_IN)]
    named = [device for _, device in known if device.kind == kind and is_named(device, name)]
    reasons = [(device, contradiction(device, properties)) for device in named]
    fitting = [device.name for device, reason in reasons if reason is None]
    if len(fitting) > 1:
        return f", which may be {' or '.join(fitting)} (name it with --device)"
    return next((f", which has the name of {device.name} but {reason}" for device, reason in reasons if reason), "")
