"""The op graph of an FX graph: each of its nodes is run on fake tensors, and what the dispatcher calls is written down.

The FX graph is the one that Dynamo makes *above* autograd (``torch.rsqrt``, ``x.pow(2)``, ``F.linear``); the op graph
holds what a profile of it would: dispatched ATen ops. Each op knows the node that it comes from, so what the rules
find in the op graph can be exchanged in the FX graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from auditor.collect.arguments import Decoded, TensorRef
from auditor.collect.builder import Call, GraphBuilder
from auditor.collect.contexts import Context
from auditor.collect.dispatched import METADATA_IN_PLACE, bare, is_view, launches_nothing, namespace
from auditor.graph.model import Kernel, Op, OpGraph, Source, Value

SHORT = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.complex32: "c32", torch.complex64: "c64", torch.complex128: "c128", torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}  # fmt: skip
"""dtypes by the short names of the op graph."""


@dataclass(slots=True)
class Captured:
    """An op graph and the FX graph that it comes from."""

    graph: OpGraph
    fx_graph: fx.Graph
    node_of: list[fx.Node] = field(default_factory=list)
    """By op index: the node that called the op."""
    values: dict[fx.Node, tuple[Value | None, ...]] = field(default_factory=dict)
    """The tensors that a node returned, in order of the leaves of its result; None for what is no tensor."""
    results: dict[fx.Node, Any] = field(default_factory=dict)
    """What a node returned: fake tensors, symbolic sizes, or containers of them."""

    def ops_of(self, node: fx.Node) -> list[Op]:
        """The ops that ``node`` called."""
        return self._ops.get(node, [])

    def exchange(self, old: fx.Node, new: fx.Node) -> None:
        """``new`` stands where ``old`` was, and returns the same."""
        self.results[new], self.values[new] = self.results[old], self.values[old]
        self._exchanged[old] = new

    def current(self, node: fx.Node) -> fx.Node:
        """The node that stands where ``node`` was."""
        while node in self._exchanged:
            node = self._exchanged[node]
        return node

    _ops: dict[fx.Node, list[Op]] = field(default_factory=dict)
    _exchanged: dict[fx.Node, fx.Node] = field(default_factory=dict)


def capture(module: fx.GraphModule, inputs: Sequence[Any], fake_mode: Any) -> Captured:
    """Run ``module`` on the fake ``inputs`` of ``fake_mode`` and write down the ops it dispatches.

    Sizes that are symbolic stay so in ``results``; the op graph has them as at the call that was traced.

    Raises:
        Exception: what a node raises on fake tensors (an op without a fake implementation, a data-dependent size).
    """
    recording = _Recording(module)
    with torch.no_grad() if not torch.is_grad_enabled() else nullcontext(), fake_mode, _Ops(recording):
        recording.run(*inputs)
    return recording.captured


class _Recording(fx.Interpreter):
    """Runs the nodes one by one, and keeps every tensor alive: a freed one would give its storage's name to another."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._builder = GraphBuilder()
        self.captured = Captured(self._builder.graph, module.graph)
        self._alive: list[Any] = []
        self._context = Context()
        self._node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self._node, self._context = n, _context(n)
        # What an opaque function calls is no part of this graph; Dynamo wrote down what it returns.
        result = n.meta["example_value"] if getattr(n.target, "opaque", False) else super().run_node(n)
        leaves = _pytree.tree_leaves(result)
        self._alive.append(leaves)
        if n.op == "output":
            self._builder.escape([self._decoded(leaf) for leaf in leaves if isinstance(leaf, Tensor)], self._context)
        else:
            self.captured.values[n] = tuple(self._value(leaf) for leaf in leaves)
            self.captured.results[n] = result
        return result

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An op was called below autograd."""
        if self._node is None or self._node.op in ("placeholder", "output", "get_attr"):
            return
        schema = func._schema
        if namespace(schema.name) == "prim":  # asks for a device or a layout
            return
        given = [
            args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in enumerate(schema.arguments)
        ]
        self._alive.append((given, result))
        inputs = tuple(self._decoded(argument) for argument in given)
        name = schema.name.replace("::", ".")
        writes = [i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
        if bare(name) in METADATA_IN_PLACE:
            writes = []
        results = result if isinstance(result, (tuple, list)) else (result,)
        outputs = tuple(self._decoded(leaf) for leaf in results)
        op = self._builder.add(Call(name, schema.overload_name, inputs, outputs, frozenset(writes)), self._context)
        self.captured.node_of.append(self._node)
        self.captured._ops.setdefault(self._node, []).append(op)
        if not launches_nothing(name) and not is_view(schema.name, str(schema)):
            op.kernels = (Kernel(bare(name), 0.0, 0.0),)

    def _value(self, leaf: Any) -> Value | None:
        ref = self._decoded(leaf) if isinstance(leaf, Tensor) else None
        return self._builder.read(ref) if isinstance(ref, TensorRef) else None

    def _decoded(self, argument: Any) -> Decoded:
        if isinstance(argument, Tensor):
            return _reference(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(self._decoded(item) for item in argument)
        if isinstance(argument, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            number: int | float | bool = hint(argument)
            return number
        if argument is None or isinstance(argument, (bool, int, float, complex, str)):
            return argument
        return str(argument)  # a dtype, a device, a memory format


class _Ops(TorchDispatchMode):
    def __init__(self, recording: _Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._recording.dispatched(func, args, kwargs or {}, result)
        return result


def hint(number: Any) -> Any:
    """The number that a symbolic one stood for when it was traced; any other as it is."""
    if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        known = number.node.hint
        return 1 if known is None else known
    return number


def _reference(tensor: Tensor) -> TensorRef:
    return TensorRef(
        id(tensor), tensor.untyped_storage()._cdata, hint(tensor.storage_offset()), tensor.element_size(),
        str(tensor.device), SHORT.get(tensor.dtype, str(tensor.dtype)), tuple(map(hint, tensor.shape)),
        tuple(map(hint, tensor.stride())),
    )  # fmt: skip


_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)')


def _context(node: fx.Node) -> Context:
    stack = node.meta.get("nn_module_stack") or {}
    path, class_ = next(reversed(stack.values()), ("", ""))
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    source = Source(frames[-1][0], int(frames[-1][1]), frames[-1][2]) if frames else None
    name = class_ if isinstance(class_, str) else class_.__name__
    return Context(module=module_path(str(path)), module_class=name.rsplit(".", 1)[-1], source=source)


def module_path(path: str) -> str:
    """``model.layers.0.mlp`` of Dynamo's ``L['self'].model.layers[0].mlp``, relative to the compiled module."""
    path = re.sub(r"^[LG]\['[^']*'\](\[\d+\])?(\._modules)?", "", path)
    path = re.sub(r"\._modules(?=\[)", "", path)
    path = re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", path)
    return path.lstrip(".")
