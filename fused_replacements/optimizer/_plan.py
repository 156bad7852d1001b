"""How a group of parameters can step: fused, foreach, or as it does, and why no better."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

Mode = Literal["fused", "foreach"]
FUSED_DEVICES: Final = frozenset({"cpu", "cuda", "hpu", "mps", "mtia", "xpu"})
"""As ``torch.optim.optimizer._get_fused_kernels_supported_devices``."""
FOREACH_CPU_ELEMENTS: Final = 4096
"""Above this mean size a foreach step was measured to be no faster on a CPU than a single-tensor one."""


def _first(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _parameter_refusal(parameter: Tensor) -> str | None:
    if type(parameter) not in (Tensor, torch.nn.Parameter):
        return f"a parameter is a {type(parameter).__name__}"
    if parameter.layout is not torch.strided:
        return "a parameter is sparse"
    if parameter.grad is not None and parameter.grad.layout is not torch.strided:
        return "a gradient is sparse"
    return None


def _fused_refusal(optimizer: Optimizer, group: dict[str, Any]) -> str | None:
    if "fused" not in group:
        return f"PyTorch has no fused {type(optimizer).__name__}"
    return _first(_fused_parameter_refusal(optimizer, parameter) for parameter in group["params"])


def _fused_parameter_refusal(optimizer: Optimizer, parameter: Tensor) -> str | None:
    reason = _parameter_refusal(parameter)
    if reason is not None:
        return reason
    if not parameter.is_floating_point():
        return f"a parameter is {str(parameter.dtype).removeprefix('torch.')}, and fused steps are for floating dtypes"
    if parameter.device.type not in FUSED_DEVICES:
        return f"there is no fused step on {parameter.device.type}"
    if parameter.device.type == "cpu" and errs_on_cpu(_stock_class(optimizer), parameter.dtype):
        name = f"{_stock_class(optimizer).__name__} in {str(parameter.dtype).removeprefix('torch.')}"
        return f"PyTorch's fused CPU kernel for {name} gives wrong results"
    if not _dense(parameter):
        return f"a parameter has gaps or overlaps in memory (strides {parameter.stride()})"
    state = optimizer.state.get(parameter, {})
    moments = [value for value in state.values() if isinstance(value, Tensor) and value.shape == parameter.shape]
    if parameter.dim() and any(moment.stride() != parameter.stride() for moment in moments):
        return "the state of a parameter lies otherwise in memory than the parameter"
    return None


@cache
def errs_on_cpu(kind: Callable[..., Any], dtype: torch.dtype) -> bool:
    """Whether PyTorch's fused CPU kernel for ``dtype`` computes something else than the single-tensor step.

    That of SGD leaves parameters in bf16 and fp16 as they are, from 16 elements on (torch 2.13): so each kernel is
    tried before it is used.
    """
    start = torch.linspace(-2.0, 2.0, 67, dtype=torch.float64, device="cpu").to(dtype)
    results = []
    for fused, computed in ((True, dtype), (False, torch.float64)):
        parameter = torch.nn.Parameter(start.to(computed, copy=True))
        parameter.grad = start.flip(0).cos().to(computed, copy=True)
        kind([parameter], lr=0.1, fused=fused).step()
        results.append(parameter.detach().double())
    return bool((results[0] - results[1]).abs().max() > 4 * torch.finfo(dtype).eps)


def _stock_class(optimizer: Optimizer) -> Any:
    return next(kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim."))


def _dense(tensor: Tensor) -> bool:
    """Whether its elements fill a piece of memory, each once, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return tensor.numel() == 0
        expected *= size if size != 1 else 1
    return True


def _foreach_refusal(optimizer: Optimizer, group: dict[str, Any]) -> str | None:
    if "foreach" not in group:
        return f"PyTorch has no foreach {type(optimizer).__name__}"
    if not group.get("capturable") and any(isinstance(group.get(name), Tensor) for name in ("lr", "momentum")):
        return "its learning rate is a tensor, and it isn't capturable"
    if any(isinstance(beta, Tensor) for beta in group.get("betas", ())):
        return "its betas are tensors"
    return _first(map(_parameter_refusal, group["params"])) or _too_large_for_foreach(group["params"])


def _too_large_for_foreach(parameters: list[Tensor]) -> str | None:
    on_cpu = [parameter.numel() for parameter in parameters if parameter.device.type == "cpu"]
    if not on_cpu or sum(on_cpu) <= FOREACH_CPU_ELEMENTS * len(on_cpu):
        return None
    return f"on a CPU foreach gains nothing for parameters of {sum(on_cpu) // len(on_cpu)} elements"


def plan(optimizer: Optimizer, group: dict[str, Any]) -> tuple[Mode | None, str | None]:
    """How ``group`` can step, and why no better: (mode or None, reason or None)."""
    if not type(optimizer).step.__module__.startswith("torch.optim."):
        return None, f"the step of {type(optimizer).__name__} is not one of PyTorch's"
    if not group["params"]:
        return None, "a group has no parameters"
    if group.get("differentiable"):
        return None, "its step is differentiable"
    if group.get("fused"):
        return None, "it is fused already"
    reason = _fused_refusal(optimizer, group)
    if reason is None:
        return "fused", None
    if group.get("foreach"):
        return None, f"it is foreach already, and {reason}"
    further = _foreach_refusal(optimizer, group)
    return ("foreach", reason) if further is None else (None, reason if reason == further else f"{reason}; {further}")
