"""The graph of a function, and why it can't be one elementwise kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree

from fused_replacements._compiled import _symbolic, leaves, with_leaves

Autocast = tuple[str, torch.dtype] | None
CONSTANTS: Final = (bool, int, float, str, type(None), torch.dtype)

_VIEWS: Final = frozenset(
    {
        "expand", "view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "permute", "transpose",
        "t", "slice", "select", "narrow", "alias", "split", "split_with_sizes", "unbind",
    }
)  # fmt: skip
"""Other ways to look at a tensor: they move nothing, and a kernel reads through them."""
_COPIES: Final = frozenset({"clone", "_to_copy", "lift_fresh_copy", "lift_fresh", "contiguous", "convert_element_type"})
_CONSTANT_TENSORS: Final = frozenset({"full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "scalar_tensor"})
"""Tensors of one value: a number to the kernel."""
_ROWS: Final = frozenset(
    {
        "_softmax", "_log_softmax", "_safe_softmax", "native_layer_norm", "native_group_norm", "_fused_rms_norm",
        "norm", "logsumexp", "linalg_vector_norm", "std", "std_mean", "var", "var_mean", "aminmax", "cat", "stack",
        "roll", "flip", "repeat", "constant_pad_nd", "arange", "tril", "triu", "_softmax_backward_data",
        "_log_softmax_backward_data", "native_layer_norm_backward", "slice_backward", "select_backward", "unfold",
        "slice_scatter", "select_scatter",
    }
)  # fmt: skip
"""What a kernel that walks whole rows can do besides: statistics of rows, and writing into a part of a tensor."""
_HARMLESS: Final = _VIEWS | _COPIES | _CONSTANT_TENSORS | {"sym_size", "sym_stride", "sym_numel"}


class NotElementwise(Exception):  # noqa: N818 - nothing went wrong, a question is answered
    """A function can't be one kernel. Its text is a clause that says why."""


@dataclass(frozen=True)
class Traced:
    """A function of tensors and numbers as a graph of ATen ops on symbolic sizes."""

    graph: torch.fx.Graph
    outputs: tuple[Any, ...]
    structure: _pytree.TreeSpec

    @property
    def shifts(self) -> bool:
        """Whether it reads a tensor at other places than it writes: rolled, or from its end."""
        return any(node.op == "call_function" and _name(node.target) in ("roll", "flip") for node in self.graph.nodes)

    @property
    def output_nodes(self) -> list[torch.fx.Node]:
        found: Any = next(node for node in self.graph.nodes if node.op == "output").args[0]
        return list(found)


def chain_graph(
    fn: Callable[..., Any], arguments: Sequence[Any], autocast: Autocast = None, *, rows: bool = False
) -> Traced:
    """The graph of an elementwise ``fn``. Reads shapes and dtypes of tensors, no values.

    Raises:
        NotElementwise: ``fn`` of these arguments can't be one kernel.
    """
    for place, argument in enumerate(arguments):
        if not isinstance(argument, (Tensor, *CONSTANTS)):
            raise NotElementwise(f"argument {place} is a {type(argument).__name__}, neither a tensor nor a number")
    if not leaves(arguments):
        raise NotElementwise("it has no tensor among its arguments")
    try:
        trace = _in_clean_thread(lambda: _traced(fn, arguments, autocast, {}))
    except Exception as error:  # whatever the function raises, or the tracer about it
        raise NotElementwise(_why_untraceable(error)) from error
    reason = _of_outputs(trace)
    if reason is None and _offenders(trace.graph, rows):
        reason = _of_offenders(trace, fn, arguments, autocast, rows)
    reason = reason or _of_work(trace) or _of_rounding(trace)
    if reason is not None:
        raise NotElementwise(reason)
    return trace


def _in_clean_thread(work: Callable[[], Traced]) -> Traced:
    """``work`` without the modes, autocast and gradients of the caller."""
    with ThreadPoolExecutor(1, "fused-replacements-trace") as pool:
        return pool.submit(work).result()


def _traced(
    fn: Callable[..., Any], arguments: Sequence[Any], autocast: Autocast, decompositions: dict[Any, Any]
) -> Traced:
    from torch.fx.experimental.proxy_tensor import make_fx

    results: list[Any] = []

    def flat(*tensors: Tensor) -> list[Any]:
        with nullcontext() if autocast is None else torch.autocast(*autocast, cache_enabled=False):
            results[:] = [fn(*with_leaves(arguments, tensors))]
        return [value for value in _pytree.tree_leaves(results[0]) if isinstance(value, Tensor)]

    mode, fakes = _symbolic([_meta(tensor) for tensor in leaves(arguments)])
    with torch.no_grad(), mode:
        graph = make_fx(flat, decomposition_table=decompositions)(*fakes).graph
    values, structure = _pytree.tree_flatten(results[0])
    return Traced(graph, tuple(values), structure)


def _meta(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, strides, dtype and kind of device, which holds nothing: fake ones are taken too."""
    from torch._subclasses import FakeTensor

    if not isinstance(tensor, FakeTensor):
        return tensor
    shape, strides = [int(size) for size in tensor.shape], [int(stride) for stride in tensor.stride()]
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")


def _why_untraceable(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    if "FakeTensors" in text or "fake mode" in text.lower():
        return "it reads a tensor that is not one of its arguments"
    if "DataDependent" in name or "data-dependent" in text.lower() or "data dependent" in text.lower():
        return "what it does depends on values"
    return f"its graph can't be traced ({name}: {text[:160]})"


def _of_outputs(trace: Traced) -> str | None:
    if not trace.outputs:
        return "it returns nothing"
    for value in trace.outputs:
        if not isinstance(value, Tensor):
            return f"it returns a {type(value).__name__} beside tensors"
    if len(set(trace.output_nodes)) < len(trace.output_nodes):
        return "it returns one tensor twice"
    return None


def _of_work(trace: Traced) -> str | None:
    """Every output has to be computed: an input, or a view of one, is no kernel's output."""
    for output in trace.output_nodes:
        node: Any = output
        while node.op == "call_function" and (_name(node.target) in _VIEWS or node.target is operator.getitem):
            node = node.args[0]
        if node.op == "placeholder":
            return "it returns an input as it is"
    return None


def _of_rounding(trace: Traced) -> str | None:
    """A number that is rounded to 16 bits on purpose, and then used in more: the compiler would leave the rounding out.

    What is split in a part that 16 bits hold and the rest would have no rest.
    """
    for node in trace.graph.nodes:
        if node.op == "call_function" and _name(node.target) in _COPIES:
            short, source = _dtype(node), _dtype(node.args[0])
            if short in _SHORT and source in _LONG and any(_dtype(user) in _LONG for user in _readers(node)):
                return f"it rounds to {str(short).removeprefix('torch.')} and goes on with more digits"
    return None


def _readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """What reads the number, through views of it and its negative."""
    for user in node.users:
        if _name(user.target) in _VIEWS | {"neg"} or user.target is operator.getitem:
            yield from _readers(user)
        else:
            yield user


_SHORT: Final = frozenset({torch.float16, torch.bfloat16})
_LONG: Final = frozenset({torch.float32, torch.float64})


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value.dtype if isinstance(value, Tensor) else None


def _of_offenders(
    trace: Traced, fn: Callable[..., Any], arguments: Sequence[Any], autocast: Autocast, rows: bool
) -> str | None:
    """The ops that are not elementwise, unless what the compiler makes of them is (``glu`` is a product of halves)."""
    from torch._inductor.decomposition import select_decomp_table

    offenders = _offenders(trace.graph, rows)
    if any(_name(target) == "_local_scalar_dense" for target in offenders):
        return "what it does depends on values"
    random = [target for target in offenders if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())]
    if random:
        return f"{_listed(random)} draws random numbers, and backward would draw others"
    mutating = [
        target for target in offenders if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable
    ]
    if mutating:
        return f"{_listed(mutating)} writes in place"
    opened = _in_clean_thread(lambda: _traced(fn, arguments, autocast, select_decomp_table()))
    if not _offenders(opened.graph, rows):
        return None
    kind = "elementwise or over rows" if rows else "elementwise"
    return f"{_listed(offenders)} {'is' if len(set(map(_name, offenders))) == 1 else 'are'} not {kind}"


def _offenders(graph: torch.fx.Graph, rows: bool) -> list[Any]:
    calls = [node for node in graph.nodes if node.op == "call_function" and not _is_nothing(node)]
    return [node.target for node in calls if not _in_one_kernel(node.target, rows)]


def _is_nothing(node: torch.fx.Node) -> bool:
    """An empty tensor of no elements: what a batch norm that does not train keeps for its backward."""
    return node.target is torch.ops.aten.empty.memory_format and 0 in node.args[0]  # type: ignore[operator]


def _in_one_kernel(target: Any, rows: bool) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return True  # arithmetic on sizes, and the items of a split
    tags = target.tags
    if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in tags:
        return False
    if rows and (getattr(torch.Tag, "reduction", None) in tags or _name(target) in _ROWS):
        return True
    return torch.Tag.pointwise in tags or _name(target) in _HARMLESS


def _name(target: Any) -> str:
    return target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else str(target)


def _listed(targets: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(target.name()).replace("::", ".") for target in targets))
