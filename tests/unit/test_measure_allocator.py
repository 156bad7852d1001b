"""Freed memory is kept: told by the page faults of a process of its own, as malloc's settings are the process's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from auditor.measuring import allocator
from auditor.measuring.allocator import CHOSEN, DEFAULTS, KEEP, kept_memory

SCRIPT = """
import ctypes, resource
from auditor.measuring import kept_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    '''Of four outputs of 64 MiB, each freed before the next one.'''
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        block = libc.malloc(2**26)
        for page in range(block, block + 2**26, 4096):
            ctypes.c_char.from_address(page).value = b'x'
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * resource.getpagesize()

default = faults()
with kept_memory() as kept:
    faults()
    held = resident()
    within = faults()
    with kept_memory():
        pass
    still = faults()
print(kept, default, within, still, faults(), held - resident())
"""


@pytest.mark.skipif(allocator._glibc() is None, reason="no glibc")
@pytest.mark.parametrize(
    "chosen", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=9"}]
)
def test_fresh_outputs_cost_no_page_faults_within_the_block(chosen: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in (*CHOSEN, "GLIBC_TUNABLES")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment | chosen
    )
    kept, *figures = done.stdout.split()
    default, within, still, after, given_back = map(int, figures)
    assert default > 100  # 65,536 pages of 4 KiB, or 128 huge ones
    if chosen:
        assert kept == "False"
        assert within > default / 2
        return
    assert kept == "True"
    assert within < default / 20
    assert still < default / 20
    assert after > default / 2
    assert given_back > 2**25


def test_nothing_is_done_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    with kept_memory() as kept:
        assert kept is False


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_glibc_is_looked_for_on_linux_only(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert allocator._glibc() is None


class Libc:
    def __init__(self) -> None:
        self.said: list[tuple[int, int] | str] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.said.append((parameter, value))
        return 1

    def malloc_trim(self, _: int) -> None:
        self.said.append("trim")


def test_the_outermost_block_restores_the_defaults_also_when_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc()
    monkeypatch.setattr(allocator, "_glibc", lambda: libc)
    monkeypatch.setattr(allocator, "_chosen_by_environment", lambda: False)
    with pytest.raises(KeyboardInterrupt), kept_memory():  # noqa: PT012
        with kept_memory():
            pass
        raise KeyboardInterrupt
    assert libc.said == [*KEEP, *KEEP, *DEFAULTS, "trim"]
