"""The Dynamo backend that exchanges sites in a graph above autograd.

Dynamo traces a model into graphs of PyTorch calls; each is handed to a :class:`Rewriter`, which runs the audit's own
rules over it, lets a chooser say what becomes of each site, and gives back the graph with calls of replacements in it.
What it gives back runs eagerly: autograd records the replacements as it would record what they replace.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor

from auditor.collect.capture import Captured, capture
from auditor.engine.claims import claim
from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.patch.calls import Nested, Proposal, SiteCall, nodes_of
from auditor.patch.order import insertion_point
from auditor.patch.proposals import proposals
from auditor.patch.region import FxRegion, Unreachable, as_module, fx_regions
from auditor.patch.site import SiteView

_numbers = itertools.count(1)


@dataclass(frozen=True)
class SiteKey:
    """Which site it is, in every process: rule, module, what the region computes, and which of several alike."""

    rule: str
    module: str
    fingerprint: str
    ordinal: int


@dataclass(eq=False)
class PatchSite:
    """One site of one traced graph, and what became of it."""

    key: SiteKey
    module_class: str
    kernels: int
    function: fx.GraphModule | None = None
    """The region as a function of its tensor inputs; None where there is none."""
    inputs: tuple[Tensor, ...] = ()
    """Fake tensors: shapes, strides and dtypes of the inputs of ``function``."""
    proposals: list[Proposal] = field(default_factory=list)
    chosen: Proposal | None = None
    reason: str = ""
    """Why it is not applied."""
    call: SiteCall | None = None

    @property
    def calls(self) -> int:
        return 0 if self.call is None else self.call.calls


class Chooser(Protocol):
    """Says which proposal a site gets."""

    def choose(self, site: PatchSite, placeholders: Sequence[fx.Node]) -> tuple[Proposal | None, str]:
        """The proposal to use, or None and the reason.

        ``placeholders`` are the nodes that proposals name, in the order of ``site.inputs``.
        """


@dataclass(eq=False)
class Frame:
    """One graph that Dynamo handed over."""

    sites: list[PatchSite]
    refused: list[tuple[str, str, str]]
    """Rule, reason, place: what the rules themselves turned away."""
    grad: bool
    failure: str = ""
    """Why nothing in it could be looked at."""


class Rewriter:
    """A backend for ``torch.compile``. ``frames`` tells what it saw, in order.

    ``path`` is where the compiled module stands in the model; module names in what it sees begin with it.
    """

    def __init__(self, rules: Sequence[Rule], chooser: Chooser, path: str = "") -> None:
        self.rules, self.chooser, self.path = list(rules), chooser, path
        self.frames: list[Frame] = []

    @property
    def sites(self) -> list[PatchSite]:
        return [site for frame in self.frames for site in frame.sites]

    def __call__(self, module: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        frame = Frame([], [], torch.is_grad_enabled())
        self.frames.append(frame)
        try:
            self._rewrite(module, frame)
        except (
            Exception
        ) as error:  # of ours, or of an op without a fake implementation: the model must run all the same
            frame.failure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return module.forward

    def _rewrite(self, module: fx.GraphModule, frame: Frame) -> None:
        fakes = [node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"]
        mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
        if mode is None:
            return
        captured = capture(module, fakes, mode)
        _drop_idle_casts(module.graph, captured)
        canonical = Canonical(captured.graph)
        claims = claim(canonical, self.rules)
        frame.refused = [(rule.id, refusal.reason, refusal.at.module) for rule, refusal in claims.refused]
        seen: Counter[tuple[str, str, str]] = Counter()
        work = [found for site in claims.sites for found in self._look(captured, canonical, site, seen)]
        frame.sites = [site for site, _ in work]
        changed = False
        for site, region in work:
            if region is not None:
                changed |= self._apply(module, captured, site, region)
        if changed:
            module.graph.lint()
            module.recompile()

    def _look(
        self, captured: Captured, canonical: Canonical, candidate: Candidate, seen: Counter[tuple[str, str, str]]
    ) -> list[tuple[PatchSite, FxRegion | None]]:
        """The sites of the FX graph that a site of the op graph is, each with the region to exchange."""
        first = candidate.region.ops[0]
        refused = PatchSite(
            SiteKey(candidate.rule.id, self._module(first.module), "", 0), first.module_class, candidate.region.kernels
        )
        try:
            regions = fx_regions(captured, candidate)
            return [(self._site(captured, canonical, region, seen), region) for region in regions]
        except Unreachable as refusal:
            refused.reason = str(refusal)
            return [(refused, None)]

    def _site(
        self, captured: Captured, canonical: Canonical, region: FxRegion, seen: Counter[tuple[str, str, str]]
    ) -> PatchSite:
        first = captured.ops_of(region.members[0])[0]
        function = as_module(region, captured)
        inputs = tuple(captured.results[node] for node in tensor_inputs(region, captured))
        name = (region.site.rule.id, self._module(first.module), fingerprint(function, inputs))
        key = SiteKey(*name, seen[name])
        seen[name] += 1
        site = PatchSite(key, first.module_class, region.kernels, function, inputs)
        site.proposals, site.reason = proposals(SiteView(captured, canonical, region), function)
        return site

    def _module(self, path: str) -> str:
        return ".".join(part for part in (self.path, path) if part)

    def _apply(self, module: fx.GraphModule, captured: Captured, site: PatchSite, region: FxRegion) -> bool:
        nodes = tensor_inputs(region, captured)
        chosen, reason = self.chooser.choose(site, nodes) if site.proposals else (None, site.reason)
        if chosen is None:
            site.reason = reason
            return False
        try:
            _exchange(module.graph, captured, region, chosen, site)
        except Unreachable as refusal:
            site.reason, site.call = str(refusal), None
            return False
        site.chosen, site.reason = chosen, ""
        return True


CASTS = ("to", "float", "double", "half", "bfloat16", "type", "type_as")


def _drop_idle_casts(graph: fx.Graph, captured: Captured) -> None:
    """Casts to the dtype that a tensor has return the tensor itself. Dtypes are guarded, so that stays so."""
    for node in list(graph.nodes):
        if node.op == "call_method" and node.target in CASTS and isinstance(node.args[0], fx.Node):
            source = node.args[0]
            if captured.results[node] is captured.results[source]:
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def tensor_inputs(region: FxRegion, captured: Captured) -> tuple[fx.Node, ...]:
    """The inputs of a region that are tensors, in the order of its function's placeholders."""
    return tuple(node for node in region.inputs if isinstance(captured.results[node], Tensor))


def fingerprint(function: fx.GraphModule, inputs: Iterable[Tensor]) -> str:
    """Equal for regions that compute the same from tensors of the same dtypes and ranks."""
    names: dict[str, str] = {}
    lines = [f"{tensor.dtype} {tensor.dim()}" for tensor in inputs]
    for node in function.graph.nodes:
        names[node.name] = f"v{len(names)}"
        arguments = fx.node.map_arg((node.args, node.kwargs), lambda n: names[n.name])
        target = "" if node.op in ("placeholder", "output") else str(getattr(node.target, "__name__", node.target))
        lines.append(f"{node.op} {target} {arguments}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _exchange(graph: fx.Graph, captured: Captured, region: FxRegion, proposal: Proposal, site: PatchSite) -> None:
    """Put a call of ``proposal`` where ``region`` is."""
    current = captured.current
    reads = {current(node) for node in nodes_of((proposal.args, proposal.kwargs))}
    before = insertion_point(graph, captured, region, reads)
    site.call = SiteCall(f"site_{next(_numbers)}_{proposal.replacement}", proposal.function)
    with graph.inserting_before(before):
        args, kwargs = _materialised(graph, proposal, current)
        made = graph.call_function(site.call, args, kwargs)
        leaves = _leaves(graph, made, proposal, len(region.outputs))
    for node, leaf in zip(region.outputs, leaves, strict=True):
        leaf.meta["example_value"] = captured.results[node]
        captured.exchange(node, leaf)
        node.replace_all_uses_with(leaf)
    for node in reversed(region.members):
        graph.erase_node(node)


def _materialised(
    graph: fx.Graph, proposal: Proposal, current: Callable[[fx.Node], fx.Node]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def made(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return current(argument)
        if isinstance(argument, Nested):
            return graph.call_function(argument.function, tuple(map(made, argument.args)))
        if isinstance(argument, (tuple, list)):
            return type(argument)(map(made, argument))
        return argument

    return tuple(map(made, proposal.args)), {name: made(value) for name, value in proposal.kwargs.items()}


def _leaves(graph: fx.Graph, made: fx.Node, proposal: Proposal, count: int) -> list[fx.Node]:
    if not proposal.several:
        return [made] * count
    return [graph.call_function(operator.getitem, (made, i)) for i in proposal.results]
