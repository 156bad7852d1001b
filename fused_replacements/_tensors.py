"""What no fused op takes, whatever its shapes: what is no tensor, no strided one, no floating one, or elsewhere.

PyTorch says it on a page that lists its backends, or computes integers with it. Nothing here is asked where an op can
run: only at shapes that are new to it, and where a call raised.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fused_replacements import _supports


class Place(NamedTuple):
    """Where a schema has a tensor."""

    at: int
    name: str
    optional: bool


def tensor_places(schema: Any) -> list[Place]:
    """The arguments of ``schema`` that are one tensor each."""
    kinds = [(i, a.name, str(a.type)) for i, a in enumerate(schema.arguments)]
    return [Place(i, name, kind != "Tensor") for i, name, kind in kinds if kind in ("Tensor", "Optional[Tensor]")]


def foreign(places: Sequence[Place], arguments: Sequence[Any], floating: Collection[int]) -> str | None:
    """Why an op that has tensors at ``places`` takes no such ``arguments``, in one clause; None if it does.

    ``floating``: the indices of the tensors that must be floating, and on one device.
    """
    device: torch.device | None = None
    for at, name, optional in places:
        argument = arguments[at]
        if optional and argument is None:
            continue
        reason = _foreign(name, argument, at in floating)
        if reason is not None:
            return reason
        if at in floating:
            if device is not None and argument.device != device:
                return f"{name} is on {argument.device}, and another tensor on {device}"
            device = argument.device
    return None


def _foreign(name: str, x: Any, must_float: bool) -> str | None:
    if not isinstance(x, Tensor):
        return f"{name} is {'None' if x is None else f'of type {type(x).__name__}'}, not a tensor"
    if x.layout is not torch.strided or x.is_nested:
        return f"{name} is {_layout(x)}, and only strided tensors are taken"
    if x.is_quantized:
        return f"{name} is quantized ({x.dtype}), and only plain numbers are taken"
    if must_float and not x.is_floating_point():
        return _supports.floating(**{name: x})
    return None


def _layout(x: Tensor) -> str:
    return "nested" if x.is_nested else str(x.layout).removeprefix("torch.").removeprefix("_")
