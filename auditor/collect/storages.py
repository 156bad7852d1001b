"""Versions of tensors by storage: who wrote last what a read sees.

Tensor ids do not do: a tensor saved for backward comes back under a new id. Storage ids are reused after a free, so
each fresh allocation opens a new *generation* of its storage id.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from auditor.collect.arguments import TensorRef
from auditor.graph.model import OpGraph, Value
from auditor.graph.promotion import may_be_number

Geometry = tuple[int, str, tuple[int, ...], tuple[int, ...]]


def _geometry(ref: TensorRef) -> Geometry:
    return (ref.offset, ref.dtype, ref.shape, ref.strides)


@dataclass(slots=True)
class _Version:
    value: Value
    region: tuple[int, int]
    tensor: int
    geometry: Geometry


@dataclass(slots=True)
class _Generation:
    """What one allocation holds now. ``size`` in bytes, 0 where the allocation was not seen."""

    storage: int
    size: int = 0
    current: list[_Version] = field(default_factory=list)


class Storages:
    """Finds the value behind each tensor that an op reads, and records what it writes."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._generations: dict[tuple[int, str], _Generation] = {}
        self._count = 0

    def read(self, ref: TensorRef, *, new_ids: bool = False) -> Value:
        """The value that ``ref`` sees. ``new_ids``: saved tensors come back under other ids here (backward)."""
        generation = self._generations.get((ref.storage, ref.device))
        if generation is None or self._is_another_allocation(generation, ref, new_ids):
            generation = self._open(ref)
        geometry = _geometry(ref)
        same = [v for v in generation.current if v.geometry == geometry]
        if same:
            return next((v for v in same if v.tensor == ref.tensor), same[0]).value
        return self._register(generation, ref, self._written_around(generation, ref))

    def fresh(self, ref: TensorRef) -> Value:
        """An output in memory of its own."""
        generation = self._open(ref)
        generation.size = ref.region[1]
        return self._register(generation, ref, None)

    def view(self, ref: TensorRef, base: Value) -> Value:
        """An output that shares the storage of ``base`` and writes nothing."""
        generation = self._generations.get((ref.storage, ref.device)) or self._open(ref)
        return self._register(generation, ref, base)

    def overwrite(self, old: Value, ref: TensorRef) -> tuple[Value, ...]:
        """New version of ``old`` after an in-place write. Where that is only a part of a larger value: the part, a
        view of the new version of the whole, and that whole.
        """
        generation = self._generations.get((ref.storage, ref.device)) or self._open(ref)
        root = _root(old)
        first, last = ref.region
        generation.current = [v for v in generation.current if v.region[1] <= first or v.region[0] >= last]
        if root is old or root.numel <= old.numel:
            return (self._register(generation, ref, None),)
        whole_ref = TensorRef(
            -1, ref.storage, root.offset, ref.itemsize, ref.device, root.dtype, root.shape, root.strides
        )  # fmt: skip
        whole = self._register(generation, whole_ref, None)
        return (self._register(generation, ref, whole), whole)

    def _open(self, ref: TensorRef) -> _Generation:
        self._count += 1
        generation = self._generations[(ref.storage, ref.device)] = _Generation(self._count)
        return generation

    def _register(self, generation: _Generation, ref: TensorRef, base: Value | None) -> Value:
        value = self._graph.value(
            ref.dtype, ref.shape, ref.strides,
            offset=ref.offset, storage=generation.storage, device=ref.device, base=base,
        )  # fmt: skip
        version = _Version(value, ref.region, ref.tensor, _geometry(ref))
        same_tensor = (v for v in generation.current if v.tensor == ref.tensor and v.geometry == version.geometry)
        for stale in list(same_tensor):
            generation.current.remove(stale)
        generation.current.append(version)
        return value

    def _written_around(self, generation: _Generation, ref: TensorRef) -> Value | None:
        """The newest version that holds all of ``ref``, else the newest that an op wrote a part of."""
        first, last = ref.region
        for version in reversed(generation.current):
            if version.region[0] <= first and last <= version.region[1]:
                return version.value
        for version in reversed(generation.current):
            if _root(version.value).producer and version.region[0] < last and first < version.region[1]:
                return version.value
        return None

    def _is_another_allocation(self, generation: _Generation, ref: TensorRef, new_ids: bool) -> bool:
        """Whether memory was freed and handed out again unseen: too small, or a Python number in its place."""
        if generation.size and ref.region[1] > generation.size:
            return True
        if not may_be_number(ref.dtype, ref.shape, ref.device):
            return False
        alike = (v for v in generation.current if v.geometry == _geometry(ref))
        return not any(new_ids or v.tensor == ref.tensor for v in alike)


def _root(value: Value) -> Value:
    while value.base is not None:
        value = value.base
    return value
