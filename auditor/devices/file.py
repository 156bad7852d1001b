"""Reading a device's description: one YAML file, every mistake told with file and line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from auditor.devices.device import DTYPES, KINDS, Device, compute_of
from auditor.errors import AuditError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 1 << 20
"""Nobody writes a longer description: it is another file."""

_ABOVE_ZERO = (
    "multiprocessors", "warp_size", "memory_bytes", "peak_gbps", "cache_bytes", "cache_gbps", "launch_us",
    "min_kernel_us",
)  # fmt: skip


def load_device(path: Path | str) -> Device:
    """Read one description. Raises AuditError that names the file, the line, the field and what was expected."""
    path = Path(path)
    raw, lines = _read(path)
    try:
        return _checked(msgspec.convert(raw, Device), path, lines)
    except msgspec.ValidationError as error:
        field, said = _explain(str(error))
        raise _wrong(path, lines, field, said) from None


def _read(path: Path) -> tuple[dict[Any, Any], dict[str, int]]:
    """The file's mapping, and the line of each figure (``tflops.bf16`` too)."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise AuditError(f"{path}: cannot read the device description: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise AuditError(f"{path}: the device description is not UTF-8 text.") from None
    if len(data) > MAX_BYTES:
        raise AuditError(f"{path}: more than {MAX_BYTES >> 20} MiB, so no device description.")
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise AuditError(f"{path}: expected a mapping of device figures (name, kind, peak_gbps, …).")
        lines = _lines(node, path)
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        raise AuditError(f"{path}{_line(error)}: not valid YAML: {_problem(error)}.") from None
    except RecursionError:
        raise AuditError(f"{path}: nested too deep to be a device description.") from None
    except ValueError as error:  # a date that is none, an integer of thousands of digits
        raise AuditError(f"{path}: not valid YAML: {str(error).partition(';')[0]}.") from None


def _lines(node: yaml.MappingNode, path: Path, prefix: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise AuditError(f"{path}:{line}: expected figures by name (peak_gbps: 1000), got a key of another form.")
        name = f"{prefix}{key.value}"
        if name in found:
            raise AuditError(f"{path}:{line}: {name}: given twice, first in line {found[name]}; keep one.")
        found[name] = line
        if isinstance(value, yaml.MappingNode) and not prefix:
            found |= _lines(value, path, f"{name}.")
    return found


def _checked(device: Device, path: Path, lines: dict[str, int]) -> Device:
    for field, said in _mistakes(device):
        raise _wrong(path, lines, field, said)
    return device


def _mistakes(device: Device) -> list[tuple[str, str]]:
    """Field, and what was expected of it."""
    found = [
        (field, f"expected a number above 0, got {value}")
        for field in _ABOVE_ZERO
        if (value := getattr(device, field)) is not None and not 0 < value < float("inf")
    ]
    if device.achievable is not None and not 0 < device.achievable <= 1:
        found.append(("achievable", f"expected a fraction above 0 and up to 1, got {device.achievable}"))
    for dtype, rate in device.tflops.items():
        if dtype not in DTYPES:
            found.append((f"tflops.{dtype}", f"no such dtype; expected one of {', '.join(DTYPES)}"))
        elif not 0 < rate < float("inf"):
            found.append((f"tflops.{dtype}", f"expected a number above 0, got {rate}"))
    if not device.name.strip():
        found.append(("name", "expected the device's name, got an empty text"))
    if any(not pattern.strip() for pattern in device.match):
        found.append(("match", "expected names, got an empty text"))
    if device.arch is not None and compute_of(device.arch) is None:
        found.append(("arch", f"expected a name such as sm_90 or gfx942, got {device.arch!r}"))
    if device.unnamed and None in (device.arch, device.multiprocessors, device.warp_size, device.memory_bytes):
        found.append(("unnamed", "needs arch, multiprocessors, warp_size and memory_bytes, to be told by them"))
    return found


def _wrong(path: Path, lines: dict[str, int], field: str, said: str) -> AuditError:
    line = lines.get(field) or lines.get(field.partition(".")[0])
    return AuditError(f"{path}{f':{line}' if line else ''}: {field}: {said}.")


def _explain(message: str) -> tuple[str, str]:
    """``Expected `float`, got `str` - at `$.peak_gbps``` → ``("peak_gbps", "expected float, got str")``."""
    what, _, where = message.partition(" - at `$")
    field = re.split(r"[.\[]", where.rstrip("`").lstrip("."))[0]
    if missing := re.search(r"missing required field `(\w+)`", what):
        return missing[1], "required, and missing"
    if unknown := re.search(r"contains unknown field `(.*)`", what):
        known = ", ".join(f.name for f in msgspec.structs.fields(Device))
        return unknown[1], f"no such figure; expected one of {known}"
    if field == "kind":
        return field, f"expected one of {', '.join(KINDS)}"
    return field or "file", f"{what[0].lower()}{what[1:].replace('`', '')}"


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]
