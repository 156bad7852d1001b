"""Result types of ops in SSA text, so that graphs written by hand need few annotations.

One function per form of op (pointwise, reduction, GEMM, …). They follow the eager CPU kernels; an op that is not
here, or whose result depends on data or device, has to be annotated in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from auditor.graph.layout import VIEWS, Layout, Shape, axis, resolve_shape, views_of
from auditor.graph.model import Arg, Value, contiguous_strides
from auditor.graph.ops import POINTWISE, base_name
from auditor.graph.promotion import broadcast, is_dense, is_floating, pointwise_strides, promote, result_dtype
from auditor.graph.signatures import DTYPE_CODES, signature


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


class TensorType(NamedTuple):
    dtype: str
    layout: Layout


class Results(NamedTuple):
    """``aliases``: they are views of the first argument, no data moves."""

    types: tuple[TensorType, ...]
    aliases: bool = False


class Args:
    """Arguments of one call by the schema's names, absent ones as their defaults."""

    def __init__(self, name: str, given: tuple[Arg, ...]) -> None:
        self.given = given
        self.tensors = [a for a in given if isinstance(a, Value)]
        parameters = signature(name) or ()
        self._names = {p.name: (i, p.default) for i, p in enumerate(parameters)}
        lacking = [p.name for p in parameters[len(given) :] if p.required]
        if lacking:
            raise ValueError(f"it lacks its argument `{lacking[0]}`")

    def get(self, name: str) -> Any:
        index, default = self._names[name]
        return self.given[index] if index < len(self.given) else default

    def tensor(self, index: int = 0) -> Value:
        """:raises ValueError: where there is no tensor at ``index``."""
        if index < len(self.given):
            arg = self.given[index]
            if isinstance(arg, Value):
                return arg
        raise ValueError(f"argument {index + 1} has to be a tensor")

    def list(self, index: int = 0) -> tuple[Value, ...]:
        arg = self.given[index] if index < len(self.given) else ()
        if isinstance(arg, tuple) and arg and all(isinstance(a, Value) for a in arg):
            return arg  # type: ignore[return-value]
        raise ValueError(f"argument {index + 1} has to be a list of tensors")

    def dtype(self, default: str) -> str:
        """The ``dtype`` argument, by name or by its code in an execution trace."""
        asked = self.get("dtype") if "dtype" in self._names else None
        if isinstance(asked, int):
            return DTYPE_CODES.get(asked, default)
        return asked if isinstance(asked, str) else default


def infer(name: str, args: tuple[Arg, ...]) -> Results | None:
    """Types of the results of ``name(*args)``; ``None`` where it is not known how to tell.

    :raises ValueError: where the arguments do not fit the op (shapes that do not broadcast, no such dimension).
    """
    try:
        return _infer(name, args)
    except (IndexError, TypeError, KeyError) as e:
        raise ValueError(f"arguments do not fit {name} ({e})") from None


def _infer(name: str, args: tuple[Arg, ...]) -> Results | None:
    base = base_name(name)
    if base != name:
        return Results(tuple(map(version_of, mutated_by_name(name, args))))
    if base in VIEWS or base in _SHAPED_LIKE:
        return _view(base, args)
    if base in _UNLESS_NEEDED:
        return _maybe_copy(base, Args(base, args))
    if base in _FORMS:
        return Results(_FORMS[base](Args(base, args)))
    return Results((_pointwise(base, args),)) if base in POINTWISE - _NOT_PLAIN else None


def version_of(value: Value) -> TensorType:
    """Type of a new version of ``value``: what an in-place op makes."""
    return TensorType(value.dtype, Layout(value.shape, value.strides, value.offset))


def mutated_by_name(name: str, args: tuple[Arg, ...]) -> tuple[Value, ...]:
    """What an op that ends in ``_`` overwrites: its first argument, or every tensor of that list."""
    if base_name(name) == name or not args:
        return ()
    first = args[0]
    if isinstance(first, tuple):
        return tuple(a for a in first if isinstance(a, Value))
    return (first,) if isinstance(first, Value) else ()


def _fresh(dtype: str, shape: Sequence[int]) -> TensorType:
    return TensorType(dtype, Layout(tuple(shape), contiguous_strides(tuple(shape))))


def _like(x: Value, dtype: str | None = None) -> TensorType:
    """A new tensor in the memory format of ``x`` (``preserve_format``)."""
    strides = x.strides if is_dense(x.shape, x.strides) else pointwise_strides(x.shape, [x])
    return TensorType(dtype or x.dtype, Layout(x.shape, strides))


_SHAPED_LIKE = {
    "aten.view_as": "aten.view", "aten.reshape_as": "aten.reshape", "aten.expand_as": "aten.expand",
}  # fmt: skip
_COPIES = {"aten.reshape", "aten.flatten", "aten.reshape_as"}
_COMPLEX = {"f16": "c32", "f32": "c64", "f64": "c128"}
_REAL = {c: r for r, c in _COMPLEX.items()}


def _view(name: str, args: tuple[Arg, ...]) -> Results | None:
    x, rest = Args(name, args).tensor(), args[1:]
    if name in _SHAPED_LIKE:
        rest = (Args(name, args).tensor(1).shape,)
    if name == "aten.view" and rest and isinstance(rest[0], str):
        return None  # another dtype on the same bytes
    dtype = {"aten.view_as_real": _REAL, "aten.view_as_complex": _COMPLEX}.get(name, {}).get(x.dtype, x.dtype)
    views = views_of(_SHAPED_LIKE.get(name, name), Layout(x.shape, x.strides, x.offset), rest)
    if views is not None:
        return Results(tuple(TensorType(dtype, v) for v in views), aliases=True)
    dense = views_of(_SHAPED_LIKE.get(name, name), Layout(x.shape, contiguous_strides(x.shape)), rest)
    if name in _COPIES and dense is not None:
        return Results((TensorType(dtype, dense[0]),))
    raise ValueError(f"{x.dtype}{list(x.shape)} with strides {list(x.strides)} has no such view")


_NOT_PLAIN = _aten(
    """glu log_sigmoid_forward _weight_norm_interface _prelu_kernel_backward huber_loss smooth_l1_loss
    polar angle real imag native_dropout_backward bernoulli_scale"""
)
_BOOLEAN = _aten(
    """eq ne lt le gt ge not_equal isfinite isinf isnan isneginf isposinf logical_and logical_not logical_or
    logical_xor signbit"""
)
_KEEPS_INTEGERS = _aten(
    """abs add addcmul bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    ceil clamp clamp_max clamp_min clip floor floor_divide fmax fmin fmod frac heaviside hardtanh lerp masked_fill
    maximum minimum mul multiply nan_to_num ne neg negative pow relu relu6 remainder round rsub sgn sign square sub
    subtract threshold trunc where conj_physical"""
)


def _pointwise(name: str, args: tuple[Arg, ...]) -> TensorType:
    tensors = [a for a in args if isinstance(a, Value)]
    if not tensors:
        raise ValueError("at least one argument has to be a tensor")
    shape = broadcast(t.shape for t in tensors)
    if name in _BOOLEAN:
        dtype = "bool"
    elif name == "aten.masked_fill":
        dtype = tensors[0].dtype
    else:
        dtype = result_dtype(args[1:] if name == "aten.where" else _operands(name, args))
        keeps = name in _KEEPS_INTEGERS or (name == "aten.div" and len(args) > 2 and args[2] is not None)
        dtype = dtype if keeps or is_floating(dtype) else "f32"
    return TensorType(dtype, Layout(shape, pointwise_strides(shape, tensors)))


def _operands(name: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    """The arguments that take part in promotion: not ``alpha``, bounds of activations and the like."""
    parameters = signature(name)
    count = len(args) if parameters is None else next((i for i, p in enumerate(parameters) if p.keyword), len(args))
    tensors = tuple(a for a in args if isinstance(a, Value))
    plain = name in ("aten.add", "aten.sub", "aten.rsub", "aten.mul", "aten.div", "aten.pow", "aten.clamp")
    return args[:count] if plain or parameters is None else tensors


def _reduced(x: Value, dim: Any, keepdim: bool) -> Shape:
    rank = len(x.shape)
    asked = [dim] if isinstance(dim, int) else (dim or range(rank))
    dims = {axis(rank, d) for d in asked}
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    return tuple(n for d, n in enumerate(x.shape) if d not in dims)


def _reduction(count: int = 1, dtypes: Callable[[str], str] = lambda d: d) -> Callable[[Args], tuple[TensorType, ...]]:
    def results(args: Args) -> tuple[TensorType, ...]:
        x = args.tensor()
        shape = _reduced(x, args.get("dim"), args.get("keepdim"))
        return (_fresh(args.dtype(dtypes(x.dtype)), shape),) * count

    return results


def _widened(dtype: str) -> str:
    return dtype if is_floating(dtype) else "i64"


def _extremum(args: Args) -> tuple[TensorType, ...]:
    """``max`` and ``min``: of everything, of two tensors, or along a dimension with the places."""
    x, dim = args.tensor(), args.get("dim")
    if isinstance(dim, Value):
        return (_pointwise("aten.maximum", args.given),)
    values = _fresh(x.dtype, _reduced(x, dim, args.get("keepdim")))
    return (values,) if dim is None else (values, _fresh("i64", values.layout.shape))


def _matrix(shape: Shape, of: str) -> Shape:
    if len(shape) < 2:
        raise ValueError(f"{of} has to be a matrix, not {list(shape)}")
    return shape


def _product(a: Shape, b: Shape) -> Shape:
    """Shape of ``a @ b``. :raises ValueError: where inner or batch dimensions do not agree."""
    left = (1, *a) if len(a) == 1 else _matrix(a, "the left factor")
    right = (*b, 1) if len(b) == 1 else _matrix(b, "the right factor")
    if left[-1] != right[-2]:
        raise ValueError(f"cannot multiply {list(a)} by {list(b)}: {left[-1]} and {right[-2]} differ")
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return (*broadcast([left[:-2], right[:-2]]), *rows, *columns)


def _gemm(first: int) -> Callable[[Args], tuple[TensorType, ...]]:
    """A product of arguments ``first`` and ``first + 1``; what stands before them is added."""

    def results(args: Args) -> tuple[TensorType, ...]:
        a, b = args.tensor(first), args.tensor(first + 1)
        shape = _product(a.shape, b.shape)
        if first:
            shape = broadcast([args.tensor(0).shape, shape])
        return (_fresh(a.dtype, shape),)

    return results


def _linear(args: Args) -> tuple[TensorType, ...]:
    x, weight = args.tensor(0), args.tensor(1)
    return (_fresh(x.dtype, _product(x.shape, tuple(reversed(weight.shape)))),)


def _along(value: Sequence[int], i: int) -> int:
    """One number stands for all spatial dimensions."""
    return value[i] if len(value) > 1 else value[0]


def _convolution(args: Args) -> tuple[TensorType, ...]:
    x, weight = args.tensor(0), args.tensor(1)
    stride, padding, dilation = (args.get(n) for n in ("stride", "padding", "dilation"))
    spatial = range(len(x.shape) - 2)
    reach = [_along(dilation, i) * (weight.shape[i + 2] - 1) for i in spatial]
    if args.get("transposed"):
        extra, channels = args.get("output_padding"), weight.shape[1] * args.get("groups")
        sizes = [
            (x.shape[i + 2] - 1) * _along(stride, i) - 2 * _along(padding, i) + reach[i] + _along(extra, i) + 1
            for i in spatial
        ]
    else:
        channels = weight.shape[0]
        sizes = [(x.shape[i + 2] + 2 * _along(padding, i) - reach[i] - 1) // _along(stride, i) + 1 for i in spatial]
    return (_fresh(x.dtype, (x.shape[0], channels, *sizes)),)


def _cat(args: Args) -> tuple[TensorType, ...]:
    parts = args.list()
    d = axis(len(parts[0].shape), args.get("dim"))
    shape = list(parts[0].shape)
    for part in parts[1:]:
        if part.shape[:d] + part.shape[d + 1 :] != parts[0].shape[:d] + parts[0].shape[d + 1 :]:
            raise ValueError(f"cannot join {list(parts[0].shape)} and {list(part.shape)} along dimension {d}")
        shape[d] += part.shape[d]
    return (_fresh(_common(parts), shape),)


def _stack(args: Args) -> tuple[TensorType, ...]:
    parts = args.list()
    if any(p.shape != parts[0].shape for p in parts):
        raise ValueError("stack takes tensors of one shape")
    d = axis(len(parts[0].shape) + 1, args.get("dim"))
    return (_fresh(_common(parts), (*parts[0].shape[:d], len(parts), *parts[0].shape[d:])),)


def _common(parts: Sequence[Value]) -> str:
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = promote(dtype, part.dtype)
    return dtype


def _copy(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    fresh = args.get("memory_format") in (0, "contiguous_format")
    dtype = args.dtype(x.dtype)
    return (_fresh(dtype, x.shape) if fresh else _like(x, dtype),)


_UNLESS_NEEDED = frozenset({"aten.contiguous", "aten.to", "aten.type_as"})


def _maybe_copy(name: str, args: Args) -> Results:
    """``contiguous``, ``to`` and ``type_as`` give their input back where it is so already."""
    x = args.tensor()
    if name == "aten.contiguous":
        return Results((version_of(x),), aliases=True) if x.is_contiguous else Results((_fresh(x.dtype, x.shape),))
    dtype = args.tensor(1).dtype if name == "aten.type_as" else args.dtype(x.dtype)
    return Results((version_of(x),), aliases=True) if dtype == x.dtype else Results((_like(x, dtype),))


def _softmax(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    return (_fresh(args.dtype(x.dtype), x.shape),)


def _half_softmax(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    return (_fresh("f32" if args.get("half_to_float") else x.dtype, x.shape),)


def _statistics_dtype(dtype: str) -> str:
    return "f32" if dtype in ("f16", "bf16") else dtype


def _layer_norm(count: int) -> Callable[[Args], tuple[TensorType, ...]]:
    """A normalised tensor, and ``count`` statistics of shape ``[…, 1]``."""

    def results(args: Args) -> tuple[TensorType, ...]:
        x, normalized = args.tensor(), len(args.get("normalized_shape"))
        kept = len(x.shape) - normalized
        statistic = _fresh(_statistics_dtype(x.dtype), (*x.shape[:kept], *(1,) * normalized))
        return (_fresh(x.dtype, x.shape), *(statistic,) * count)

    return results


def _group_norm(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    statistic = _fresh(x.dtype, (args.get("N"), args.get("group")))
    return (_like(x), statistic, statistic)


def _batch_norm(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    saved = _fresh(_statistics_dtype(x.dtype), (x.shape[1] if args.get("training") else 0,))
    return (_like(x), saved, saved)


def _attention(args: Args) -> tuple[TensorType, ...]:
    query, value = args.tensor(0), args.tensor(2)
    return (_fresh(query.dtype, (*query.shape[:-1], value.shape[-1])),)


def _flash_on_cpu(args: Args) -> tuple[TensorType, ...]:
    """The output lies in memory as the query does; the log-sum-exp is in fp32, positions before heads."""
    query, value = args.tensor(0), args.tensor(2)
    batch, heads, rows, _ = query.shape
    (out,) = (_like(query),) if value.shape[-1] == query.shape[-1] else _attention(args)
    return (out, TensorType("f32", Layout((batch, heads, rows), (rows * heads, 1, heads))))


def _embedding(args: Args) -> tuple[TensorType, ...]:
    weight, indices = args.tensor(0), args.tensor(1)
    return (_fresh(weight.dtype, (*indices.shape, *weight.shape[1:])),)


def _index_select(args: Args) -> tuple[TensorType, ...]:
    x, index = args.tensor(0), args.tensor(2)
    d = axis(len(x.shape), args.get("dim"))
    return (_fresh(x.dtype, (*x.shape[:d], prod(index.shape), *x.shape[d + 1 :])),)


def _gather(args: Args) -> tuple[TensorType, ...]:
    return (_fresh(args.tensor(0).dtype, args.tensor(2).shape),)


def _glu(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    d = axis(len(x.shape), args.given[1] if len(args.given) > 1 else -1)  # type: ignore[arg-type]
    return (_fresh(x.dtype, (*x.shape[:d], x.shape[d] // 2, *x.shape[d + 1 :])),)


def _dropout(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    return (_like(x), _like(x, "bool"))


def _same(args: Args) -> tuple[TensorType, ...]:
    return (_like(args.tensor()),)


def _like_dtype(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    return (_like(x, args.dtype(x.dtype)),)


def _cumulative(args: Args) -> tuple[TensorType, ...]:
    x = args.tensor()
    return (_like(x, args.dtype(_widened(x.dtype))),)


def _sized(args: Args) -> tuple[TensorType, ...]:
    size = args.get("size")
    return (_fresh(args.dtype("f32"), resolve_shape(prod(size), size)),)


def _sized_new(args: Args) -> tuple[TensorType, ...]:
    return (_fresh(args.dtype(args.tensor().dtype), args.get("size")),)


def _filled(args: Args) -> tuple[TensorType, ...]:
    return (_fresh(args.dtype(result_dtype([args.get("fill_value")])), args.get("size")),)


def _strided(args: Args) -> tuple[TensorType, ...]:
    return (TensorType(args.dtype("f32"), Layout(tuple(args.get("size")), tuple(args.get("stride")))),)


def _scalar(args: Args) -> tuple[TensorType, ...]:
    return (_fresh(args.dtype("f32"), ()),)


def _repeat(args: Args) -> tuple[TensorType, ...]:
    x, times = args.tensor(), args.given[1]
    if not isinstance(times, tuple) or len(times) < len(x.shape):
        raise ValueError("repeat takes one number for each dimension")
    shape = (*(1,) * (len(times) - len(x.shape)), *x.shape)
    return (_fresh(x.dtype, [n * int(t) for n, t in zip(shape, times, strict=True)]),)  # type: ignore[arg-type]


_FORMS: dict[str, Callable[[Args], tuple[TensorType, ...]]] = {
    **dict.fromkeys(("aten.mean", "aten.amax", "aten.amin", "aten.var", "aten.std", "aten.logsumexp"), _reduction()),
    **dict.fromkeys(("aten.norm", "aten.linalg_vector_norm"), _reduction()),
    **dict.fromkeys(("aten.var_mean", "aten.std_mean"), _reduction(2)),
    **dict.fromkeys(("aten.sum", "aten.prod"), _reduction(dtypes=_widened)),
    **dict.fromkeys(("aten.argmax", "aten.argmin"), _reduction(dtypes=lambda _: "i64")),
    **dict.fromkeys(("aten.all", "aten.any"), _reduction(dtypes=lambda _: "bool")),
    **dict.fromkeys(("aten.max", "aten.min"), _extremum),
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.matmul", "aten.mv", "aten.dot"), _gemm(0)),
    **dict.fromkeys(("aten.addmm", "aten.baddbmm", "aten.addmv", "aten._addmm_activation"), _gemm(1)),
    "aten.linear": _linear,
    "aten.convolution": _convolution,
    "aten.cat": _cat,
    "aten.stack": _stack,
    **dict.fromkeys(("aten.clone", "aten._to_copy"), _copy),
    "aten.repeat": _repeat,
    **dict.fromkeys(("aten.softmax", "aten.log_softmax", "aten._safe_softmax"), _softmax),
    **dict.fromkeys(("aten._softmax", "aten._log_softmax"), _half_softmax),
    **dict.fromkeys(("aten.layer_norm", "aten.rms_norm"), _layer_norm(0)),
    "aten.native_layer_norm": _layer_norm(2),
    "aten._fused_rms_norm": _layer_norm(1),
    "aten.native_group_norm": _group_norm,
    "aten.native_batch_norm": _batch_norm,
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash_on_cpu,
    "aten.embedding": _embedding,
    "aten.index_select": _index_select,
    "aten.gather": _gather,
    "aten.glu": _glu,
    "aten.native_dropout": _dropout,
    **dict.fromkeys(("aten.dropout", "aten.tril", "aten.triu", "aten.flip", "aten.roll", "aten.copy"), _same),
    **dict.fromkeys(("aten._softmax_backward_data", "aten._log_softmax_backward_data"), _same),
    "aten.cumsum": _cumulative,
    **dict.fromkeys(("aten.empty", "aten.zeros", "aten.ones", "aten.rand", "aten.randn"), _sized),
    **dict.fromkeys(("aten.new_empty", "aten.new_zeros", "aten.new_ones", "aten.new_full"), _sized_new),
    **dict.fromkeys(
        ("aten.empty_like", "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.rand_like"), _like_dtype
    ),
    "aten.full": _filled,
    "aten.empty_strided": _strided,
    "aten.scalar_tensor": _scalar,
}
