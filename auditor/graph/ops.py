"""What is known of ops by their name: kind, commutativity, and which of them only move or make data.

Names are ATen's, without overload and without the in-place underscore (``aten.add``).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

Kind = Literal[
    "pointwise", "reduction", "norm", "gemm", "attention", "copy", "movement", "gather", "random",
    "generator", "collective", "sync", "allocation", "optimizer", "other",
]  # fmt: skip


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


POINTWISE = _aten(
    """abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bernoulli_scale bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max
    clamp_min clip conj_physical copysign cos cosh deg2rad div divide elu elu_backward eq erf erfc erfinv exp
    exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gelu_backward glu gt hardsigmoid
    hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside huber_loss hypot imag
    isfinite isinf isnan isneginf isposinf le leaky_relu leaky_relu_backward lerp lgamma log log10 log1p log2
    log_sigmoid log_sigmoid_backward log_sigmoid_forward logaddexp logical_and logical_not logical_or
    logical_xor logit lt masked_fill maximum minimum mish mish_backward mse_loss_backward mul multiply
    nan_to_num native_dropout_backward _masked_scale ne neg negative not_equal polar pow prelu _prelu_kernel
    _prelu_kernel_backward real reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid
    sigmoid_backward sign signbit silu silu_backward sin sinc sinh smooth_l1_loss softplus softplus_backward
    softshrink sqrt square sub subtract tan tanh tanh_backward threshold threshold_backward trunc
    _weight_norm_interface where xlogy __rshift__ __lshift__"""
)

REDUCTION = _aten(
    """all amax amin any argmax argmin count_nonzero linalg_vector_norm logsumexp max mean median min norm prod std
    std_mean sum var var_mean nansum nanmean aminmax"""
)

NORM = _aten(
    """native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward native_batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm_backward cudnn_batch_norm
    cudnn_batch_norm_backward miopen_batch_norm miopen_batch_norm_backward batch_norm_backward
    _batch_norm_with_update _batch_norm_no_update native_group_norm native_group_norm_backward _softmax
    _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data masked_softmax _masked_softmax"""
)

GEMM = _aten(
    """mm addmm bmm baddbmm matmul linear addmv mv dot addbmm convolution _convolution convolution_backward
    cudnn_convolution miopen_convolution mkldnn_convolution thnn_conv2d slow_conv2d_forward _slow_conv2d_forward
    conv_depthwise3d _conv_depthwise2d slow_conv3d_forward slow_conv_dilated2d slow_conv_transpose2d
    cudnn_convolution_relu cudnn_convolution_add_relu cudnn_convolution_transpose miopen_convolution_transpose
    _grouped_mm _scaled_mm _scaled_grouped_mm _int_mm _addmm_activation _weight_int4pack_mm _weight_int8pack_mm
    mkldnn_linear mkldnn_linear_backward linear_backward _mkldnn_linear_pointwise einsum _trilinear addr
    mkldnn_rnn_layer lstm gru _thnn_fused_lstm_cell _cudnn_rnn miopen_rnn"""
)

ATTENTION = _aten(
    """scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable_backward
    _flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward
    _native_multi_head_attention _transformer_encoder_layer_fwd flex_attention"""
)

COPY = _aten("_to_copy clone contiguous to copy type_as")
"""Writes its one input again, in another dtype or layout."""

MOVEMENT = _aten(
    """cat stack repeat repeat_interleave roll flip pad constant_pad_nd slice_backward select_backward tril triu
    slice_scatter select_scatter fill zero pixel_shuffle im2col col2im reflection_pad1d reflection_pad2d
    replication_pad2d as_strided_scatter copy_into index_fill rot90 unfold_backward split_with_sizes_copy"""
)

GATHER = _aten(
    """embedding embedding_dense_backward index index_put _index_put_impl index_select gather scatter scatter_add
    scatter_reduce index_add index_copy masked_scatter masked_select take take_along_dim nonzero topk sort argsort
    unique _unique2 unique_consecutive unique_dim cumsum cumprod cummax cummin logcumsumexp bincount searchsorted
    bucketize histc one_hot embedding_bag _embedding_bag nll_loss_forward nll_loss_backward nll_loss2d_forward
    nll_loss2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d
    upsample_bicubic2d upsample_nearest1d grid_sampler_2d multinomial kthvalue mode diag_embed cdist _cdist_forward
    _ctc_loss fft_fft fft_ifft _fft_r2c _fft_c2r _fft_c2c embedding_renorm mkldnn_max_pool2d"""
)

RANDOM = _aten(
    """bernoulli rand randn rand_like randn_like randint randperm normal uniform exponential native_dropout
    _fused_dropout"""
)

GENERATOR = _aten(
    """arange full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full scalar_tensor eye linspace
    logspace tril_indices triu_indices lift_fresh"""
)

ALLOCATION = _aten(
    """empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize set resize_as set_data
    _unsafe_set"""
)

SYNC = _aten("_local_scalar_dense item is_nonzero equal _assert_async record_stream _assert_scalar")
"""The host waits for the device, or the host's next op depends on a value: nothing may be fused across."""

DATA_DEPENDENT = _aten("nonzero masked_select unique _unique2 unique_consecutive unique_dim bincount nonzero_numpy")
"""The shape of the result depends on the data, so the host waits too."""

OPTIMIZER_PREFIXES = ("aten._foreach_", "aten._fused_adam", "aten._fused_sgd", "aten._fused_adagrad", "aten._amp_")
COLLECTIVE_PREFIXES = ("c10d.", "_c10d_functional.", "c10d_functional.", "record_param_comms", "nccl")

COMMUTATIVE = frozenset(
    {"add", "mul", "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or"}
    | {"batch_norm_backward"}
)
"""Canonical kinds whose first two operands may stand in either order."""

TRANSCENDENTAL = frozenset(
    name.removeprefix("aten.")
    for name in _aten(
        """acos asin atan atan2 cos cosh erf erfc exp exp2 expm1 gelu gelu_backward log log1p log2 log_softmax mish pow
        sigmoid silu silu_backward sin sinh softmax softplus tan tanh"""
    )
)

_KINDS: dict[str, Kind] = {}
for _kind, _names in (
    ("pointwise", POINTWISE), ("reduction", REDUCTION), ("norm", NORM), ("gemm", GEMM), ("attention", ATTENTION),
    ("copy", COPY), ("movement", MOVEMENT), ("gather", GATHER), ("random", RANDOM), ("generator", GENERATOR),
    ("allocation", ALLOCATION), ("sync", SYNC),
):  # fmt: skip
    for _name in _names:
        _KINDS[_name] = _kind  # type: ignore[assignment]


_KINDS |= {"aiter._groupnorm_run": "norm", "aiter.rmsnorm": "norm"}
"""A vendor's kernel for one op of PyTorch: no fused one."""

_VENDOR = re.compile(r"^aten\._?(?:cudnn|miopen|mkldnn|native|thnn|slow|hip|xpu)_")
_SAME_OP = (
    (re.compile(r"^aten\._?batch_norm(?:_legit|_legit_no_training|_with_update|_no_update)?$"), "aten.batch_norm"),
    (
        re.compile(r"^aten\._?(?:convolution|conv2d|conv2d_forward|conv_depthwise2d|conv3d_forward)$"),
        "aten.convolution",
    ),
    (re.compile(r"^aten\.convolution_(?:backward|overrideable_backward).*"), "aten.convolution_backward"),
    (re.compile(r"^aten\._scaled_dot_product_\w+_backward$"), "aten.scaled_dot_product_attention_backward"),
    (re.compile(r"^aten\._(?:flash|efficient)_attention_backward$"), "aten.scaled_dot_product_attention_backward"),
    (re.compile(r"^aten\._scaled_dot_product_\w+$"), "aten.scaled_dot_product_attention"),
    (re.compile(r"^aten\._(?:flash|efficient)_attention_forward$"), "aten.scaled_dot_product_attention"),
    (re.compile(r"^(triton\.\w+?)_\d+$"), r"\1"),
)
"""Names of one op: of the library that runs it, of its era, and of its number in compiled code."""

_BASE: dict[str, str] = {}


def base_name(name: str) -> str:
    """``aten.add_`` → ``aten.add``: the name without the in-place underscore."""
    known = _BASE.get(name)
    if known is None:
        known = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        _BASE[name] = known
    return known


@cache
def portable_name(name: str) -> str:
    """The name of an op wherever it runs: ``aten.cudnn_batch_norm`` and ``aten.miopen_batch_norm`` are one op."""
    plain = _VENDOR.sub("aten.", base_name(name))
    for pattern, same in _SAME_OP:
        if pattern.match(plain):
            return pattern.sub(same, plain)
    return plain


def kind_of(name: str) -> Kind:
    """The kind of an op by its name (in-place or not). Unknown ops are ``other``: never fused, never assumed cheap."""
    known = _KINDS.get(name)
    if known is None:
        base = base_name(name)
        if base.startswith(OPTIMIZER_PREFIXES):
            known = "optimizer"
        elif base.startswith(COLLECTIVE_PREFIXES):
            known = "collective"
        else:
            known = _KINDS.get(base, "other")
        _KINDS[name] = known
    return known


@cache
def reads_shape_only(name: str) -> bool:
    """``empty_like``, ``ones_like``, ``new_zeros``: they need no element of their input."""
    return kind_of(name) in ("allocation", "generator") or base_name(name) in ("aten.rand_like", "aten.randn_like")


COMPUTE_BOUND: frozenset[Kind] = frozenset({"gemm", "attention"})


def is_memory_bound(name: str) -> bool:
    """Bound by the bytes it moves (or by its launch): all but GEMMs, convolutions, attention and collectives."""
    kind = kind_of(name)
    return kind not in COMPUTE_BOUND and kind != "collective"
