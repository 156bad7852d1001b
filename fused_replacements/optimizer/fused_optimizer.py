"""Fused optimizer: a live optimizer steps in a few kernels instead of several for each parameter, and can be put back.

Formula
-------
The update of the optimizer's own class, unchanged. ``fused_optimizer(optimizer)`` switches each parameter group to
PyTorch's ``fused=True`` (one kernel for many parameters, all of the update in registers), else to ``foreach=True`` (one
kernel for each op of the update, over all parameters), else leaves it as it is, and says why. It returns a handle:

>>> with fused_optimizer(optimizer) as switched:
...     print(switched.modes)  # ('fused',)
...     train()
>>> switched = fused_optimizer(optimizer)
>>> switched.restore()

Undoing puts back every option, attribute and the place of every step counter; moments stay as training left them.
Until then checkpoints keep the stock layout: ``state_dict`` holds the original options, ``load_state_dict`` switches
what it loaded, and groups that are added are switched as well.

Shapes and dtypes
-----------------
Adam, AdamW, SGD and Adagrad have a fused step; Adadelta, Adafactor, Adamax, ASGD, NAdam, RAdam, RMSprop and Rprop a
foreach one. Fused: floating parameters on a device that has the kernels (CPU among them), dense, not differentiable,
no sparse gradients, and laid out in memory as their gradients and moments are. PyTorch's fused CPU kernels walk memory
without looking at strides, and are silently wrong otherwise; so layouts are looked at before each step, and a step
whose gradients lie otherwise, or whose gradients a closure is yet to compute, is taken unfused. Each fused CPU kernel
is tried once on a few numbers before it is used: that of SGD does nothing in bf16 and fp16 (torch 2.13).

Bytes moved
-----------
Adam: parameter, gradient and two moments read, three of them written: 7 accesses an element. Single-tensor steps are
about ten kernels a parameter and some 20 accesses.

When it loses
-------------
``foreach`` on a CPU with parameters of over 4,096 elements on average: each op walks over all of them and nothing stays
in the cache (0.7 to 1.0 times single-tensor, against 1.2 to 1.7 below it); such groups are left alone. Fused steps are
1.6 to 3.6 times as fast there, on one thread.

Source
------
PyTorch's own fused and foreach optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from fused_replacements._registry import Replacement, Sample
from fused_replacements.optimizer._plan import Mode, plan

OPTIONS: Final = ("fused", "foreach")
AMP: Final = "_step_supports_amp_scaling"
CHECKED: Final = "_need_device_dtype_check_for_fused"
_ABSENT: Final = object()


class FusedOptimizer:
    """An optimizer whose groups were switched; ``restore`` undoes it, and so does leaving a ``with`` block."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.modes: tuple[Mode | None, ...] = ()
        """For each group how it steps now; None where it was left as it was."""
        self.reasons: tuple[str | None, ...] = ()
        """For each group why it isn't fused, where it isn't."""
        self._options: list[dict[str, object]] = []
        self._steps: dict[Tensor, Tensor] = {}
        self._attributes = {name: vars(optimizer).get(name, _ABSENT) for name in (AMP, CHECKED, "add_param_group")}
        self._handles: list[Any] = []
        self._switch()
        self._watch()

    def __enter__(self) -> FusedOptimizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Put every option, attribute and step counter back to where it was. A second call does nothing."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for group, options in zip(self.optimizer.param_groups, self._options, strict=True):
            _set(group, options)
            for parameter in group["params"]:
                self._put_step_back(parameter, group)
        for name, value in self._attributes.items():
            if value is not _ABSENT:
                setattr(self.optimizer, name, value)
            elif name in vars(self.optimizer):
                delattr(self.optimizer, name)

    def _switch(self) -> None:
        """Plan every group by its own options, and set what the plan says."""
        optimizer = self.optimizer
        self._options = [{name: group.get(name, _ABSENT) for name in OPTIONS} for group in optimizer.param_groups]
        plans = [plan(optimizer, group) for group in optimizer.param_groups]
        self.modes, self.reasons = tuple(mode for mode, _ in plans), tuple(reason for _, reason in plans)
        for group, mode in zip(optimizer.param_groups, self.modes, strict=True):
            if mode is not None:
                _set(group, {"fused": mode == "fused" if "fused" in group else _ABSENT, "foreach": mode == "foreach"})
            if mode == "fused":
                self._place_steps(group)
        self._tell_scaler()

    def _tell_scaler(self) -> None:
        """Fused steps can take the scale of a ``GradScaler`` along, unless any step may fall back to an unfused one."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        fused = all(mode == "fused" for mode in self.modes) and all(p.device.type != "cpu" for p in parameters)
        before = self._attributes[AMP]
        if fused:
            setattr(self.optimizer, AMP, True)
        elif before is not _ABSENT:
            setattr(self.optimizer, AMP, before)
        elif AMP in vars(self.optimizer):
            delattr(self.optimizer, AMP)

    def _place_steps(self, group: dict[str, Any]) -> None:
        """Fused kernels count steps in fp32 on the device of the parameter, the others on the CPU."""
        for parameter in group["params"]:
            step = self.optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, Tensor) and (step.device, step.dtype) != (parameter.device, torch.float32):
                self._steps[parameter] = step
                self.optimizer.state[parameter]["step"] = step.to(parameter.device, torch.float32)

    def _put_step_back(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.optimizer.state.get(parameter, {})
        step = state.get("step")
        if not isinstance(step, Tensor):
            return
        before = self._steps.pop(parameter, None)
        if before is not None:
            state["step"] = before.copy_(step)
        elif not (group.get("capturable") or group.get("fused")):
            state["step"] = _unfused_step(step)

    def _watch(self) -> None:
        optimizer, add = self.optimizer, self.optimizer.add_param_group

        def add_param_group(group: dict[str, Any]) -> None:
            add(group)
            self._switch_anew()

        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_state_dict_post_hook(self._stock_layout),
            optimizer.register_load_state_dict_post_hook(lambda _: self._after_load()),
        ]
        optimizer.add_param_group = add_param_group  # type: ignore[method-assign,assignment]

    def _switch_anew(self) -> None:
        for group, options in zip(self.optimizer.param_groups, self._options, strict=False):
            _set(group, options)
        self._switch()

    def _after_load(self) -> None:
        self._steps.clear()  # what was loaded has counters of its own
        self._switch()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take this step unfused where a CPU kernel would read gradients in the wrong order."""
        closure = any(given is not None and given is not optimizer for given in (*args, *kwargs.values()))
        for group, mode in zip(optimizer.param_groups, self.modes, strict=True):
            if mode == "fused" and any(parameter.device.type == "cpu" for parameter in group["params"]):
                fused = not closure and all(_lies_alike(parameter) for parameter in group["params"])
                if fused and not group["fused"]:
                    self._place_steps(group)
                group["fused"] = fused

    def _stock_layout(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state dict as it would be had nothing been switched: options, and where the counters of steps lie."""
        groups, states = [], dict(state_dict["state"])
        for group, options, mode in zip(state_dict["param_groups"], self._options, self.modes, strict=True):
            stock = dict(group)
            _set(stock, options)
            groups.append(stock)
            for place in stock["params"] if mode == "fused" and not stock.get("capturable") else ():
                if isinstance(states.get(place, {}).get("step"), Tensor):
                    states[place] = {**states[place], "step": _unfused_step(states[place]["step"])}
        return {**state_dict, "state": states, "param_groups": groups}


def _unfused_step(step: Tensor) -> Tensor:
    """A counter of steps as single-tensor optimizers keep it: on the CPU, in fp64 where that is the default."""
    return step.to("cpu", torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32)


def _set(group: dict[str, Any], options: dict[str, object]) -> None:
    for name, value in options.items():
        if value is not _ABSENT:
            group[name] = value
        else:
            group.pop(name, None)


def _lies_alike(parameter: Tensor) -> bool:
    grad = parameter.grad
    if grad is None:
        return True
    return grad.layout is torch.strided and (grad.stride() == parameter.stride() or _same_order(parameter, grad))


def _same_order(parameter: Tensor, grad: Tensor) -> bool:
    """Whether strides differ in dimensions of one element only, which are no steps in memory."""
    triples = zip(parameter.shape, parameter.stride(), grad.stride(), strict=True)
    return all(size == 1 or mine == its for size, mine, its in triples)


def fused_optimizer(optimizer: Optimizer) -> FusedOptimizer:
    """Switch the groups of ``optimizer`` to fused or foreach steps, where they can be; see the module.

    Args:
        optimizer: one of ``torch.optim``, before or in the middle of training.

    Returns:
        A handle, which is a context manager too. Its ``modes`` and ``reasons`` say what became of each group.

    Raises:
        ValueError: ``optimizer`` is none of ``torch.optim``.
    """
    reason = _no_optimizer(optimizer)
    if reason is not None:
        raise ValueError(reason)
    return FusedOptimizer(optimizer)


def _no_optimizer(optimizer: object) -> str | None:
    return None if isinstance(optimizer, Optimizer) else f"a {type(optimizer).__name__} is no torch.optim.Optimizer"


class _SingleTensor(FusedOptimizer):
    """Every group stepping parameter by parameter: what the fused steps are held against."""

    def _switch(self) -> None:
        groups = self.optimizer.param_groups
        self._options = [{name: group.get(name, _ABSENT) for name in OPTIONS} for group in groups]
        self.modes, self.reasons = (None,) * len(groups), ("it is the reference",) * len(groups)
        for group in groups:
            _set(group, {name: False for name in OPTIONS if name in group})
            for parameter in group["params"]:
                self._put_step_back(parameter, group)
        if AMP in vars(self.optimizer):
            delattr(self.optimizer, AMP)


def reference(optimizer: Optimizer) -> FusedOptimizer:
    """The definition: ``optimizer`` with every group stepping one parameter at a time, until it is restored."""
    return _SingleTensor(optimizer)


def supports(optimizer: Optimizer) -> str | None:
    """None where at least one group would step fused or foreach, or why none would."""
    reason = _no_optimizer(optimizer)
    if reason is not None:
        return reason
    plans = [plan(optimizer, group) for group in optimizer.param_groups]
    if any(mode is not None for mode, _ in plans):
        return None
    return "; ".join(dict.fromkeys(reason for _, reason in plans if reason is not None)) or "it has no groups"


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """Nothing: an optimizer is no function of tensors. Its tests make optimizers of their own."""
    del rows, width, dtype, device
    return iter(())


REPLACEMENT = Replacement(
    name="fused_optimizer",
    family="optimizer",
    function=fused_optimizer,
    reference=reference,
    supports=supports,
    samples=samples,
    has_backward=False,
)
