"""What is left when no library is known: a word in the name that says what the kernel does, as its author called it.

These come last, and say nothing of a library. Only words that no other meaning holds are here: ``gelu``, not ``act``.
"""

from __future__ import annotations

from auditor.kernels.row import Row

_ELSEWHERE = "names of kernels elsewhere"

WORDS = (
    Row(
        "norm", "l2norm _norm_fwd _norm_bwd norm_forward norm_backward normopt _bnorm _lnorm fusednorm",
        "l2norm_fwd_kernel", "fla-org/flash-linear-attention fla/modules/l2norm.py", "", "norm",
    ),
    Row("softmax", "cross_entropy crossentropy xentropy", "cross_entropy_kernel", _ELSEWHERE, "", "cross entropy"),
    Row("attention", "_attn_ attn_kernel attn_fwd attn_bwd sdpa _mha", "fwd_attn_kernel", _ELSEWHERE, "", "attention"),
    Row(
        "elementwise", "dequant weight_dequant", "weight_dequant_kernel",
        "deepseek-ai/DeepSeek-V3 inference/kernel.py",
    ),
    Row("elementwise", "quantize quantise _quant ^quant", "_fp8_rowwise_quant", _ELSEWHERE),
    Row("optimizer", "adamw adam_ _adam8bit lamb_ lion_ muon adagrad sgd_", "_single_param_adam_kernel", _ELSEWHERE),
    Row(
        "elementwise", "addbias add_bias bias_add biasadd residual_add add_residual addresidual",
        "void fastertransformer::addBiasGeluV2<__half2, 4>(__half2*, __half2 const*, int const*, __half2 const*)",
        "NVIDIA/FasterTransformer src/fastertransformer/kernels/activation_kernels.cu", "",
        "bias or residual + activation",
    ),
    Row("sort", "topk top_k select::radix argsort", "void fast_topk_kernel<float>(int)", _ELSEWHERE),
    Row(
        "copy",
        """transpose permute rearrange repack reorder concat_ _concat padding_kernel cast_kernel _cast_ convert_kernel
        copy_""",
        "void onnxruntime::cuda::Transpose4DKernel<int>(int)", _ELSEWHERE,
    ),
    Row(
        "gather", "gatherkernel gather_ scatter_ lookup_kernel expand_kernel",
        "void onnxruntime::cuda::_GatherKernel<long>(long, long)", _ELSEWHERE,
    ),
    Row(
        "elementwise",
        "gelu_ gelukernel silu_ swish sigmoid relu_ eltwise elementwise _binary binary_kernel pointwise_ activation_",
        "void onnxruntime::cuda::_BinaryElementWise<float, float, float>(int)", _ELSEWHERE,
    ),
    Row("reduction", "sum_reduce gen_reduction reduce_sum _reduce_ reduction_kernel", "column_sum_reduce", _ELSEWHERE),
    Row("random", "rng_kernel random_ gumbel", "gumbel_rng_kernel", _ELSEWHERE),
)  # fmt: skip
"""Held against a name when all other rows are through."""
