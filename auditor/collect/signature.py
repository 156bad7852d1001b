"""Which steps may be compared: the shapes that go into the outermost modules.

A decode step is not a prefill step, and the last, smaller batch is not a batch. But decoding grows its
cache and mask by one at every step, and that is still the same step.
"""

from __future__ import annotations

from typing import Any

TensorFact = tuple[str, str, tuple[int, ...]]
"""Where in the arguments (``0``, ``input_ids``, ``1.0``), dtype, shape."""
CallSignature = tuple[str, tuple[TensorFact, ...]]
"""The root's key and the tensors that it was called with."""
StepSignature = tuple[CallSignature, ...]

_DEPTH = 3


def tensor_facts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[TensorFact, ...]:
    """Facts of every tensor in the arguments, found through tuples, lists and dicts."""
    facts: list[TensorFact] = []
    for place, value in enumerate(args):
        _collect(str(place), value, facts, _DEPTH)
    for name, value in kwargs.items():
        _collect(name, value, facts, _DEPTH)
    return tuple(facts)


def _collect(place: str, value: Any, facts: list[TensorFact], depth: int) -> None:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        facts.append((place, str(value.dtype), tuple(value.shape)))
    elif depth and isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            _collect(f"{place}.{i}", item, facts, depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            _collect(f"{place}.{key}", item, facts, depth - 1)


def alike(earlier: StepSignature, later: StepSignature, apart: int) -> bool:
    """Same roots, dtypes and shapes; a dimension may have grown by one for each of the ``apart`` steps between."""
    return len(earlier) == len(later) and all(
        _same_call(a, b, apart) for a, b in zip(earlier, later, strict=True)
    )  # fmt: skip


def _same_call(a: CallSignature, b: CallSignature, apart: int) -> bool:
    if a[0] != b[0] or len(a[1]) != len(b[1]):
        return False
    return all(_same_tensor(x, y, apart) for x, y in zip(a[1], b[1], strict=True))


def _same_tensor(a: TensorFact, b: TensorFact, apart: int) -> bool:
    if a[:2] != b[:2] or len(a[2]) != len(b[2]):
        return False
    return all(n == m or (n > 1 and m - n == apart) for n, m in zip(a[2], b[2], strict=True))
