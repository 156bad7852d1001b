"""One name and one argument order for each function that ATen can write in several ways.

``normalise_call`` works on a call alone (name and arguments), so recorded ops and the calls in a rule's
pattern go through the same table. What needs the neighbours (``x * sigmoid(x)``) is in
:mod:`auditor.graph.canonical`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auditor.graph.ops import base_name

Call = tuple[str, tuple[Any, ...]]
RankOf = Callable[[Any], int | None]


class ConstantVariable(str):
    """A pattern's ``c_…`` name: stands for any constant, the same one wherever it is repeated."""

    __slots__ = ()


def _get(args: tuple[Any, ...], i: int, default: Any = None) -> Any:
    return args[i] if len(args) > i else default


def _dims(dims: Any, rank: int | None) -> tuple[int, ...] | None:
    """Reduction dims counted from the end, sorted; ``None`` for all of them."""
    if dims is None or dims == ():
        return None
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(sorted(d if d < 0 or rank is None else d - rank for d in dims))


def _dim(dim: Any, rank: int | None) -> Any:
    return dim - rank if isinstance(dim, int) and dim >= 0 and rank is not None else dim


def _alpha(args: tuple[Any, ...]) -> Any:
    """What the second addend is multiplied with: 1 unless the trace says so, and old traces hold no numbers."""
    alpha = _get(args, 2)
    return 1 if alpha is None else alpha


def _add(args: tuple[Any, ...], _: RankOf) -> Call:
    a, b, alpha = args[0], _get(args, 1), _alpha(args)
    if alpha not in (1, 1.0):
        return "add_scaled", (a, b, alpha)
    if type(b) in (int, float) and b == 0:
        return "copy", (a,)
    return "add", (a, b)


def _sub(args: tuple[Any, ...], _: RankOf) -> Call:
    a, b, alpha = args[0], _get(args, 1), _alpha(args)
    if alpha not in (1, 1.0):
        return "add_scaled", (a, b, -alpha)
    if type(b) in (int, float):
        return "add", (a, -b)
    return "sub", (a, b)


def _rsub(args: tuple[Any, ...], _: RankOf) -> Call:
    return "sub", (_get(args, 1), args[0])


def _mul(args: tuple[Any, ...], _: RankOf) -> Call:
    a, b = args[0], _get(args, 1)
    if type(b) in (int, float) and b == 1:
        return "copy", (a,)
    if isinstance(a, str | int | float) and not isinstance(b, int | float):
        a, b = b, a
    return "mul", (a, b)


def _div(args: tuple[Any, ...], _: RankOf) -> Call:
    a, b, rounding = args[0], _get(args, 1), _get(args, 2)
    if rounding:
        return "div_rounded", args
    if isinstance(b, ConstantVariable):
        return "mul", (a, b)
    if type(b) in (int, float) and b != 0:
        return ("copy", (a,)) if b == 1 else ("mul", (a, 1.0 / b))
    return "div", (a, b)


def _pow(args: tuple[Any, ...], _: RankOf) -> Call:
    exponent = _get(args, 1)
    if type(exponent) in (int, float):
        named = {2: "square", -0.5: "rsqrt", 0.5: "sqrt", -1: "reciprocal"}.get(exponent)
        if named:
            return named, (args[0],)
    return "pow", args


def _reduction(kind: str) -> Callable[[tuple[Any, ...], RankOf], Call]:
    def rewrite(args: tuple[Any, ...], rank_of: RankOf) -> Call:
        dims = _get(args, 1)
        if not isinstance(dims, tuple | int) or isinstance(dims, bool):
            dims = None
        return kind, (args[0], _dims(dims, rank_of(args[0])))

    return rewrite


def _variance(kind: str) -> Callable[[tuple[Any, ...], RankOf], Call]:
    def rewrite(args: tuple[Any, ...], rank_of: RankOf) -> Call:
        return kind, (args[0], _dims(_get(args, 1), rank_of(args[0])), _unbiased(_get(args, 2, 1)))

    return rewrite


def _unbiased(correction: Any) -> Any:
    return int(correction) if isinstance(correction, bool | int | float) else correction


def _softmax(kind: str) -> Callable[[tuple[Any, ...], RankOf], Call]:
    """Over the last dim unless the trace says so; old ones hold no numbers."""

    def rewrite(args: tuple[Any, ...], rank_of: RankOf) -> Call:
        dim = _get(args, 1)
        return kind, (args[0], -1 if dim is None else _dim(dim, rank_of(args[0])))

    return rewrite


def _gelu(args: tuple[Any, ...], _: RankOf) -> Call:
    return "gelu", (args[0],)


def _relu(args: tuple[Any, ...], _: RankOf) -> Call:
    return "relu", (args[0],)


def _clamp_min(args: tuple[Any, ...], _: RankOf) -> Call:
    return ("relu", (args[0],)) if _get(args, 1) == 0 else ("clamp_min", args)


def _clamp(args: tuple[Any, ...], rank_of: RankOf) -> Call:
    lower, upper = _get(args, 1), _get(args, 2)
    return _clamp_min((args[0], lower), rank_of) if upper is None else ("clamp", args)


def _vector_norm(args: tuple[Any, ...], rank_of: RankOf) -> Call:
    return "vector_norm", (args[0], _get(args, 1, 2), _dims(_get(args, 2), rank_of(args[0])))


def _cast(args: tuple[Any, ...], _: RankOf) -> Call:
    return "cast", (args[0],)


def _copy(args: tuple[Any, ...], _: RankOf) -> Call:
    return "copy", (args[0],)


def _copy_into(args: tuple[Any, ...], _: RankOf) -> Call:
    return "copy_into", args[:2]


def _joined(kind: str) -> Callable[[tuple[Any, ...], RankOf], Call]:
    def rewrite(args: tuple[Any, ...], rank_of: RankOf) -> Call:
        parts = args[0] if isinstance(args[0], tuple) else (args[0],)
        rank = rank_of(parts[0]) if parts else None
        if rank is not None and kind == "stack":
            rank += 1
        return kind, (parts, _dim(_get(args, 1, 0), rank))

    return rewrite


def _addmm(args: tuple[Any, ...], _: RankOf) -> Call:
    return "addmm", (args[1], args[2], args[0])


def _layer_norm(args: tuple[Any, ...], _: RankOf) -> Call:
    return "layer_norm", (args[0], _get(args, 2), _get(args, 3), _get(args, 4))


def _extremum(kind: str) -> Callable[[tuple[Any, ...], RankOf], Call]:
    """The largest along one dim and where it is, or of all; the larger of two tensors stays as it is."""
    reduction = _reduction(kind)

    def rewrite(args: tuple[Any, ...], rank_of: RankOf) -> Call:
        return reduction(args, rank_of) if isinstance(_get(args, 1), int | tuple | None) else (kind, args)

    return rewrite


def _keep(count: int, kind: str) -> Callable[[tuple[Any, ...], RankOf], Call]:
    def rewrite(args: tuple[Any, ...], _: RankOf) -> Call:
        return kind, args[:count]

    return rewrite


BATCH_NORMS = tuple(
    f"aten.{name}"
    for name in (
        "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_no_update", "batch_norm",
        "batch_norm_elemt",
    )
)  # fmt: skip
BATCH_NORM_BACKWARDS = (
    "aten.native_batch_norm_backward", "aten.cudnn_batch_norm_backward", "aten.miopen_batch_norm_backward",
    "aten.batch_norm_backward",
)  # fmt: skip
"""Two of them take the gradient second: matching tries both orders, for only one of the two can be a gradient."""
GROUP_NORMS = ("aten.native_group_norm", "aten.group_norm", "aiter._groupnorm_run")

_TABLE: dict[str, Callable[[tuple[Any, ...], RankOf], Call]] = {
    "aten.add": _add, "aten.sub": _sub, "aten.subtract": _sub, "aten.rsub": _rsub, "aten.mul": _mul,
    "aten.multiply": _mul, "aten.div": _div, "aten.divide": _div, "aten.true_divide": _div, "aten.pow": _pow,
    "aten.mean": _reduction("mean"), "aten.sum": _reduction("sum"), "aten.amax": _reduction("amax"),
    "aten.amin": _reduction("amin"), "aten.logsumexp": _reduction("logsumexp"), "aten.var": _variance("var"),
    "aten.std": _variance("std"), "aten.var_mean": _variance("var_mean"), "aten.std_mean": _variance("std_mean"),
    "aten._softmax": _softmax("softmax"), "aten.softmax": _softmax("softmax"),
    "aten._safe_softmax": _softmax("softmax"), "aten._log_softmax": _softmax("log_softmax"),
    "aten.log_softmax": _softmax("log_softmax"), "aten.gelu": _gelu, "aten.relu": _relu,
    "aten.clamp_min": _clamp_min, "aten.clamp": _clamp, "aten.clip": _clamp,
    "aten.linalg_vector_norm": _vector_norm, "aten.norm": _vector_norm,
    "aten._to_copy": _cast, "aten.to": _cast, "aten.type_as": _cast,
    "prims.convert_element_type": _cast, "aten.clone": _copy, "aten.contiguous": _copy, "aten.copy": _copy_into,
    "aten.cat": _joined("cat"), "aten.concat": _joined("cat"), "aten.stack": _joined("stack"),
    "aten.addmm": _addmm, "aten.baddbmm": lambda args, _: ("baddbmm", (args[1], args[2], args[0])),
    "aten.native_layer_norm": _layer_norm, "aten.native_dropout": _keep(1, "dropout"),
    "aten.convolution": _keep(3, "convolution"), "aten.linear": _keep(3, "linear"),
    "aten.masked_fill": _keep(3, "masked_fill"), "aten.bernoulli": _keep(1, "bernoulli"),
    "aten._grouped_mm": _keep(2, "_grouped_mm"), "aten.max": _extremum("max"), "aten.min": _extremum("min"),
    "aten._fused_dropout": _keep(1, "dropout"), "aten.native_dropout_backward": _keep(2, "dropout_backward"),
    "aten.__rshift__": _keep(2, "bitwise_right_shift"), "aten.__lshift__": _keep(2, "bitwise_left_shift"),
    "aten._masked_scale": _keep(2, "dropout_backward"),
    "aten._log_softmax_backward_data": _keep(2, "log_softmax_backward"),
    **dict.fromkeys(BATCH_NORMS, _keep(3, "batch_norm")), **dict.fromkeys(GROUP_NORMS, _keep(3, "group_norm")),
    "aten.native_group_norm_backward": _keep(2, "group_norm_backward"),
    **dict.fromkeys(BATCH_NORM_BACKWARDS, _keep(2, "batch_norm_backward")),
}  # fmt: skip

IDENTITY_KINDS = frozenset({"cast", "copy"})
"""Kinds whose result is their input in another dtype or layout: looked through when matching."""


def normalise_call(name: str, args: tuple[Any, ...], rank_of: RankOf) -> Call:
    """The canonical kind and arguments of one call.

    ``rank_of(arg)`` gives the rank of a tensor argument, ``None`` where unknown (a pattern's variable):
    then dims must be written from the end (``-1``).
    """
    base = base_name(name)
    rewrite = _TABLE.get(base)
    if rewrite is not None and args:
        return rewrite(args, rank_of)
    return base.removeprefix("aten."), args
