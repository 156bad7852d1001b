"""The order of arguments of the ops that people write with keywords, and the dtype names of the SSA text.

Signatures follow ``native_functions.yaml``; what stands behind ``*`` is printed as a keyword. An op that is not
listed takes positional arguments only.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import Any, NamedTuple

from auditor.graph.model import ITEMSIZE
from auditor.graph.ops import base_name

DTYPE_CODES = {
    0: "u8", 1: "i8", 2: "i16", 3: "i32", 4: "i64", 5: "f16", 6: "f32", 7: "f64", 8: "c32", 9: "c64", 10: "c128",
    11: "bool", 15: "bf16", 23: "f8e5m2", 24: "f8e4m3", 27: "u16", 28: "u32", 29: "u64",
}  # fmt: skip
"""``c10::ScalarType`` as traces write it, by the short names of :data:`auditor.graph.model.ITEMSIZE`."""

DTYPES = frozenset(ITEMSIZE)

_TENSOR_OPTIONS = "dtype=None, layout=None, device=None, pin_memory=None"

_SIGNATURES = f"""
add(self, other, *, alpha=1)
sub(self, other, *, alpha=1)
rsub(self, other, alpha=1)
div(self, other, *, rounding_mode=None)
pow(self, exponent)
clamp(self, min=None, max=None)
gelu(self, *, approximate='none')
gelu_backward(grad_output, self, *, approximate='none')
elu(self, alpha=1, scale=1, input_scale=1)
leaky_relu(self, negative_slope=0.01)
softplus(self, beta=1, threshold=20)
hardtanh(self, min_val=-1, max_val=1)
nan_to_num(self, nan=None, posinf=None, neginf=None)
addcmul(self, tensor1, tensor2, *, value=1)
addcdiv(self, tensor1, tensor2, *, value=1)
where(condition, self, other)
mean(self, dim=None, keepdim=False, *, dtype=None)
sum(self, dim=None, keepdim=False, *, dtype=None)
prod(self, dim=None, keepdim=False, *, dtype=None)
var(self, dim=None, *, correction=None, keepdim=False)
std(self, dim=None, *, correction=None, keepdim=False)
var_mean(self, dim=None, *, correction=None, keepdim=False)
std_mean(self, dim=None, *, correction=None, keepdim=False)
amax(self, dim=(), keepdim=False)
amin(self, dim=(), keepdim=False)
max(self, dim=None, keepdim=False)
min(self, dim=None, keepdim=False)
argmax(self, dim=None, keepdim=False)
argmin(self, dim=None, keepdim=False)
all(self, dim=None, keepdim=False)
any(self, dim=None, keepdim=False)
logsumexp(self, dim, keepdim=False)
norm(self, p=2, dim=(), keepdim=False)
linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None)
cumsum(self, dim, *, dtype=None)
softmax(self, dim, dtype=None)
log_softmax(self, dim, dtype=None)
_softmax(self, dim, half_to_float)
_log_softmax(self, dim, half_to_float)
_safe_softmax(self, dim, dtype=None)
layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True)
native_layer_norm(input, normalized_shape, weight, bias, eps)
rms_norm(input, normalized_shape, weight=None, eps=None)
_fused_rms_norm(input, normalized_shape, weight, eps)
native_group_norm(input, weight, bias, N, C, HxW, group, eps)
native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
linear(input, weight, bias=None)
addmm(self, mat1, mat2, *, beta=1, alpha=1)
_addmm_activation(self, mat1, mat2, *, beta=1, alpha=1, use_gelu=False)
baddbmm(self, batch1, batch2, *, beta=1, alpha=1)
addmv(self, mat, vec, *, beta=1, alpha=1)
convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
)
_scaled_dot_product_flash_attention_for_cpu(
    query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None
)
_scaled_dot_product_flash_attention(
    query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
)
_scaled_dot_product_efficient_attention(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
)
embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False)
index_select(self, dim, index)
gather(self, dim, index, *, sparse_grad=False)
cat(tensors, dim=0)
stack(tensors, dim=0)
to(self, dtype=None, non_blocking=False, copy=False, memory_format=None)
_to_copy(self, *, {_TENSOR_OPTIONS}, non_blocking=False, memory_format=None)
clone(self, *, memory_format=None)
contiguous(self, *, memory_format=None)
copy(self, src, non_blocking=False)
empty(size, *, {_TENSOR_OPTIONS}, memory_format=None)
empty_like(self, *, {_TENSOR_OPTIONS}, memory_format=None)
empty_strided(size, stride, *, {_TENSOR_OPTIONS})
new_empty(self, size, *, {_TENSOR_OPTIONS})
zeros(size, *, {_TENSOR_OPTIONS})
ones(size, *, {_TENSOR_OPTIONS})
rand(size, *, {_TENSOR_OPTIONS})
randn(size, *, {_TENSOR_OPTIONS})
full(size, fill_value, *, {_TENSOR_OPTIONS})
zeros_like(self, *, {_TENSOR_OPTIONS}, memory_format=None)
ones_like(self, *, {_TENSOR_OPTIONS}, memory_format=None)
full_like(self, fill_value, *, {_TENSOR_OPTIONS}, memory_format=None)
new_zeros(self, size, *, {_TENSOR_OPTIONS})
new_ones(self, size, *, {_TENSOR_OPTIONS})
new_full(self, size, fill_value, *, {_TENSOR_OPTIONS})
scalar_tensor(s, *, {_TENSOR_OPTIONS})
native_dropout(input, p, train)
dropout(input, p, train)
tril(self, diagonal=0)
triu(self, diagonal=0)
roll(self, shifts, dims=())
repeat_interleave(self, repeats, dim=None, *, output_size=None)
view(self, size)
reshape(self, shape)
_unsafe_view(self, size)
_reshape_alias(self, size, stride)
as_strided(self, size, stride, storage_offset=None)
transpose(self, dim0, dim1)
permute(self, dims)
movedim(self, source, destination)
unsqueeze(self, dim)
squeeze(self, dim=None)
expand(self, size, *, implicit=False)
slice(self, dim=0, start=None, end=None, step=1)
narrow(self, dim, start, length)
select(self, dim, index)
split(self, split_size, dim=0)
split_with_sizes(self, split_sizes, dim=0)
unsafe_split(self, split_size, dim=0)
chunk(self, chunks, dim=0)
tensor_split(self, indices_or_sections, dim=0)
unbind(self, dim=0)
flatten(self, start_dim=0, end_dim=-1)
unflatten(self, dim, sizes)
diagonal(self, offset=0, dim1=0, dim2=1)
"""


class Parameter(NamedTuple):
    name: str
    required: bool
    default: Any
    keyword: bool
    """Behind ``*``: printed as a keyword."""


@cache
def _table() -> dict[str, tuple[Parameter, ...]]:
    joined = _SIGNATURES.strip().replace("(\n", "(").replace("\n)", ")")
    return dict(map(_signature, joined.splitlines()))


def _signature(line: str) -> tuple[str, tuple[Parameter, ...]]:
    args = ast.parse(f"def {line.replace('( ', '(')}: ...").body[0].args  # type: ignore[attr-defined]
    plain = [*[None] * (len(args.args) - len(args.defaults)), *args.defaults]
    rows = [(a, d, False) for a, d in zip(args.args, plain, strict=True)]
    rows += [(a, d, True) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    made = (Parameter(a.arg, d is None, None if d is None else ast.literal_eval(d), k) for a, d, k in rows)
    return f"aten.{line.partition('(')[0]}", tuple(made)


def signature(name: str) -> tuple[Parameter, ...] | None:
    """Parameters of an op by its name, in place or not; ``None`` where it is not listed."""
    return _table().get(base_name(name))


def without_trailing_defaults(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``args`` less the trailing ones that say what the schema says anyway."""
    known = signature(name) or ()
    count = len(args)
    while 0 < count <= len(known) and is_default(args[count - 1], known[count - 1]):
        count -= 1
    return args[:count]


@cache
def _dtype_place(name: str) -> int | None:
    return next((i for i, parameter in enumerate(signature(name) or ()) if parameter.name == "dtype"), None)


def with_dtype_names(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``args`` with the name of a dtype for its number, which traces write; of a number without a name, the number."""
    place = _dtype_place(name)
    if place is None or place >= len(args) or type(args[place]) is not int:
        return args
    return (*args[:place], DTYPE_CODES.get(args[place], args[place]), *args[place + 1 :])


def is_default(arg: Any, parameter: Parameter) -> bool:
    """``arg`` is what the schema says anyway, of the same type (``1.0`` is not ``1``)."""
    return not parameter.required and type(arg) is type(parameter.default) and bool(arg == parameter.default)
