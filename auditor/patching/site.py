"""What a rule matched, in terms of the FX graph: which node is ``x``, which number ``c_eps``, what is read outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from auditor.collect.capture import Captured
from auditor.engine.match import Match
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op
from auditor.graph.nodes import CValue, Node
from auditor.patching.places import live_tensor
from auditor.patching.region import FxRegion, Unreachable


class SiteView:
    """A pattern's names as nodes of the FX graph. ``model``: the live one, where that is known."""

    def __init__(
        self, captured: Captured, canonical: Canonical, region: FxRegion, model: nn.Module | None = None
    ) -> None:  # fmt: skip
        self.captured, self.canonical, self.region, self.model = captured, canonical, region, model
        self._match: Match | None = region.site.match
        self._calls = {c.name: n for c, n in self._match.nodes.items()} if self._match else {}
        self._roots: dict[int, list[fx.Node]] = {}
        for node in region.inputs:
            if isinstance(captured.results[node], Tensor):
                self._roots.setdefault(id(self._root(node)), []).append(node)

    def has(self, name: str) -> bool:
        """Whether the pattern that matched has a call, a tensor or a number of this name."""
        match = self._match
        return name in self._calls or (match is not None and (name in match.variables or name in match.constants))

    def call(self, *names: str) -> Node:
        """The canonical node that the call was laid over which has one of ``names`` in the pattern."""
        return self._calls[next((name for name in names if name in self._calls), names[0])]

    def tensor(self, name: str) -> fx.Node | None:
        """The input of the region that the pattern's tensor ``name`` is; None where the pattern has none.

        Raises:
            Unreachable: the region reads it in no form.
        """
        content = self._match.variables.get(name) if self._match else None
        return None if content is None else self.input_of(content)

    def input_of(self, content: CValue) -> fx.Node:
        """The input of the region that shows ``content``, as the region reads it.

        Raises:
            Unreachable: the region reads it in no form, or in several.
        """
        found = self._roots.get(id(content.root), [])
        if not found:
            raise Unreachable(f"{content.value!r} is not among what the nodes read")
        return found[0]

    def operand(self, argument: Any) -> fx.Node | None:
        """An argument of a canonical node as an input of the region; None for None."""
        return self.input_of(argument) if type(argument) is CValue else None

    def number(self, name: str) -> float | None:
        """The constant ``name``, None where the pattern has none.

        Raises:
            Unreachable: it is a tensor of one element, whose value is not known here.
        """
        value = self._match.constants.get(name) if self._match else None
        if value is None:
            return None
        if not isinstance(value, (int, float)):
            raise Unreachable(f"{name} is a tensor, not a number")
        return value

    def results(self, *contents: CValue) -> tuple[int, ...]:
        """For each output of the region which of ``contents`` it shows.

        Raises:
            Unreachable: something else of the region is read outside.
        """
        order = {id(content.root): i for i, content in enumerate(contents)}
        found = [order.get(id(self._root(node))) for node in self.region.outputs]
        for node, place in zip(self.region.outputs, found, strict=True):
            if place is None:
                raise Unreachable(f"{node.name} is read outside, and the replacement does not return it")
        return tuple(place for place in found if place is not None)

    def out(self, name: str) -> CValue:
        """The content that the call ``name`` makes."""
        return self._calls[name].outs[0]

    def fake(self, node: fx.Node) -> Tensor:
        """The fake tensor that ``node`` returned."""
        value = self.captured.results[node]
        assert isinstance(value, Tensor)
        return value

    def node_of(self, op: Op) -> fx.Node:
        """The node that called ``op``."""
        return self.captured.node_of[op.index]

    def module_of(self, weight: fx.Node) -> nn.Module:
        """The live module whose ``weight`` the graph is given as this one.

        Raises:
            Unreachable: the graph computes it, or no module of the model has it.
        """
        tensor = live_tensor(weight)
        for module in () if tensor is None or self.model is None else self.model.modules():
            if getattr(module, "weight", None) is tensor:
                return module
        raise Unreachable(f"{weight.name} is the weight of no module")

    def content(self, node: fx.Node) -> CValue | None:
        """What ``node`` shows, before casts and copies. None where it returns no tensor, or several."""
        return self._root(node) if len(self.captured.values[node]) == 1 else None

    def variable(self, name: str) -> CValue | None:
        """The content that the pattern's tensor ``name`` was bound to; None where the pattern has none."""
        return self._match.variables.get(name) if self._match else None

    def inside(self) -> tuple[Node, ...]:
        """The canonical nodes that the pattern was laid over."""
        return tuple(self._match.nodes.values()) if self._match else ()

    def sink(self) -> CValue:
        """The content of the final result."""
        assert self._match is not None
        return self._match.sink.outs[0]

    def members(self, *targets: Any) -> Iterator[fx.Node]:
        """Members of the region that call one of ``targets``."""
        return (node for node in self.region.members if node.target in targets)

    def low_precision(self) -> bool:
        """Whether something that goes in or comes out has fewer than 32 bits: then roundings between matter."""
        nodes = (*self.region.inputs, *self.region.outputs)
        values = (self.captured.results[node] for node in nodes)
        return any(isinstance(v, Tensor) and v.dtype in (torch.float16, torch.bfloat16) for v in values)

    def _root(self, node: fx.Node) -> CValue | None:
        value = self.captured.values[node][0]
        return None if value is None else self.canonical.cvalue(value).root
