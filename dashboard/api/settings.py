"""What the service was started with."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from functools import cache

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Settings:
    """``hosts`` are further names that the service answers for, as a proxy before it or a DNS entry has them."""

    host: str = "127.0.0.1"
    port: int = 8050
    hosts: tuple[str, ...] = ()
    max_upload_bytes: int = 2_000_000_000

    @property
    def only_here(self) -> bool:
        """Whether nobody but this machine can reach it: then reading needs no token."""
        return _is_loopback(self.host) and all(map(_is_loopback, self.hosts))

    def answers_for(self, host: str) -> bool:
        """Whether a request may name ``host`` (a ``Host`` header without its port).

        A page elsewhere can have its own name lead to this address (DNS rebinding), but neither an address nor our
        name.
        """
        name = host.lower().rstrip(".")
        if name in self._names():
            return True
        return not self.only_here and _is_address(name)

    def _names(self) -> set[str]:
        own = {self.host.lower(), *(name.lower() for name in self.hosts)}
        if _is_loopback(self.host):
            return own | _LOOPBACK_NAMES
        return own | _LOOPBACK_NAMES | _machine_names()


@cache
def _machine_names() -> frozenset[str]:
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
