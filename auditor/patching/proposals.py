"""Who could compute a site: the library's kernels, PyTorch's own fused ops, installed packages, the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from auditor.collect.capture import hint
from auditor.patching.adapters import ADAPTERS, Wanted
from auditor.patching.calls import Proposal
from auditor.patching.patch_site import fingerprint
from auditor.patching.region import Unreachable, as_module, with_shared_views
from auditor.patching.site import SiteView
from fused_replacements import Chain, Provider, providers

VIEWS = (
    "view",
    "view_as",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "expand",
    "t",
    "getitem",
    "select",
    "narrow",
)
"""Calls that show a tensor in another way. The first two fail where its strides do not allow that."""


def proposals(view: SiteView, function: fx.GraphModule) -> tuple[list[Proposal], str]:
    """Every call that could stand in for the site, and why there is none.

    ``function`` is the region as a function of its tensor inputs. Each proposal was called on fake tensors and gives
    outputs of the right shapes and dtypes; whether the numbers are right is not looked at here.
    """
    found: list[Proposal] = []
    reasons: list[str] = []
    for proposal in (*_of_library(view, reasons), *_of_compiler(view, function, reasons)):
        fitting, reason = _fitted(view, proposal)
        if fitting is not None:
            found.append(fitting)
        elif reason not in reasons:
            reasons.append(f"{proposal.replacement}: {reason}")
    return found, "; ".join(reasons) or ("" if found else "no replacement computes it")


def _of_library(view: SiteView, reasons: list[str]) -> Iterator[Proposal]:
    adapter = ADAPTERS.get(view.region.site.rule.replacement or "")
    if adapter is None:
        return
    try:
        for wanted in adapter(view):
            yield from _provided(view, wanted, reasons)
    except Unreachable as refusal:
        reasons.append(str(refusal))


def _provided(view: SiteView, wanted: Wanted, reasons: list[str]) -> Iterator[Proposal]:
    for provider in _providers(wanted.replacement):
        proposal = Proposal(
            wanted.replacement, provider.name, provider.function, wanted.args, wanted.kwargs, wanted.results,
            wanted.options, faithful=wanted.faithful, buffers=wanted.buffers, prepare=wanted.prepare,
        )  # fmt: skip
        args, kwargs = proposal.with_nodes(_metas(view, proposal))
        reason = provider.supports(*args, **kwargs)
        if reason is None:
            yield proposal
        else:
            reasons.append(f"{provider.name}: {reason}")


@cache
def _providers(name: str) -> tuple[Provider, ...]:
    return providers(name)


_chains: dict[str, Chain] = {}


def _of_compiler(view: SiteView, function: fx.GraphModule, reasons: list[str]) -> Iterator[Proposal]:
    if any(op.name.startswith("aten.native_dropout") for op in view.region.site.region.ops):
        reasons.append("elementwise_chain: it draws random numbers")
        return
    region = with_shared_views(view.region, view.captured)
    if region is not view.region:
        try:
            function = as_module(region, view.captured)
        except Unreachable:
            region = view.region
    tensors = tuple(node for node in region.inputs if isinstance(view.captured.results[node], Tensor))
    chain = chain_of(function, [view.fake(node) for node in tensors])
    reason = chain.supports(*(static(view.fake(node)) for node in tensors))
    if reason is not None:
        reasons.append(f"elementwise_chain: {reason}")
        return
    count = len(view.region.outputs)
    yield Proposal("elementwise_chain", "compiler", chain, tensors, {}, tuple(range(count)), tier=3, several=count > 1)


def chain_of(function: fx.GraphModule, inputs: list[Tensor]) -> Chain:
    """The compiled form of a region. Regions that compute the same share it, whatever layer they are in."""
    return _chains.setdefault(fingerprint(function, inputs), Chain(function, rows=True))


def _metas(view: SiteView, proposal: Proposal) -> Callable[[fx.Node], Tensor]:
    """A meta tensor for each node, as the proposal is called with it."""
    lying = {}
    for buffer in proposal.buffers:
        fakes = [static(view.fake(node)) for node in buffer]
        whole = torch.empty((sum(map(len, fakes)), *fakes[0].shape[1:]), dtype=fakes[0].dtype, device="meta")
        parts = whole.split([len(fake) for fake in fakes])
        for node, part, fake in zip(buffer, parts, fakes, strict=True):
            lying[node] = part.requires_grad_(fake.requires_grad)
    return lambda node: lying[node] if node in lying else static(view.fake(node))


def static(tensor: Tensor) -> Tensor:
    """A meta tensor of the sizes and strides that a fake one was traced with."""
    made = torch.empty_strided(
        [hint(n) for n in tensor.shape], [hint(n) for n in tensor.stride()], dtype=tensor.dtype, device="meta"
    )
    return made.requires_grad_(tensor.requires_grad)


def _fitted(view: SiteView, proposal: Proposal) -> tuple[Proposal | None, str]:
    """The proposal with what is known of its result, or None and the reason why it doesn't fit."""
    with torch.no_grad():
        args, kwargs = proposal.with_nodes(_metas(view, proposal))
        try:
            result = proposal.function(*args, **kwargs)
        except Exception as error:  # whatever a provider raises on shapes that it does not like
            return None, f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
    several = isinstance(result, (tuple, list))
    leaves: Any = result if several else (result,)
    for node, place in zip(view.region.outputs, proposal.results, strict=True):
        wanted, given = static(view.fake(node)), leaves[place]
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
            return None, f"returns {given.dtype} {list(given.shape)} for {wanted.dtype} {list(wanted.shape)}"
        if given.stride() != wanted.stride() and not _viewable(view, node, given):
            return None, f"returns another layout, and {node.name} is viewed as it lies, or leaves the model"
    return replace(proposal, several=several), ""


def _viewable(view: SiteView, node: fx.Node, given: Tensor) -> bool:
    """Whether views of ``node`` can be taken of ``given``, which has its shape in another layout."""
    pending = [(node, given)]
    while pending:
        source, tensor = pending.pop()
        for user in source.users:
            name = getattr(user.target, "__name__", user.target)
            if user.op == "output" or name == "as_strided":  # who gets it may view it as eager's
                return False
            if name in VIEWS:
                try:
                    pending.append((user, _again(view, user, source, tensor)))
                except RuntimeError:
                    return False
    return True


def _again(view: SiteView, user: fx.Node, source: fx.Node, tensor: Tensor) -> Tensor:
    """The view that ``user`` takes of ``source``, taken of ``tensor``."""

    def value(node: fx.Node) -> Any:
        if node is source:
            return tensor
        found = view.captured.results[node]
        return static(found) if isinstance(found, Tensor) else hint(found)

    args, kwargs = fx.node.map_arg((user.args, dict(user.kwargs)), value)
    function = getattr(Tensor, user.target) if isinstance(user.target, str) else user.target
    result: Tensor = function(*args, **kwargs)
    return result
