"""Calibration of the machine at hand: a CPU has no data sheet that says what PyTorch reaches on it.

Measured once, in this process and in a few seconds: bandwidth by size, what a fresh output costs under the
allocator in force, the fixed cost of an op, and the arithmetic of the ops that memory traffic does not hide.
Cached per CPU model, torch version, thread count and allocator settings.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from platformdirs import user_cache_path

from auditor.devices.device import Device

VERSION = 4
"""Raise it when the meaning of a figure changes: older caches are then measured again."""

ALLOCATOR_VARIABLES = ("GLIBC_TUNABLES", "LD_PRELOAD", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def this_machine(refresh: bool = False, on_progress: Callable[[str], None] | None = None) -> Device:
    """Describe this CPU as the current process uses it (its threads, its allocator).

    Reads the cache; measures when there is none, when it is damaged, or on ``refresh``. A cache that
    cannot be written is no error, and a measurement that a busy machine disturbed is not kept
    (``sources["rough"]`` says so). ``on_progress`` gets one line before each part of the measurement.
    """
    path = cache_path()
    cached = None if refresh else _read(path)
    if cached is not None:
        return cached
    with _in_turn(path):
        cached = None if refresh else _read(path)  # somebody may have measured while we waited
        return cached or _measured(path, on_progress or (lambda _line: None))


def _measured(path: Path, progress: Callable[[str], None]) -> Device:
    from auditor.devices.measure import measure_machine
    from auditor.frames import with_room

    device = with_room(lambda: measure_machine(cpu_name(), last_level_cache(), progress))
    if "rough" in device.sources:
        progress("This machine is busy: the calibration is rough and will not be kept")
    else:
        _write(path, device)
    return device


@contextmanager
def _in_turn(path: Path) -> Iterator[None]:
    """One process measures at a time, where the system has locks: the ranks of a job would disturb each other."""
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY)  # a folder can be locked, too: no file stays behind
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def cache_path() -> Path:
    """Where the calibration for the current settings is kept."""
    facts = "\n".join(f"{name}={value}" for name, value in sorted(settings().items()))
    digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
    return user_cache_path("fusion-audit") / "devices" / f"cpu-{digest}.json"


def settings() -> dict[str, str]:
    """All that changes the figures: another value is another calibration."""
    import torch

    allocator = {k: v for k, v in os.environ.items() if k.startswith("MALLOC_") or k in ALLOCATOR_VARIABLES}
    return {
        "version": str(VERSION),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        **allocator,
    }


def cpu_name() -> str:
    """Model name of the CPU, or the architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def last_level_cache() -> int | None:
    """Bytes of the largest cache of the first core, ``None`` where the system does not tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(sizes, default=None)


def _read(path: Path) -> Device | None:
    """The cached device, or ``None`` if it is absent or not what we would write."""
    try:
        device = msgspec.json.decode(path.read_bytes(), type=Device)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return device if device.curve and device.op_ns else None


def _write(path: Path, device: Device) -> None:
    """Replace the cache in one step: a reader sees the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(device)))
        os.replace(temporary, path)
    except OSError:
        return
