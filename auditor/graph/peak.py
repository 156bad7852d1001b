"""Peak memory of a step, from its op graph alone: the same in every run of one program.

What an allocator rounds up, caches or keeps for kernels' workspaces is not in it, so that it is a lower bound of
what a device reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate

from auditor.graph.model import OpGraph, Value, owner_of

HOST = "cpu"


def peak_bytes(graph: OpGraph) -> int:
    """Largest sum of the bytes of tensors that are alive at one op, in bytes, on the device with most of them.

    A storage lives from the op that makes it to the last op that reads or writes it. One that no op makes (weights,
    the batch) is held all the time, and one that escapes is held to the end. Views and versions written in place are
    part of their storage, which counts once. Host tensors count only where nothing lies on another device.
    """
    storages: dict[tuple[str, int], list[Value]] = defaultdict(list)
    for value in graph.values:
        owner = owner_of(value)
        storages[(owner.device, owner.storage)].append(value)
    growth: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (device, _), values in storages.items():
        first, last = _lifetime(values, len(graph.ops))
        nbytes = max(owner_of(value).nbytes for value in values)
        growth[device][first] += nbytes
        growth[device][last + 1] -= nbytes
    peaks = {device: _highest(changes) for device, changes in growth.items()}
    return max([peak for device, peak in peaks.items() if device != HOST] or peaks.values(), default=0)


def _lifetime(values: Iterable[Value], ops: int) -> tuple[int, int]:
    """Index of the first and of the last op at which a storage of these values is held."""
    first, last = ops, -1
    for value in values:
        if value.base is None:
            first = min(first, value.producer.index if value.producer else 0)
        if value.escapes or (value.base is None and value.producer is None):
            last = ops
        used = [op.index for op in value.consumers]
        last = max(last, *used, value.producer.index if value.producer else -1)
    return first, last


def _highest(changes: dict[int, int]) -> int:
    return max(accumulate(changes[at] for at in sorted(changes)), default=0)
