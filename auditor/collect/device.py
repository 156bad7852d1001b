"""The device that the script runs on, and waiting for it."""

from __future__ import annotations

import platform
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity


def accelerator() -> str:
    """``cuda`` or ``xpu`` when the script has begun to use one, else ``""``.

    Only an initialised device counts: asking an idle one would create a context that the script never wanted.
    """
    if torch.cuda.is_initialized():
        return "cuda"
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_initialized():
        return "xpu"
    return ""


def autocast_dtype(kind: str) -> torch.dtype | None:
    """The dtype of the autocast that is on for devices of a kind; None where there is none, as for meta tensors."""
    available = torch.amp.is_autocast_available(kind)  # PyTorch raises where it is asked of another
    return torch.get_autocast_dtype(kind) if available and torch.is_autocast_enabled(kind) else None


def synchronize() -> None:
    """Wait until the device has finished what was launched."""
    kind = accelerator()
    if kind:
        getattr(torch, kind).synchronize()


def capturing() -> bool:
    """A CUDA graph is being captured: no synchronisation, no profiler."""
    return accelerator() == "cuda" and torch.cuda.is_current_stream_capturing()


def activities() -> list[ProfilerActivity]:
    """What the profiler records: always the CPU, and the accelerator in use."""
    found = [ProfilerActivity.CPU]
    kind = accelerator()
    if kind == "cuda":
        found.append(ProfilerActivity.CUDA)
    elif kind == "xpu":
        found.append(ProfilerActivity.XPU)
    return found


def kind_and_name() -> tuple[str, str]:
    """``("cuda" | "hip" | "xpu" | "cpu", name)`` of the device in use."""
    kind = accelerator()
    if kind == "cuda":
        return ("hip" if torch.version.hip else "cuda"), torch.cuda.get_device_name()
    if kind == "xpu":
        return "xpu", torch.xpu.get_device_name()
    return "cpu", cpu_name()


def cpu_name() -> str:
    """Model name of this machine's CPU, as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
