"""Shapes of what an op returns: by rule where rules suffice, else by running the real op on meta tensors that look like
its recorded inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from auditor.collect.arguments import MOST_ELEMENTS
from auditor.collect.dispatched import METADATA_IN_PLACE, VIEWS, bare, namespace, schema_for
from auditor.collect.partial import Partial, partial_of
from auditor.collect.recorded_inputs import Recorded, RecordedInputs, TensorSpec, tensors_in
from auditor.collect.results import Made, results_by_rule
from auditor.graph.model import contiguous_strides
from auditor.graph.ops import DATA_DEPENDENT

_TORCH_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool", "c64": "complex64", "c128": "complex128",
    "c32": "complex32",
}  # fmt: skip
_SHORT_DTYPES = {f"torch.{long}": short for short, long in _TORCH_DTYPES.items()}
_SCALAR_TYPES = ("u8", "i8", "i16", "i32", "i64", "f16", "f32", "f64", "c32", "c64", "c128", "bool")
_LATER_SCALAR_TYPES = {15: "bf16", 23: "f8e5m2", 24: "f8e4m3"}
"""Numbers of c10::ScalarType, by which dtypes are recorded (c10/core/ScalarType.h)."""
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


_MOST_PARTS = 1 << 16
"""A tensor that is split into more parts is none of a model: its size is an error in the file."""


@dataclass(slots=True, frozen=True)
class Effect:
    """What a call makes. ``aliases[i]`` is the argument that output ``i`` is a view or a new version of, else -1;
    ``writes`` are the arguments it overwrites. ``offsets``: where in that argument each output begins, in elements.
    ``known``: outputs could be told; where they could not, ``partial`` may hold what is known of the first.
    """

    outputs: tuple[TensorSpec, ...] = ()
    aliases: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    overload: str = ""
    known: bool = True
    partial: Partial | None = None
    offsets: tuple[int, ...] = ()


@lru_cache(maxsize=65536)
def effect_of(name: str, inputs: RecordedInputs, list_dtype: str = "") -> Effect:
    """Outputs of op ``name`` (``aten::add``). ``list_dtype`` is that of the tensors in its lists."""
    schema = schema_for(name, inputs.types) if inputs.known else None
    if schema is None and name in _INTO_FIRST and inputs.values:
        into = inputs.values[0]
        return Effect((into,), (0,), (0,)) if isinstance(into, TensorSpec) else Effect(known=False)
    if schema is None:
        made = _by_rule(bare(name), inputs.values)
        if made is not None:
            return Effect(made, (-1,) * len(made))
        return Effect(known=False, partial=partial_of(name, inputs))
    writes = tuple(i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)
    if bare(name) in METADATA_IN_PLACE:
        writes = ()
    made_at = _results(name, schema, inputs, list_dtype)
    made = tuple(spec for spec, _ in made_at) if made_at is not None else None
    if made is None:
        made = _by_rule(bare(name), inputs.values)
    if made is None and writes == (0,) and isinstance(inputs.values[0], TensorSpec):
        made = (inputs.values[0],)
    if made is None:
        return Effect((), (), writes, schema.overload_name, known=False, partial=partial_of(name, inputs))
    aliases = tuple(_alias(bare(name), schema, i) for i in range(len(made)))
    offsets = tuple(offset for _, offset in made_at) if made_at is not None else ()
    return Effect(made, aliases, writes, schema.overload_name, offsets=offsets if any(offsets) else ())


def _results(name: str, schema: Any, inputs: RecordedInputs, list_dtype: str) -> Made | None:
    listed = any("List" in str(returned.type) for returned in schema.returns)
    if listed and _largest(inputs.values) > _MOST_PARTS:
        return None
    made = results_by_rule(name, schema, inputs, list_dtype)
    return _run(name, schema, inputs, list_dtype) if made is None else made


def _run(
    name: str, schema: Any, inputs: RecordedInputs, list_dtype: str
) -> Made | None:  # fmt: skip
    """The real op on meta tensors, with where each result begins; ``None``: it has no meta kernel or looks at data."""
    import torch

    if not any("Tensor" in str(returned.type) for returned in schema.returns):
        return ()

    if f"aten.{bare(name)}" in DATA_DEPENDENT:
        return None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    try:
        op = getattr(getattr(getattr(torch.ops, namespace(name)), bare(name)), schema.overload_name or "default")
        for argument, value in zip(schema.arguments, inputs.values, strict=True):
            if value is None and not inputs.spoken:
                made = _unspoken(argument, inputs.types[len(args) + len(kwargs)])
            else:
                made = _argument(argument, value, list_dtype)
            if argument.kwarg_only:
                kwargs[argument.name] = made
            else:
                args.append(made)
        with torch.no_grad():
            return tuple((_spec(t), t.storage_offset()) for t in _flat(op(*args, **kwargs)))
    except Exception:  # any op may refuse in any way: its outputs are then unknown, which is counted
        return None


def _largest(values: tuple[Recorded, ...]) -> int:
    return max((n for _, spec in tensors_in(values) for n in spec.shape), default=0)


def _argument(argument: Any, value: Recorded, list_dtype: str) -> Any:
    import torch

    if isinstance(value, TensorSpec):
        if value.shape == () and value.dtype == "f64":  # a Python number: must not promote
            return 1.0 if "Optional" not in str(argument.type) else None
        return _meta(value, list_dtype)
    if isinstance(value, tuple):
        return [_argument(argument, item, list_dtype) for item in value]
    if argument.name == "device":
        return torch.device("meta")
    if argument.name in ("dtype", "output_dtype", "out_dtype") and isinstance(value, int):
        return getattr(torch, _TORCH_DTYPES[_scalar_type(value)])
    if argument.name == "memory_format" and isinstance(value, int):
        return getattr(torch, _MEMORY_FORMATS[value])
    if argument.name in ("layout", "generator"):
        return None
    if value is None and argument.has_default_value():
        return argument.default_value
    return float(value) if str(argument.type) == "float" and isinstance(value, int) else value


_NO_SHAPE = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "generator"})


def _unspoken(argument: Any, recorded: str) -> Any:
    """A stand-in for a number that the trace does not hold, where no shape depends on it.

    Raises:
        ValueError: a size, a dimension or a dtype, which nobody can guess.
    """
    kind = str(argument.type)
    if argument.name in _NO_SHAPE:
        if argument.name == "dtype" and recorded not in ("", "None"):
            raise ValueError(argument.name)
        return _argument(argument, None, "")
    if "int" in kind or "List" in kind:
        raise ValueError(argument.name)
    if "number" in kind or "float" in kind:
        return 1.0 if recorded == "Double" else 1
    return argument.default_value if argument.has_default_value() else False if kind == "bool" else None


def _scalar_type(number: int) -> str:
    return _LATER_SCALAR_TYPES[number] if number in _LATER_SCALAR_TYPES else _SCALAR_TYPES[number]


def _meta(spec: TensorSpec, list_dtype: str) -> Any:
    import torch

    dtype = getattr(torch, _TORCH_DTYPES[spec.dtype or list_dtype])
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device="meta")


def _flat(result: Any) -> list[Any]:
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    return [t for item in result for t in _flat(item)] if isinstance(result, tuple | list) else []


def _spec(tensor: Any) -> TensorSpec:
    if tensor.numel() > MOST_ELEMENTS:
        raise ValueError("no machine holds it: the recorded numbers are none")
    return TensorSpec(_SHORT_DTYPES[str(tensor.dtype)], tuple(tensor.shape), tuple(tensor.stride()))


def _alias(name: str, schema: Any, output: int) -> int:
    """Argument whose memory output ``output`` shares, -1 for none. Every tensor of a returned list shares alike."""
    if name in VIEWS or name in METADATA_IN_PLACE:
        return 0
    returned = schema.returns[min(output, len(schema.returns) - 1)] if schema.returns else None
    if returned is None or returned.alias_info is None:
        return -1
    sets = returned.alias_info.before_set
    shares = (i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.before_set & sets)
    return next(shares, -1)


_LIKE_FIRST = frozenset({
    "_flash_attention_forward", "_efficient_attention_forward", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math", "_scaled_dot_product_fused_attention_overrideable",
    "native_layer_norm", "native_group_norm", "cudnn_batch_norm", "native_batch_norm", "miopen_batch_norm",
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "fill_",
    "zero_", "clamp", "clamp_min", "clamp_max", "hardtanh", "threshold_backward", "native_group_norm_backward",
})  # fmt: skip
_LIKE_INPUTS = {
    "native_layer_norm_backward": (0, 5, 6), "native_batch_norm_backward": (0, 2, 2), "convolution_backward": (1, 2),
    "cudnn_batch_norm_backward": (0, 2, 2), "miopen_batch_norm_backward": (0, 2, 2),
    "cudnn_convolution_backward": (0, 2), "miopen_convolution_backward": (0, 2), "nll_loss_backward": (1,),
    "max_pool2d_with_indices_backward": (1,), "avg_pool2d_backward": (1,),
}  # fmt: skip
"""Backward ops hand out a gradient of each of these arguments."""


_INTO_FIRST = frozenset({"aiter::rmsnorm", "aiter::rms_norm", "sgl_kernel::silu_and_mul", "_C::silu_and_mul"})
"""Custom ops that write their result into their first argument."""


def _by_rule(name: str, values: tuple[Recorded, ...]) -> tuple[TensorSpec, ...] | None:
    """Outputs of common ops that another version of PyTorch recorded in a form this one cannot run."""
    tensors = [v for v in values if isinstance(v, TensorSpec)]
    if not tensors:
        return None
    first = tensors[0]
    if name in _LIKE_FIRST:
        return (first,)
    if name == "_groupnorm_run":  # aiter's writes rows one after the other, whatever it reads
        return (TensorSpec(first.dtype, first.shape, contiguous_strides(first.shape)),)
    if name in _LIKE_INPUTS:
        like = [values[i] if i < len(values) else None for i in _LIKE_INPUTS[name]]
        return tuple(v for v in like if isinstance(v, TensorSpec)) or None
    if name == "embedding" and len(tensors) > 1:
        shape = (*tensors[1].shape, *first.shape[1:])
        return (TensorSpec(first.dtype, shape, contiguous_strides(shape)),)
    return None
