"""The gates: each looks at the facts of one kernel at one width and target, and says in a sentence what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from fused_replacements.gates.accesses import Access
from fused_replacements.gates.facts import Facts
from fused_replacements.gates.targets import Target

ALIGNED_ELEMENTS: Final = 16
"""Triton knows of a stride or width that it is divisible by 16 (elements), or nothing."""


@dataclass(frozen=True)
class Verdict:
    gate: str
    failed: bool
    text: str
    """What was seen, whether or not it failed."""


def judge(facts: Facts, width: int, target: Target) -> list[Verdict]:
    """The verdict of every gate on a kernel for rows of ``width`` elements. Of one that doesn't compile: just that."""
    if facts.error is not None:
        return [Verdict("compiles", True, facts.error)]
    return [Verdict("compiles", False, "compiled"), *(gate(facts, width, target) for gate in _GATES)]


def failures(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.failed]


def bytes_moved(facts: Facts, width: int, target: Target) -> Verdict:
    """Each input is loaded once, each output stored once.

    The tiles of all loads together must hold the ``loads`` of the case: not less, and not more than what padding
    rows to the next power of two adds, where lanes beyond the width are masked off. A tile counts each element once,
    though a tensor that is smaller than the program has threads is loaded by several of them: the same address, so one
    transaction. That the machine code does as the tiles say is looked at a thread at a time, and there such copies
    count: its instructions may not move more than the layouts of the tiles give each thread.
    """
    texts, failed = [], False
    for direction, expected in (("load", facts.expected.loads), ("store", facts.expected.stores)):
        own = [access for access in facts.accesses if access.direction == direction]
        seen = sum(access.bytes for access in own)
        most = None if expected is None else expected * _padded(width) // width
        if expected is not None and most is not None and not expected <= seen <= most:
            failed = True
            said = f"{expected:,}" if most == expected else f"{expected:,} to {most:,}"
            texts.append(f"{direction}s {seen:,} bytes a program ({_by_argument(own)}); the case says {said}")
        elif excess := _machine_excess(facts, direction, own):
            failed = True
            texts.append(excess)
        else:
            texts.append(f"{direction}s {seen:,} bytes a program" + (", not judged" if expected is None else ""))
    return Verdict("bytes", failed, "; ".join(texts))


def _padded(width: int) -> int:
    return 1 << max(0, width - 1).bit_length()


def _by_argument(own: list[Access]) -> str:
    counts = Counter((access.argument, access.bytes) for access in own)
    return ", ".join(f"{name} {f'{times} × ' if times > 1 else ''}{size:,}" for (name, size), times in counts.items())


def _machine_excess(facts: Facts, direction: str, own: list[Access]) -> str | None:
    moved = sum(facts.machine.loads if direction == "load" else facts.machine.stores)
    shares = [access.thread_bytes for access in own]
    demanded = facts.expected.loads if direction == "load" else facts.expected.stores
    if demanded is None or None in shares or moved <= (most := sum(share or 0 for share in shares)):
        return None
    return f"the machine code {direction}s {moved} bytes a thread; its tiles have {most}"


def access_width(facts: Facts, width: int, target: Target) -> Verdict:
    """16 bytes at a time where rows are aligned and a thread has as much.

    Demanded where the width is divisible by 16 elements, which is what Triton knows of strides. A thread whose share of
    a tile is less (a scalar, a short row) takes its share at once. Judged by the number of instructions: more of them
    than the widest would be means that some are narrower.
    """
    threads = facts.expected.warps * target.warp_size
    texts, failed = [], False
    for direction, sizes in (("load", facts.machine.loads), ("store", facts.machine.stores)):
        own = [access for access in facts.accesses if access.direction == direction]
        texts.append(f"{direction}s of {_listed(sizes)} bytes")
        if width % ALIGNED_ELEMENTS == 0 and (least := _fewest(own, threads, facts.expected.narrow)) is not None:
            if len(sizes) > least:
                failed = True
                texts[-1] += f": {len(sizes)} instructions, {least} would do"
        else:
            texts[-1] += ", not judged"
    return Verdict("width", failed, "; ".join(texts))


def _listed(sizes: list[int]) -> str:
    return " and ".join(f"{size}" for size in sorted(set(sizes), reverse=True)) or "no"


def _fewest(own: list[Access], threads: int, narrow: frozenset[str]) -> int | None:
    """Instructions of the widest kind that ``own`` need, or None where a layout is not understood."""
    count = 0
    for access in own:
        if access.thread_bytes is None:
            return None
        widest = access.element_bytes if access.argument in narrow else access.widest(threads)
        count += -(-access.thread_bytes // widest)
    return count


def spills(facts: Facts, width: int, target: Target) -> Verdict:
    """What a thread holds fits in registers: no local memory, no scratch."""
    usage = facts.usage
    if usage.stack_bytes or usage.spilled_registers:
        registers = f", {usage.spilled_registers} registers spilled" if usage.spilled_registers else ""
        return Verdict("spills", True, f"{usage.stack_bytes} bytes of local memory a thread{registers}")
    return Verdict("spills", False, "none")


def fp64(facts: Facts, width: int, target: Target) -> Verdict:
    """No arithmetic in fp64: a GPU does 2 to 64 times less of it, and a Python float as an argument brings it in."""
    seen = sorted(set(facts.machine.fp64))
    return Verdict("fp64", bool(seen), ", ".join(seen) or "none")


def offsets(facts: Facts, width: int, target: Target) -> Verdict:
    """Row offsets are computed in 64 bits: see ``gates.offsets``."""
    return Verdict("offsets", bool(facts.narrow_offsets), "; ".join(facts.narrow_offsets) or "64 bits")


def tensor_cores(facts: Facts, width: int, target: Target) -> Verdict:
    """A kernel that multiplies matrices does so with matrix instructions."""
    count = facts.machine.matrix
    missing = facts.expected.tensor_cores and not count
    return Verdict("tensor cores", missing, f"{count or 'no'} matrix instructions")


Gate = Callable[[Facts, int, Target], Verdict]
GateName = Literal["compiles", "bytes", "width", "spills", "fp64", "offsets", "tensor cores"]
_GATES: Final[tuple[Gate, ...]] = (bytes_moved, access_width, spills, fp64, offsets, tensor_cores)
