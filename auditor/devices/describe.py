"""Device descriptions: one YAML file per device, each figure with its source.

The built-in files lie beside this module; a user's own in ``<user config>/fusion-audit/devices/*.yaml``
and win over them. Bandwidths in GB/s (1e9 bytes per second), times in microseconds, sizes in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml
from platformdirs import user_config_path

from auditor.errors import AuditError

BUILT_IN = Path(__file__).parent
KINDS = ("cuda", "hip", "xpu", "cpu")


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """What kernels that move ``bytes`` in all reached on a calibrated machine."""

    bytes: int
    gbps: float
    """Reading and writing memory that exists."""
    fresh_ns_per_kb: float = 0.0
    """Extra time for each 1,024 bytes of a result that was just allocated: page faults, under the default malloc."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device. ``None`` where a figure is not known: the model then falls back on the trace itself."""

    name: str
    kind: Literal["cuda", "hip", "xpu", "cpu"]
    match: tuple[str, ...] = ()
    """Glob patterns, case ignored, for the name in a trace's ``deviceProperties``."""
    peak_gbps: float | None = None
    """Memory bandwidth of the data sheet; on a CPU the best that was measured."""
    achievable: float | None = None
    """Fraction of ``peak_gbps`` that a good streaming kernel reaches."""
    cache_bytes: int | None = None
    """Last-level cache, or what one process gets of it."""
    cache_gbps: float | None = None
    launch_us: float | None = None
    """Host time of one launch, the framework's own work left out; on a CPU the whole fixed cost of an op."""
    min_kernel_us: float | None = None
    """Duration of a kernel that does next to nothing."""
    tflops: dict[str, float] = {}
    """Dense peak rate by dtype, in TFLOP/s."""
    sources: dict[str, str] = {}
    """Figure -> where it is from."""
    curve: tuple[Bandwidth, ...] = ()
    """Measured bandwidth by size, ascending (calibrated devices only)."""
    op_ns: dict[str, float] = {}
    """Op (``aten.gelu:tanh``) -> arithmetic of one element inside a fused kernel, in ns of the whole device.

    ``cheap`` is that of any other elementwise op, ``cast`` of rounding to 16 bits."""
    chained: float = 1.0
    """How many times their separate cost three dependent library calls (exp, log1p, tanh) take in one loop."""
    overlap: float | None = None
    """Share of the lesser of arithmetic and memory time that hides behind the greater: 1 is the perfect roofline."""

    @property
    def achievable_gbps(self) -> float | None:
        """Memory bandwidth that a good kernel reaches, ``None`` if unknown."""
        return None if self.peak_gbps is None else self.peak_gbps * (self.achievable or 1.0)


def user_folder() -> Path:
    """Where users put descriptions of their own devices."""
    return user_config_path("fusion-audit") / "devices"


def find_device(name: str, kind: str) -> Device | None:
    """The description whose patterns match ``name``, a user's own first; ``None`` for an unknown device."""
    wanted = name.strip().casefold()
    for device in (*described(user_folder()), *described(BUILT_IN)):
        if device.kind == kind and any(fnmatchcase(wanted, pattern.casefold()) for pattern in names_of(device)):
            return device
    return None


def names_of(device: Device) -> tuple[str, ...]:
    return (*device.match, device.name)


def described(folder: Path) -> Iterator[Device]:
    """Every description in ``folder``, by file name. Raises AuditError for a file that cannot be used."""
    for path in sorted(folder.glob("*.yaml")):
        yield _load_cached(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _load_cached(path: Path, mtime_ns: int) -> Device:  # noqa: ARG001 - a changed file is read again
    return load_device(path)


def unknown_device_note(name: str, kind: str) -> str:
    """What to tell the user of a device that nobody described."""
    shown = name or f"this {kind} device"
    return (
        f"No description of {shown!r} ({kind}): savings use the bandwidth that the trace's own kernels reached. "
        f"Describe it in one file (name, kind, peak_gbps) and pass --device FILE, or put the file in {user_folder()}."
    )


def load_device(path: Path | str) -> Device:
    """Read one description. Raises AuditError that names the file, the field and what was expected."""
    path = Path(path)
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AuditError(f"{path}: cannot read the device description: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise AuditError(f"{path}: the device description is not UTF-8 text.") from error
    except yaml.YAMLError as error:
        raise AuditError(f"{path}{_line(error)}: not valid YAML: {_problem(error)}.") from error
    if not isinstance(raw, dict):
        raise AuditError(f"{path}: expected a mapping of device figures (name, kind, peak_gbps, …).")
    return _checked(path, _convert(path, raw))


def _convert(path: Path, raw: dict[Any, Any]) -> Device:
    try:
        return msgspec.convert(raw, Device)
    except msgspec.ValidationError as error:
        raise AuditError(f"{path}: {_explain(str(error))}.") from error


def _explain(message: str) -> str:
    """``Expected `float`, got `str` - at `$.peak_gbps``` → ``peak_gbps: expected float, got str``."""
    what, _, where = message.partition(" - at `$")
    field = where.rstrip("`").lstrip(".")
    if missing := re.search(r"missing required field `(\w+)`", what):
        return f"{missing[1]}: required, and missing"
    if unknown := re.search(r"contains unknown field `(\w+)`", what):
        known = ", ".join(f.name for f in msgspec.structs.fields(Device))
        return f"{unknown[1]}: no such figure; expected one of {known}"
    if field == "kind":
        return f"kind: expected one of {', '.join(KINDS)}"
    return f"{field or 'file'}: {what[0].lower()}{what[1:].replace('`', '')}"


def _checked(path: Path, device: Device) -> Device:
    for field in ("peak_gbps", "cache_bytes", "cache_gbps", "launch_us", "min_kernel_us"):
        value = getattr(device, field)
        if value is not None and not 0 < value < float("inf"):
            raise AuditError(f"{path}: {field}: expected a number above 0, got {value}.")
    if device.achievable is not None and not 0 < device.achievable <= 1:
        raise AuditError(f"{path}: achievable: expected a fraction above 0 and up to 1, got {device.achievable}.")
    for dtype, rate in device.tflops.items():
        if not 0 < rate < float("inf"):
            raise AuditError(f"{path}: tflops.{dtype}: expected a number above 0, got {rate}.")
    if not device.name.strip():
        raise AuditError(f"{path}: name: expected the device's name, got an empty text.")
    return device


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]
