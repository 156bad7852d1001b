"""The Dynamo backend that exchanges sites in a graph above autograd.

Dynamo traces a model into graphs of PyTorch calls; each is handed to a :class:`Rewriter`, which runs the audit's own
rules over it, lets a chooser say what becomes of each site, and gives back the graph with calls of replacements in it.
What it gives back runs eagerly: autograd records the replacements as it would record what they replace.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor
from torch.autograd.graph import saved_tensors_hooks

from auditor.collect.capture import Captured, capture
from auditor.engine.assemble import home_of
from auditor.engine.claims import claim
from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.patching.calls import Proposal, nodes_of
from auditor.patching.exchange import code_of, drop_idle_casts, exchange
from auditor.patching.hooks import Hooks
from auditor.patching.lead import lead_to
from auditor.patching.opened import open_attentions, open_dropouts
from auditor.patching.patch_site import PatchSite, SiteKey, fingerprint
from auditor.patching.places import place
from auditor.patching.proposals import proposals
from auditor.patching.recompute import take_checkpoints
from auditor.patching.region import FxRegion, Unreachable, as_module, check_roundings, fx_regions, tensor_inputs
from auditor.patching.site import SiteView
from auditor.patching.tracing import traced_code
from auditor.patching.writes import OpenedWrites


class Chooser(Protocol):
    """Says which proposal a site gets."""

    def passes_over(self, key: SiteKey) -> str:
        """Why the site is not even looked at; "" for one that is. What fits it takes long to find out."""

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
    runs: int = 0
    """Calls of the graph."""


class Rewriter:
    """A backend for ``torch.compile``. ``frames`` tells what it saw, in order.

    ``path`` is where the compiled module stands in the model; module names in what it sees begin with it. Hooks of
    ``model`` keep sites apart. What ``keep`` turns away is suppressed: its kernels are left alone.
    """

    def __init__(
        self, rules: Sequence[Rule], chooser: Chooser, path: str = "", model: nn.Module | None = None,
        keep: Callable[[Candidate], bool] | None = None,
    ) -> None:  # fmt: skip
        self.keep = keep
        # What a detector finds is mended in the script (an optimizer's argument, a graph), by no kernel in a model.
        self.rules = [rule for rule in rules if rule.detect is None]
        self.chooser, self.path, self.model = chooser, path, model
        self.frames: list[Frame] = []
        self.codes: set[types.CodeType] = set()
        """The functions whose graphs these are."""
        self.undoing: list[Callable[[], None]] = []
        """What gives the live model back what replacements changed of it."""

    @property
    def sites(self) -> list[PatchSite]:
        return [site for frame in self.frames for site in frame.sites]

    def restore(self) -> None:
        """Give the live model back what replacements changed of it: where its weights lie. May be called twice."""
        while self.undoing:
            self.undoing.pop()()

    def __call__(self, module: fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        frame = Frame([], [], torch.is_grad_enabled())
        self.frames.append(frame)
        self.codes |= {code for code in (traced_code(),) if code is not None}
        with saved_tensors_hooks(_as_it_is, _as_it_is):  # a checkpoint that the call is in counts what is saved
            call = self._rewritten(module, frame)

        def run(*inputs: Any) -> Any:
            frame.runs += 1
            return call(*inputs)

        return run

    def _rewritten(self, module: fx.GraphModule, frame: Frame) -> Callable[..., Any]:
        """The graph with sites exchanged; as it is where that fails. Graphs within it are looked at by themselves."""
        for body in take_checkpoints(module):
            self._rewrite_inner(body, frame)
        before = len(frame.sites)
        untouched = code_of(module)
        try:
            self._rewrite(module, frame)
        except Exception as error:  # of ours, or an op's without fake implementation: the model must run all the same
            frame.failure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            for site in frame.sites[before:]:
                site.chosen, site.call, site.reason = None, None, f"its graph was left alone: {frame.failure}"
            return untouched
        if not any(site.chosen for site in frame.sites[before:]):
            return untouched
        module.graph.lint()
        module.recompile()
        return module.forward

    def _rewrite_inner(self, body: fx.GraphModule, frame: Frame) -> None:
        """A graph that is checkpointed. ``checkpoint`` is given its forward."""
        inner = Frame([], [], frame.grad)
        call = self._rewritten(body, inner)
        body.__dict__["forward"] = call
        frame.sites += inner.sites
        frame.refused += inner.refused
        frame.failure = frame.failure or inner.failure

    def _rewrite(self, module: fx.GraphModule, frame: Frame) -> None:
        fakes = [node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"]
        mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
        if mode is None:
            return
        if self.model is not None:
            place(module.graph, self.model)
        writes = OpenedWrites(module.graph)
        open_attentions(module.graph)
        open_dropouts(module.graph)
        captured = capture(module, fakes, mode)
        drop_idle_casts(module.graph, captured)
        canonical = Canonical(captured.graph)
        claims = claim(canonical, self.rules, keep=self.keep)
        frame.refused += [(rule.id, refusal.reason, refusal.at.module) for rule, refusal in claims.refused]
        seen: Counter[tuple[str, str, str]] = Counter()
        hooks = Hooks(self.model)

        def look(candidates: Sequence[Candidate]) -> list[tuple[Candidate, _Found]]:
            return [(c, self._look(captured, canonical, c, seen, hooks)) for c in candidates]

        looked = look(claims.sites)
        looked += look(_second_choice(canonical, self.rules, looked, self.keep))
        frame.sites += [site for _, found in looked for site, _ in found]
        for _, found in looked:
            for site, region in found:
                if region is not None:
                    self._apply(module, captured, site, region)
        writes.close()

    def _look(
        self, captured: Captured, canonical: Canonical, candidate: Candidate, seen: Counter[tuple[str, str, str]],
        hooks: Hooks,
    ) -> _Found:  # fmt: skip
        """The sites of the FX graph that a site of the op graph is, each with the region to exchange."""
        home = home_of(candidate.region.ops).module
        refused = PatchSite(SiteKey(candidate.rule.id, self._module(home), "", 0), candidate.region.kernels)
        try:
            hooks.check(op.module for op in candidate.region.ops)
            regions = fx_regions(captured, canonical, candidate)
            return [(self._site(captured, canonical, region, seen), region) for region in regions]
        except Unreachable as refusal:
            refused.reason = str(refusal)
            return [(refused, None)]

    def _site(
        self, captured: Captured, canonical: Canonical, region: FxRegion, seen: Counter[tuple[str, str, str]]
    ) -> PatchSite:
        among = set(region.members)
        home = home_of(op for op in region.site.region.ops if captured.node_of[op.index] in among).module
        function = as_module(region, captured)
        inputs = tuple(captured.results[node] for node in tensor_inputs(region, captured))
        _check_plain(inputs)
        check_roundings(region, captured)
        name = (region.site.rule.id, self._module(home), fingerprint(function, inputs))
        key = SiteKey(*name, seen[name])
        seen[name] += 1
        site = PatchSite(key, region.kernels, function, inputs)
        site.reason = self.chooser.passes_over(key)
        if site.reason:
            return site
        site.proposals, site.declined = proposals(SiteView(captured, canonical, region, self.model), function)
        site.reason = "" if site.proposals else site.declined
        named = [node for p in site.proposals for node in nodes_of((p.args, p.kwargs))]
        try:
            site.lead = lead_to(region, tensor_inputs(region, captured), named, captured)
        except Unreachable as refusal:  # what reads further up can't be tried then; the other proposals can
            site.declined = "; ".join(filter(None, (site.declined, str(refusal))))
        return site

    def _module(self, path: str) -> str:
        return ".".join(part for part in (self.path, path) if part)

    def _apply(self, module: fx.GraphModule, captured: Captured, site: PatchSite, region: FxRegion) -> None:
        nodes = tensor_inputs(region, captured)
        chosen, site.reason = self.chooser.choose(site, nodes) if site.proposals else (None, site.reason)
        if chosen is None or site.function is None:
            return
        try:
            undo = None if chosen.prepare is None else chosen.prepare()
        except Unreachable as refusal:
            site.reason = str(refusal)
            return
        self.undoing += [] if undo is None else [undo]
        try:
            site.call = exchange(module.graph, captured, region, chosen, nodes, site.function)
            site.chosen = chosen
        except Unreachable as refusal:
            site.reason = str(refusal)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


_Found = list[tuple[PatchSite, FxRegion | None]]


def _second_choice(
    canonical: Canonical, rules: Sequence[Rule], looked: Sequence[tuple[Candidate, _Found]],
    keep: Callable[[Candidate], bool] | None,
) -> list[Candidate]:  # fmt: skip
    """What other rules find in the kernels of patterns that nothing computes: the softmax of attention with dropout."""
    lost, held = set[frozenset[int]](), set[int]()
    for candidate, found in looked:
        members = frozenset(op.index for op in candidate.region.ops)
        if candidate.match is not None and not any(site.proposals for site, _ in found):
            lost.add(members)
        else:
            held |= members
    if not lost:
        return []
    again = claim(
        canonical, rules, keep=keep, possible=lambda c: frozenset(op.index for op in c.region.ops) not in lost
    )
    return [c for c in again.sites if held.isdisjoint(op.index for op in c.region.ops)]


def _check_plain(inputs: Iterable[Tensor]) -> None:
    """Raises Unreachable for a tensor with ways of its own: what a kernel would read are not its numbers."""
    for tensor in inputs:
        if tensor.is_quantized:
            raise Unreachable(f"it reads a quantised tensor ({tensor.dtype})")
        if type(tensor) not in (FakeTensor, Tensor, nn.Parameter):
            raise Unreachable(f"it reads a {type(tensor).__name__}, a kind of tensor of its own")
