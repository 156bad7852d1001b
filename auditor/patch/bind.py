"""Tier 1: a module that *is* one site gets a forward of its own that makes the one call, with no tracing at run time.

Whether it is one is found by tracing its forward once, on the first call: the graph must be the site and nothing else.
The forward that is then bound to the instance takes the same arguments. A call that is unlike the one that was traced
(other dtypes, autocast, arguments left out or added) runs the module's own forward.
"""

from __future__ import annotations

import inspect
import operator
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from auditor.engine.rules import Rule
from auditor.patch.calls import SiteCall
from auditor.patch.rewrite import Chooser, PatchSite, Rewriter

PARAMETER = re.compile(r"L\['(\w+)'\]\._(?:parameters|buffers)\['(\w+)'\]$")
ARGUMENT = re.compile(r"L\['(\w+)'\]$")


@dataclass(frozen=True)
class _Operand:
    """Where an operand of the call comes from: an argument of forward, or a parameter of the module."""

    argument: str | None
    attribute: str | None
    dtype: torch.dtype


class BoundModule:
    """One module of a model, with a forward of its own until :meth:`undo`."""

    def __init__(self, path: str, module: nn.Module, rules: Sequence[Rule], chooser: Chooser) -> None:
        self.path, self.module = path, module
        self.rewriter = Rewriter(rules, chooser, path)
        self.reason = ""
        """Why the module keeps its own forward."""
        self._forward: Callable[..., Any] | None = None

    @property
    def sites(self) -> list[PatchSite]:
        """The site that the module is, once it was called."""
        return self.rewriter.sites

    def enable(self) -> None:
        """Bind the forward; until the first call it is one that finds out what to bind."""
        if self.module.__dict__.get("forward") is self._forward is not None:
            return
        if "forward" in self.module.__dict__:
            self.reason = "its forward is replaced already, by somebody else"
            return
        if not self.reason:
            self._forward = self._forward or types.MethodType(self._first_call(), self.module)
            self.module.__dict__["forward"] = self._forward

    def undo(self) -> None:
        """The module's own forward again."""
        if self._forward is not None and self.module.__dict__.get("forward") is self._forward:
            del self.module.__dict__["forward"]

    def _first_call(self) -> Callable[..., Any]:
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if module is not self.module:  # a copy, which was made before the first call
                return type(module).forward(module, *args, **kwargs)
            self.undo()
            self._forward = None
            bound = self._bound(args, kwargs)
            if bound is not None:
                self._forward = types.MethodType(bound, module)
                module.__dict__["forward"] = self._forward
            return module.forward(*args, **kwargs)

        return forward

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        try:
            graph = _traced(self.module, self.rewriter, args, kwargs)
        except Exception as error:  # whatever Dynamo raises on a forward that it can't trace
            self.reason = f"it cannot be traced: {type(error).__name__}"
            return None
        made = None if graph is None else _one_call(graph)
        if made is None:
            self.reason = self.reason or next((s.reason for s in self.sites if s.reason), "it is more than one site")
            for site in self.sites:
                site.chosen, site.call, site.reason = None, None, self.reason
            return None
        call, operands, constants = made
        return _forward(self.module, call, operands, constants)


def _traced(module: nn.Module, rewriter: Rewriter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Graph | None:
    """The graph of the whole forward with sites exchanged; None where it is several graphs."""
    from torch._dynamo import config

    graphs: list[fx.Graph] = []

    def backend(traced: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        call = rewriter(traced, inputs)
        graphs.append(traced.graph)
        return call

    with config.patch(specialize_float=True):
        result = torch.compile(module.forward, backend=backend, dynamic=True)(*args, **kwargs)
    return graphs[0] if len(graphs) == 1 and isinstance(result, Tensor) else None


def _one_call(graph: fx.Graph) -> tuple[SiteCall, list[_Operand | None], dict[str, Any]] | None:
    """The call that a graph consists of, where its operands come from, and its constants; None if there is more."""
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    output = next(node for node in graph.nodes if node.op == "output")
    if len(calls) != 1 or not isinstance(calls[0].target, SiteCall) or output.args[0] != (calls[0],):
        return None
    operands: list[_Operand | None] = []
    for argument in calls[0].args:
        operand = _operand(argument)
        if argument is not None and operand is None:
            return None
        operands.append(operand)
    if any(isinstance(value, fx.Node) for value in calls[0].kwargs.values()):
        return None
    return calls[0].target, operands, dict(calls[0].kwargs)


def _operand(argument: Any) -> _Operand | None:
    if not isinstance(argument, fx.Node) or argument.op != "placeholder":
        return None
    source = getattr(argument, "_dynamo_source", None)
    name = str(getattr(source, "name", ""))
    fake = argument.meta.get("example_value")
    if not isinstance(fake, Tensor):
        return None
    parameter, plain = PARAMETER.match(name), ARGUMENT.match(name)
    if parameter:
        return _Operand(None, parameter[2], fake.dtype)
    return _Operand(plain[1], None, fake.dtype) if plain else None


def _forward(
    module: nn.Module, call: SiteCall, operands: Sequence[_Operand | None], constants: dict[str, Any]
) -> Callable[..., Any]:
    """A forward that makes the call where it is called as when it was traced, and the module's own elsewhere."""
    own = type(module).forward
    names = list(inspect.signature(own).parameters)[1:]
    needed = [o.argument for o in operands if o is not None and o.argument is not None]
    dtypes = tuple(o.dtype for o in operands if o is not None and o.argument is not None)
    numbers = {
        name: value for name, value in vars(module).items() if isinstance(value, (int, float)) and name[0] != "_"
    }
    read = operator.attrgetter(*numbers) if numbers else None
    values = read(module) if read is not None else None

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        alike = (
            len(given) == len(needed)
            and all(name in given for name in needed)
            and tuple(given[name].dtype for name in needed) == dtypes
            and (read is None or read(self) == values)
            and not torch.is_autocast_enabled(given[needed[0]].device.type)
            and not torch.compiler.is_compiling()
        )
        if not alike:
            return own(self, *args, **kwargs)
        inputs = [
            None if o is None else given[o.argument] if o.argument is not None else getattr(self, str(o.attribute))
            for o in operands
        ]
        return call(*inputs, **constants)

    return forward
