"""The one call that a module is, and what tells calls of the module apart."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from auditor.collect.device import autocast_dtype
from auditor.patching.calls import SiteCall

PARAMETER = re.compile(r"L\['module'\]\._(?:parameters|buffers)\['(\w+)'\]$")
POSITION = re.compile(r"L\['args'\]\[(\d+)\]$")
KEYWORD = re.compile(r"L\['kwargs'\]\['(\w+)'\]$")
_OF_ANY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)

Form = Callable[..., Any]
Read = Callable[[Mapping[str, Any]], Any]


class Signature:
    """What a form depends on: which arguments are given, their kinds, and the module's own settings."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
        self.names = tuple(p.name for p in parameters)
        loose = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
        self.unfit = "its forward takes any number of arguments" if loose else ""
        self._held = (*module._parameters, *module._buffers)
        settings = [name for name in vars(module) if name not in _OF_ANY_MODULE]
        self._settings = operator.attrgetter("training", *settings) if settings else operator.attrgetter("training")

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Equal for calls that one form serves; None for a call that none serves."""
        if not args and not kwargs:
            return None
        given = (*args, *kwargs.values())
        if not all(type(argument) in (Tensor, nn.Parameter) for argument in given):
            return None
        held = {**self._module._parameters, **self._module._buffers}
        kinds = tuple([(t.dtype, t.dim()) for t in given])
        own = tuple([None if (p := held.get(name)) is None else (type(p), p.dtype) for name in self._held])
        kind = given[0].device.type
        cast = autocast_dtype(kind)
        settings = self._settings(self._module)
        return (len(args), tuple(kwargs), kinds, own, kind, cast, _comparable(settings), torch.is_grad_enabled())


def _comparable(settings: Any) -> object:
    """Settings by value where they are plain, else by which object they are."""
    settings = settings if isinstance(settings, tuple) else (settings,)
    return tuple([value if _is_plain(value) else id(value) for value in settings])


def _is_plain(value: Any) -> bool:
    """Whether it is as good as what equals it; of a tuple, whether all of it is."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def form_of(module: nn.Module, graph: fx.Graph, names: Sequence[str]) -> Form | None:
    """The call that ``graph`` consists of, as a function of the arguments of forward; None where there is more in it.

    ``names``: of the arguments of forward, in order.
    """
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    output = next(node for node in graph.nodes if node.op == "output")
    if len(calls) != 1 or not isinstance(calls[0].target, SiteCall) or output.args[0] != (calls[0],):
        return None
    call, inputs, operands = calls[0].target, calls[0].args[0], calls[0].args[1:]
    constants: dict[str, Any] = dict(calls[0].kwargs)
    if any(isinstance(value, (fx.Node, list, tuple, dict)) for value in constants.values()):
        return None
    read_inputs = [_read(module, node) for node in inputs]
    read_operands = [_read(module, node) for node in operands]
    if None in read_inputs or None in read_operands:
        return None

    def form(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        wanted = [read(given) for read in read_operands if read is not None]
        return call(tuple([read(given) for read in read_inputs if read is not None]), *wanted, **constants)

    return form


def _read(module: nn.Module, argument: Any) -> Read | None:
    """How an operand is got at: an argument of forward, a parameter of the module, or a constant."""
    if not isinstance(argument, fx.Node):
        return None if isinstance(argument, (list, tuple, dict)) else lambda _given: argument
    name = str(getattr(getattr(argument, "_dynamo_source", None), "name", ""))
    if argument.op != "placeholder" or not isinstance(argument.meta.get("example_value"), Tensor):
        return None
    if own := PARAMETER.match(name):
        attribute = own[1]
        return lambda _given: getattr(module, attribute)
    if keyword := KEYWORD.match(name):
        return operator.itemgetter(keyword[1])
    if place := POSITION.match(name):
        return operator.itemgetter(list(inspect.signature(type(module).forward).parameters)[1:][int(place[1])])
    return None
