"""Which implementation of an op runs where: Triton on a GPU, a compiled kernel on a CPU, else the reference.

On a CPU the path can be chosen, by ``FUSED_REPLACEMENTS_CPU`` or, for a block of code, by ``cpu_path``:

* ``compiled`` (the default): a kernel that the PyTorch compiler built from the reference, cached on disk;
* ``reference``: the reference itself, op by op;
* ``triton``: the Triton kernel in Triton's interpreter. Slow; for tests. Needs ``TRITON_INTERPRET=1`` at import.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, get_args

CpuPath = Literal["compiled", "reference", "triton"]
HAVE_TRITON: Final = importlib.util.find_spec("triton") is not None
"""Triton has no build for macOS and Windows; there the reference and the compiled path are all there is."""


class Unfused(RuntimeWarning):
    """An op runs its reference, unfused, and why."""


def _from_environment() -> CpuPath:
    name = os.environ.get("FUSED_REPLACEMENTS_CPU", "compiled")
    for path in get_args(CpuPath):
        if name == path:
            return path  # type: ignore[no-any-return]
    raise ValueError(f"FUSED_REPLACEMENTS_CPU is {name!r}; it may be {', '.join(get_args(CpuPath))}")


class Chosen:
    """The path that ops take on a CPU. One mutable place, read at every call."""

    cpu: CpuPath = _from_environment()


@contextmanager
def cpu_path(path: CpuPath) -> Iterator[None]:
    """Every op that runs on a CPU inside this block takes ``path``."""
    if path not in get_args(CpuPath):
        raise ValueError(f"{path!r} is no path of a CPU; there are {', '.join(get_args(CpuPath))}")
    before, Chosen.cpu = Chosen.cpu, path
    try:
        yield
    finally:
        Chosen.cpu = before


_said: set[tuple[str, str]] = set()
_heard: list[list[str]] = []


@contextmanager
def unfused_reasons() -> Iterator[list[str]]:
    """Collects ``op: reason`` for each call inside the block that runs its reference, warned of before or not."""
    reasons: list[str] = []
    _heard.append(reasons)
    try:
        yield reasons
    finally:
        _heard.remove(reasons)


def note_unfused(op: str, reason: str) -> None:
    """Tell those who collect reasons that ``op`` runs its reference."""
    for reasons in _heard:
        reasons.append(f"{op}: {reason}")


def say_unfused(op: str, reason: str) -> None:
    """Warn, once for each op and reason, that ``op`` runs its reference."""
    note_unfused(op, reason)
    if (op, reason) not in _said:
        _said.add((op, reason))
        warnings.warn(f"{op} runs unfused, as its reference: {reason}", Unfused, stacklevel=4)


def warn_provider(where: str, reason: str) -> None:
    """Warn that an installed package offers an implementation that can't be used."""
    warnings.warn(f"the provider {where} of fused replacements is left out: {reason}", RuntimeWarning, stacklevel=4)
