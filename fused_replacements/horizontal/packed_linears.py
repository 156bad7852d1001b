"""Live ``nn.Linear`` modules whose parameters become views of one buffer, so that they are one product.

The modules and their ``Parameter`` objects stay: names, ``state_dict``, optimizer state and hooks on parameters are as
before, and whatever writes into a parameter (``load_state_dict``, an optimizer) writes into the buffer. What gives a
parameter a storage of its own (``module.to(dtype)``, ``load_state_dict(assign=True)``, ``deepcopy``) ends the packing,
not the result: the parameters are read at each call, and then they are multiplied one by one. ``pack()`` renews it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from fused_replacements.horizontal._adjacent import adjacent
from fused_replacements.horizontal.packed_linear import MOST, packed_linear

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def packing_refusal(linears: Sequence[nn.Module], within: nn.Module | None = None) -> str | None:
    """None, or why ``linears`` can't be packed. ``within`` is the model to search for others that use their weights.

    Names are not read: that the modules are applied to one input is for the caller to know.
    """
    if not 2 <= len(linears) <= MOST:
        return f"{len(linears)} modules were given; 2 to {MOST} make one product"
    for linear in linears:
        reason = _module_refusal(linear)
        if reason is not None:
            return reason
    return _together_refusal([linear for linear in linears if isinstance(linear, nn.Linear)], within)


def _module_refusal(linear: nn.Module) -> str | None:
    if type(linear) is not nn.Linear:
        return f"{type(linear).__name__} is not nn.Linear itself: an adapter, a quantised or a parametrised layer"
    if "forward" in linear.__dict__:
        return "the forward of one of the modules was replaced"
    if any(getattr(linear, hooks) for hooks in HOOKS):
        return "one of the modules has hooks, which would not be called"
    for parameter in linear.parameters():
        if type(parameter) is not nn.Parameter:
            return f"a parameter is a {type(parameter).__name__}, not a plain one"
        if parameter.is_meta or parameter.layout is not torch.strided:
            return "a parameter has no strided memory"
        if parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size():
            return "a parameter is a view of a larger buffer that something else manages"
        if parameter.is_shared() and parameter.device.type == "cpu":
            return "a parameter lies in memory that processes share"
    return None


def _holders(tensor: Tensor) -> int:
    """How many tensors share the memory of ``tensor``, itself among them; 1 where this PyTorch does not tell."""
    storage = tensor.untyped_storage()
    count = getattr(torch._C, "_storage_Use_Count", None)
    return 1 if count is None else int(count(storage._cdata)) - 1  # ``storage`` itself holds it too


def _together_refusal(linears: Sequence[nn.Linear], within: nn.Module | None) -> str | None:
    first = linears[0].weight
    for linear in linears[1:]:
        if linear.in_features != linears[0].in_features:
            return f"the modules take {linears[0].in_features} and {linear.in_features} features"
        if linear.weight.dtype is not first.dtype or linear.weight.device != first.device:
            return (
                f"the weights are {first.dtype} on {first.device} and {linear.weight.dtype} on {linear.weight.device}"
            )
    parameters = [parameter for linear in linears for parameter in linear.parameters()]
    if len({parameter.requires_grad for parameter in parameters}) > 1:
        return "some of the parameters are frozen, and some are not"
    if len({parameter.data_ptr() for parameter in parameters if parameter.numel()}) < len(parameters):
        return "two of the modules share a parameter, or have an empty one"
    shared = None if within is None else _shared_refusal(linears, within)
    if shared is None and any(_holders(parameter) > 1 for parameter in parameters):
        return "another tensor shows the memory of a parameter: a view, a state_dict, the graph of an earlier step"
    return shared


def _shared_refusal(linears: Sequence[nn.Linear], within: nn.Module) -> str | None:
    mine = {parameter.untyped_storage().data_ptr() for linear in linears for parameter in linear.parameters()}
    packed = {id(linear) for linear in linears}
    for name, module in within.named_modules():
        if id(module) in packed:
            continue
        for tensor in chain(module.parameters(recurse=False), module.buffers(recurse=False)):
            if not tensor.is_meta and not mine.isdisjoint(_pointers(tensor)):
                return f"{name or 'the model'} shares a parameter with one of the modules"
    return None


def _pointers(tensor: Tensor) -> Iterator[int]:
    """Where its memory begins; of a wrapper around tensors, where theirs does."""
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is None:
        yield tensor.untyped_storage().data_ptr()
        return
    for name in inner()[0]:
        yield from _pointers(getattr(tensor, name))


class PackedLinears:
    """Two to four ``nn.Linear`` modules as one product: ``q, k, v = PackedLinears([q_proj, k_proj, v_proj])(x)``.

    Raises:
        ValueError: the modules can't be packed; the message says why.
    """

    def __init__(self, linears: Sequence[nn.Linear], within: nn.Module | None = None) -> None:
        reason = packing_refusal(linears, within)
        if reason is not None:
            raise ValueError(reason)
        self.linears = tuple(linears)
        self.pack()

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """The result of each module for ``x`` (…, K), from its parameters as they are now."""
        return packed_linear(x, [linear.weight for linear in self.linears], [linear.bias for linear in self.linears])

    @property
    def packed(self) -> bool:
        """Whether the weights still lie in one buffer, so that a call is one product."""
        return adjacent([linear.weight for linear in self.linears])

    @torch.no_grad()
    def pack(self) -> None:
        """Move the parameters into one buffer. Their values, and the ``Parameter`` objects, stay."""
        _move_into_one([linear.weight for linear in self.linears])
        biases = [linear.bias for linear in self.linears]
        if all(bias is not None for bias in biases):
            _move_into_one(biases)

    @torch.no_grad()
    def undo(self) -> None:
        """Give each parameter a storage of its own again, with the values that it has now.

        Where another tensor has come to show that memory meanwhile (a ``state_dict``, a view) they stay in the buffer:
        what is written to the parameters has to be seen there.
        """
        parameters = [parameter for linear in self.linears for parameter in linear.parameters()]
        inside = [p for p in parameters if p.untyped_storage().nbytes() != p.numel() * p.element_size()]
        ours = Counter(p.untyped_storage()._cdata for p in inside)
        free = [p for p in inside if _holders(p) <= ours[p.untyped_storage()._cdata]]
        for parameter in free:
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


def _move_into_one(parameters: Sequence[Tensor]) -> None:
    sizes = [len(parameter) for parameter in parameters]
    for parameter, part in zip(parameters, torch.cat([p.detach() for p in parameters]).split(sizes), strict=True):
        parameter.data = part
