"""When ops of a graph in text form run: at a pace that the text sets, or at no time at all."""

from __future__ import annotations

from auditor.graph.model import HostCall, Kernel


class Clock:
    """A host that calls one op after the other, and a device that runs their kernels in order. Microseconds."""

    def __init__(self) -> None:
        self._call_us = self._kernel_us = 0.0
        self._host = self._device = 0.0

    def set_pace(self, call_us: float, kernel_us: float) -> None:
        """From here on a call takes ``call_us`` of the host, each of its kernels ``kernel_us`` of the device."""
        self._call_us, self._kernel_us = call_us, kernel_us

    def launch(self, name: str, kernels: int) -> tuple[tuple[Kernel, ...], HostCall | None]:
        """The kernels of the next call, and the call itself where there is a pace."""
        if not self._call_us:
            return tuple(Kernel(name, 0.0, 0.0) for _ in range(kernels)), None
        call = HostCall(self._host, self._call_us)
        self._host += self._call_us
        launched = []
        for _ in range(kernels):
            start = max(self._host, self._device)
            launched.append(Kernel(name, start, self._kernel_us))
            self._device = start + self._kernel_us
        return tuple(launched), call
