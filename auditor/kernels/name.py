"""A kernel's name in two parts: the function, and what its template and parameters say of it."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_READ = 4096
"""Characters of a name that are read: the longest of real traces has 5,160, and says what it is in its first 300."""

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_RETURNED = re.compile(r"^(?:__global__ )?(?:static )?void ")
_PART = re.compile(r"(\d{1,4})")
_PARTS = 32
"""Namespaces and classes that a mangled name may nest; no real one has as many."""


class KernelName(NamedTuple):
    """Both parts in lower case. ``head``: ``at::native::reduce_kernel``; ``args``: all behind it, ``<512, 1, …``."""

    head: str
    args: str


def read_name(name: str) -> KernelName:
    """Split a name as CUDA's and ROCm's profilers write it, demangled or not."""
    text = name[:MAX_READ]
    if text.startswith("_Z"):
        return _mangled(text)
    text = _RETURNED.sub("", _ANONYMOUS.sub("", text), count=1)
    if text.startswith("std::enable_if<"):
        # The type that the function returns, spelled out: `std::enable_if<!(false), void>::type gemvx::kernel<…`
        text = text.partition(">::type ")[2] or text
    cut = min((at for at in (text.find("<"), text.find("(")) if at >= 0), default=len(text))
    text = text.lower()
    return KernelName(text[:cut], text[cut:])


def _mangled(text: str) -> KernelName:
    """``_ZN2at6native13reduce_kernelILi512E…``: the parts up to the template's ``I``, as the Itanium ABI has them."""
    at = 3 if text.startswith("_ZN") else 2
    parts: list[str] = []
    while len(parts) < _PARTS and (found := _PART.match(text, at)):
        end = found.end() + int(found[1])
        parts.append(text[found.end() : end])
        at = end
    return KernelName("::".join(parts).lower(), text[at:].lower())
