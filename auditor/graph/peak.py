"""Peak memory of a step, from its op graph alone: the same in every run of one program.

What an allocator rounds up, caches or keeps for kernels' workspaces is not in it, so that it is a lower bound of
what a device reports.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from auditor.graph.model import OpGraph, Value, owner_of
from auditor.graph.promotion import may_be_number

HOST = "cpu"


def peak_bytes(graph: OpGraph) -> int:
    """Largest sum of the bytes of tensors that are alive at one op, in bytes, on the device with most of them.

    A storage lives from the op that makes it to the last op that reads or writes it. One that no op makes (weights,
    the batch) is held all the time, and one that escapes is held to the end. Views and versions written in place are
    part of their storage, which counts once. Host tensors count only where nothing lies on another device. Tensors of
    Python numbers don't count: each call makes one, where the last one's memory may or may not be free again.
    """
    held: dict[tuple[str, int], _Held] = {}
    end = len(graph.ops)
    for value in graph.values:
        owner = value if value.base is None else owner_of(value)
        if owner.producer is None and may_be_number(owner.dtype, owner.shape, owner.device):
            continue
        key = (owner.device, owner.storage)
        storage = held.get(key)
        if storage is None:
            storage = held[key] = _Held(end)
        storage.hold(value, owner, end)
    growth: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (device, _), storage in held.items():
        growth[device][storage.first] += storage.nbytes
        growth[device][storage.last + 1] -= storage.nbytes
    peaks = {device: _highest(changes) for device, changes in growth.items()}
    return max([peak for device, peak in peaks.items() if device != HOST] or peaks.values(), default=0)


class _Held:
    """A storage: index of the first and of the last op at which it is held, and its bytes."""

    __slots__ = ("first", "last", "nbytes")

    def __init__(self, end: int) -> None:
        self.first, self.last, self.nbytes = end, -1, 0

    def hold(self, value: Value, owner: Value, end: int) -> None:
        """Take in what ``value`` says of it; ``end`` is behind the last op."""
        made = value.producer
        if value is owner:
            self.first = min(self.first, made.index if made else 0)
        if value.escapes or (made is None and value is owner):
            self.last = end
        if made is not None and made.index > self.last:
            self.last = made.index
        for reader in value.consumers:
            if reader.index > self.last:
                self.last = reader.index
        self.nbytes = max(self.nbytes, owner.nbytes)


def _highest(changes: dict[int, int]) -> int:
    return max(accumulate(changes[at] for at in sorted(changes)), default=0)
