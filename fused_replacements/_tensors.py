"""What no fused op takes, whatever its shapes: what is no tensor, no strided one, no floating one, or elsewhere.

PyTorch says it on a page that lists its backends, or computes integers with it. Nothing here is asked where an op can
run: only at shapes that are new to it, and where a call raised.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from fused_replacements._supports import floating


def foreign(parameters: Sequence[Any], arguments: Sequence[Any], exact: Collection[int]) -> str | None:
    """Why an op with these ``parameters``, of its schema, takes no such ``arguments``, in one clause; None if it does.

    ``exact``: the places of the tensors that must be floating.
    """
    device: torch.device | None = None
    for place, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        kind = str(parameter.type)
        if kind not in ("Tensor", "Optional[Tensor]") or (argument is None and kind != "Tensor"):
            continue
        reason = _foreign(parameter.name, argument, place in exact)
        if reason is not None:
            return reason
        if place in exact:
            if device is not None and argument.device != device:
                return f"{parameter.name} is on {argument.device}, and another tensor on {device}"
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
        return floating(**{name: x})
    return None


def _layout(x: Tensor) -> str:
    return "nested" if x.is_nested else str(x.layout).removeprefix("torch.").removeprefix("_")
