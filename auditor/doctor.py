"""What this machine can do for audits, and what to do about each gap."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from auditor.errors import AuditError
from auditor.graph.model import DeviceProperties

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 6)
_COMPILERS = ("g++", "clang++", "c++")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True)
class Check:
    """One line of the doctor. ``missing`` is what audits need, ``optional`` what only some work needs."""

    subject: str
    state: Literal["ok", "missing", "optional"]
    finding: str
    advice: str = ""


def examine(store: str | None = None) -> Iterator[Check]:
    """Every check, in the order of a work day: interpreter, torch, devices, tools, store."""
    yield python()
    yield torch_version()
    if _torch() is not None:
        yield from devices()
        yield calibration()
    yield triton()
    yield compiler()
    yield headers()
    yield browser()
    yield rules()
    yield store_place(store)


def python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Check("python", "ok", found)
    return Check("python", "missing", found, "install Python 3.10 or newer")


def torch_version() -> Check:
    torch = _torch()
    if torch is None:
        return Check("torch", "missing", "not installed", "pip install torch")
    found = str(torch.__version__)
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
        return Check("torch", "missing", f"{found} is too old", "pip install -U 'torch>=2.6'")
    return Check("torch", "ok", found)


def devices() -> Iterator[Check]:
    """The accelerators that torch sees, and whether their figures are known."""
    import torch

    from auditor.devices.calibrate import cpu_name

    yield Check("cpu", "ok", f"{cpu_name()}, {os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        built = "CUDA" if torch.version.cuda else "ROCm" if torch.version.hip else ""
        why = (
            f"this torch is built for {built}, but no driver or device answers"
            if built
            else "torch is built for CPU only"
        )
        yield Check(
            "gpu", "optional", f"none ({why})", "audits of CPU runs and of imported GPU traces work without one"
        )
        return
    kind = "hip" if torch.version.hip else "cuda"
    for index in range(torch.cuda.device_count()):
        yield gpu(torch.cuda.get_device_name(index), kind, _properties(torch.cuda.get_device_properties(index)))


def _properties(found: Any) -> DeviceProperties:
    """What torch says of a device, as a trace would say it."""
    return DeviceProperties(
        memory_bytes=found.total_memory,
        multiprocessors=found.multi_processor_count,
        warp_size=getattr(found, "warp_size", 0),
        compute=(found.major, found.minor),
    )


def gpu(name: str, kind: str, properties: DeviceProperties) -> Check:
    from auditor.devices.describe import find_device, user_folder

    device = find_device(name, kind, properties)
    if device is not None:
        return Check("gpu", "ok", f"{name} ({kind}), described: {device.peak_gbps:g} GB/s")
    advice = (
        f"savings are estimated from the trace alone; describe it (fusion-audit devices new) in {user_folder()} "
        "or pass --device"
    )
    return Check("gpu", "optional", f"{name} ({kind}), no description", advice)


def calibration() -> Check:
    from auditor.devices.calibrate import cache_path

    if cache_path().is_file():
        return Check("calibration", "ok", f"this CPU is measured ({cache_path()})")
    return Check(
        "calibration", "optional", "this CPU is not measured yet", "nothing to do: the first audit of a CPU run does it"
    )


def triton() -> Check:
    try:
        import triton
    except Exception as error:  # a broken install raises what it likes
        return Check(
            "triton",
            "optional",
            f"not usable ({error})",
            "pip install triton (needed for fused GPU kernels; Linux only)",
        )
    return Check("triton", "ok", str(triton.__version__))


def compiler() -> Check:
    wanted = os.environ.get("CXX")
    found = shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found:
        return Check("C++ compiler", "ok", found)
    what = f"$CXX is {wanted!r}, which isn't there" if wanted else "none found"
    advice = "audits work without it; torch.compile on the CPU needs one: apt-get install g++"
    return Check("C++ compiler", "optional", what, advice)


def headers() -> Check:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.is_file():
        return Check("Python headers", "ok", str(header.parent))
    advice = "audits work without them; torch.compile on the CPU and triton need them: apt-get install python3-dev"
    return Check("Python headers", "optional", f"{header} is missing", advice)


def browser() -> Check:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found:
        return Check("chromium", "ok", found)
    return Check(
        "chromium", "optional", "none found", "reports need none; tests in a browser do: apt-get install chromium"
    )


def rules() -> Check:
    from auditor.api import rules_of
    from auditor.config import load_config

    try:
        found = rules_of(load_config())
    except AuditError as error:
        return Check("rules", "missing", str(error), "mend that, or reinstall fusion-auditor")
    return Check("rules", "ok", f"{len(found)} rules")


def store_place(place: str | None) -> Check:
    """Whether audits can be stored; makes no store."""
    from auditor.store import Store
    from auditor.store.location import locate

    found = ""
    try:
        location = locate(place)
        if location.file is None or location.file.exists():
            with Store.open(place, create=False) as store:
                found = f"{location.label}, {len(store.list_runs())} audits"
        if location.file is not None:
            _check_writable(location.file.parent)
    except AuditError as error:
        return Check("store", "missing", str(error), "name another place with --db or FUSION_AUDIT_DIR")
    return Check("store", "ok", found or f"{location.label} will be made by the first audit")


def _check_writable(folder: Path) -> None:
    """Write a nameless file there, or into the nearest folder above that exists."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise AuditError(f"{existing} can't be written ({error.strerror})") from None


def _torch() -> ModuleType | None:
    try:
        import torch
    except Exception:  # also a broken install
        return None
    return torch
