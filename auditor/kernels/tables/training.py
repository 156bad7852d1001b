"""Fused kernels of libraries for training: Liger, Unsloth, apex, Transformer Engine, DeepSpeed, Mamba, our own."""

from __future__ import annotations

from auditor.kernels.row import Row

_LIGER, _UNSLOTH, _APEX, _TE, _OURS = "Liger", "Unsloth", "apex", "Transformer Engine", "fused_replacements"
_OPTIM = "optimizer step over many tensors"

TRAINING = (
    # Our own, where no op of ours is known to have launched them
    Row(
        "norm",
        """^add_rms_norm_forward$ ^add_rms_norm_backward$ ^add_rms_norm_columns$ ^add_layer_norm_forward$
        ^add_layer_norm_backward$ ^add_layer_norm_columns$""",
        "add_rms_norm_forward", "fused_replacements/kernels/add_rms_norm.py", _OURS, "add + norm",
    ),
    Row(
        "norm",
        """^rms_norm_forward$ ^rms_norm_backward$ ^layer_norm_forward$ ^layer_norm_backward$ ^layer_norm_columns$
        ^qk_norm_rope_forward$ ^qk_norm_rope_backward$""",
        "rms_norm_forward", "fused_replacements/kernels/rms_norm.py", _OURS, "norm",
    ),
    Row(
        "elementwise", "^act_mul_forward$ ^act_mul_backward$ ^bias_act_forward$ ^bias_act_backward$",
        "act_mul_forward", "fused_replacements/kernels/act_mul.py", _OURS, "activation + mul or bias",
    ),
    # Liger and Unsloth: Triton kernels by the names of their functions
    Row(
        "norm", "^_fused_add_rms_norm_forward_kernel ^_fused_add_rms_norm_backward_kernel",
        "_fused_add_rms_norm_forward_kernel", "linkedin/Liger-Kernel src/liger_kernel/ops/fused_add_rms_norm.py",
        _LIGER, "add + RMS norm",
    ),
    Row(
        "norm",
        """^_rms_norm_forward_kernel ^_rms_norm_backward_kernel ^_block_rms_norm_ ^_layer_norm_forward_kernel
        ^_layer_norm_backward_kernel ^_group_norm_forward_kernel ^_group_norm_backward_kernel""",
        "_rms_norm_forward_kernel", "linkedin/Liger-Kernel src/liger_kernel/ops/rms_norm.py", _LIGER, "norm",
    ),
    Row(
        "elementwise",
        """^_swiglu_forward_kernel ^_swiglu_backward_kernel ^_geglu_tanh_forward_kernel ^_geglu_tanh_backward_kernel
        ^_geglu_""",
        "_swiglu_forward_kernel", "linkedin/Liger-Kernel src/liger_kernel/ops/swiglu.py", _LIGER, "activation + mul",
    ),
    Row(
        "elementwise", "^_triton_rope ^_triton_qwen2vl_mrope",
        "_triton_rope", "linkedin/Liger-Kernel src/liger_kernel/ops/rope.py", _LIGER, "rotary embedding",
    ),
    Row(
        "softmax", "liger_cross_entropy_kernel ^_jsd_kernel ^_kldiv_kernel_ ^_tv_distance_kernel ^_grpo_loss",
        "liger_cross_entropy_kernel", "linkedin/Liger-Kernel src/liger_kernel/ops/cross_entropy.py", _LIGER,
        "loss and its gradient",
    ),
    Row(
        "elementwise", "^element_mul_kernel ^_dyt_fwd ^_dyt_bwd",
        "element_mul_kernel", "linkedin/Liger-Kernel src/liger_kernel/ops/utils.py", _LIGER, "",
    ),
    Row(
        "norm", "^_rms_layernorm_forward ^_rms_layernorm_backward ^_gemma_rms_layernorm",
        "_rms_layernorm_forward", "unslothai/unsloth unsloth/kernels/rms_layernorm.py", _UNSLOTH, "RMS norm",
    ),
    Row(
        "elementwise",
        "^_rope_embedding ^_fg_kernel ^_dwf_dw_dfg_kernel ^_exact_forward_kernel ^_approx_forward_kernel",
        "_rope_embedding", "unslothai/unsloth unsloth/kernels/rope_embedding.py", _UNSLOTH,
        "rotary embedding or gated activation",
    ),
    Row(
        "softmax",
        """^_cross_entropy_forward ^_cross_entropy_backward ^_chunked_cross_entropy ^cross_entropy_fwd_kernel
        ^cross_entropy_bwd_kernel""",
        "_cross_entropy_forward",
        "unslothai/unsloth unsloth/kernels/cross_entropy_loss.py", _UNSLOTH, "cross entropy",
    ),
    # apex, Megatron, Transformer Engine
    Row(
        "elementwise", "^biasadd*prop ^biasaddrelu ^relu_fprop ^relu_bprop ^sigmoid_fprop ^sigmoid_bprop",
        "void biasAddRelu_fprop<c10::Half>(c10::Half*, c10::Half*, unsigned int, unsigned int)",
        "NVIDIA/apex csrc/mlp_cuda.cu", _APEX, "bias + activation",
    ),
    Row(
        "norm", "group_norm_nhwc group_norm_v2 groupnormnhwc",
        "void group_norm_nhwc_fwd_one_pass_kernel<Fwd_one_pass_fp16>(Group_norm_nhwc_fwd_params)",
        "NVIDIA/apex apex/contrib/csrc/group_norm", _APEX, "group norm (+ SiLU)",
    ),
    Row(
        "softmax", "softmaxxentropy",
        "void cunn_SoftMaxXEntropyForward<4, c10::BFloat16, float, c10::BFloat16, float>(float*, c10::BFloat16*)",
        "NVIDIA/apex apex/contrib/csrc/xentropy/xentropy_kernel.cu", _APEX, "softmax + cross entropy",
    ),
    Row(
        "norm",
        """^cuapplylayernorm ^cuapplyrmsnorm ^cucomputegradinput ^cucomputepartgradgammabeta ^cucomputegradgammabeta""",
        "void cuApplyLayerNorm<float, float, float>(float*, float*, float*, float const*, int, int, float)",
        "NVIDIA/apex csrc/layer_norm_cuda_kernel.cu", _APEX, "norm",
    ),
    Row(
        "softmax",
        """scaled_masked_softmax_warp scaled_upper_triang_masked_softmax scaled_softmax_warp
        scaled_aligned_causal_masked_softmax generic_scaled_masked_softmax""",
        "void scaled_masked_softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 11>(c10::BFloat16*)",
        "NVIDIA/TransformerEngine transformer_engine/common/fused_softmax", f"{_TE} / apex", "scale + mask + softmax",
    ),
    Row(
        "norm",
        """rmsnorm_fwd_tuned rmsnorm_fwd_general rmsnorm_bwd_tuned rmsnorm_bwd_general rmsnorm_bwd_finalize
        ln_fwd_tuned ln_fwd_general ln_bwd_tuned ln_bwd_general ln_bwd_finalize""",
        (
            "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<transformer_engine::"
            "Kernel_traits<int>>(int)"
        ),
        "NVIDIA/TransformerEngine transformer_engine/common/normalization/rmsnorm",
        _TE, "norm (+ quantise)",
    ),
    Row(
        "norm",
        """^ln_fwd_kernel ^ln_bwd_kernel ^ln_parallel_residual ^_layer_norm_fwd_1pass_kernel ^_layer_norm_bwd_kernel
        ^layer_norm_fwd_kernel ^layer_norm_bwd_kernel ^layer_norm_gated_fwd""",
        "_layer_norm_fwd_1pass_kernel", "Dao-AILab/flash-attention flash_attn/ops/triton/layer_norm.py",
        "flash-attention / Mamba", "dropout + add + norm",
    ),
    Row(
        "elementwise",
        """transformer_engine::*gated transformer_engine::*dgated transformer_engine::*act transformer_engine::*geglu
        transformer_engine::*swiglu""",
        (
            "void transformer_engine::gated_act_kernel<8, float, transformer_engine::Empty, "
            "&transformer_engine::silu>(int)"
        ),
        "NVIDIA/TransformerEngine transformer_engine/common/util/vectorized_pointwise.h",
        _TE, "activation + mul + cast",
    ),
    Row(
        "elementwise", "fused_rope",
        "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>(__nv_bfloat16 const*, float const*)",
        "NVIDIA/TransformerEngine transformer_engine/common/fused_rope/fused_rope.cu", _TE, "rotary embedding",
    ),
    Row(
        "copy",
        """transformer_engine::*cast transformer_engine::*transpose cast_transpose_fused transformer_engine::*quantize
        transformer_engine::*dequantize""",
        "void transformer_engine::cast_transpose_fused_kernel_notaligned<true, false, float>(int)",
        "NVIDIA/TransformerEngine transformer_engine/common/transpose/cast_transpose_fusion.cu",
        _TE, "cast + transpose",
    ),
    Row(
        "copy", "transformer_engine::*swizzle ^swizzle_col_scaling ^swizzle_row_scaling",
        "void transformer_engine::swizzle_col_scaling_kernel<int, 128, 4>(void const*, void*, int, int)",
        "NVIDIA/TransformerEngine transformer_engine/common/swizzle/swizzle.cu", _TE, "",
    ),
    Row(
        "reduction", "transformer_engine::*amax",
        "void transformer_engine::(anonymous namespace)::amax_kernel<8, true, __nv_bfloat16>(__nv_bfloat16 const*)",
        "NVIDIA/TransformerEngine transformer_engine/common/recipe/current_scaling.cu", _TE, "",
    ),
    Row(
        "gather", "^_permute_kernel ^_unpermute_kernel ^_row_id_map_pass ^moe_permute ^moe_unpermute ^moe_recover",
        "_row_id_map_pass_1_kernel", "NVIDIA/TransformerEngine transformer_engine/common/triton/permutation.py",
        _TE, "",
    ),
    # Optimizers
    Row(
        "optimizer", "multi_tensor_apply<fusedadam multi_tensor_apply<fusedsgd multi_tensor_apply<fusedadagrad",
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
            "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous "
            "namespace)::FusedAdamMathFunctor<float, 4, (ADAM_MODE)0, false>>(int)"
        ),
        "pytorch/pytorch aten/src/ATen/native/cuda/fused_adam_utils.cuh", "PyTorch", _OPTIM,
    ),
    Row(
        "optimizer",
        """multi_tensor_apply<adamfunctor multi_tensor_apply<adagradfunctor multi_tensor_apply<lamb
        multi_tensor_apply<sgdfunctor multi_tensor_apply<adamcapturable""",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float, float>(int)",
        "trace a100_training_torch1.12", _APEX, _OPTIM,
    ),
    Row(
        "optimizer", "multi_tensor_apply",
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
            "namespace)::TensorListMetadata<2>, at::native::(anonymous "
            "namespace)::BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>>(int)"
        ),
        "trace mi300x_resnet_ddp_training", "PyTorch",
    ),
    Row(
        "optimizer", "lpnorm_cleanup lpmax_cleanup ^cleanup$ ^cleanup_v2",
        (
            "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float, int>(float const*, "
            "at::native::TensorListAddresses, int)"
        ),
        "pytorch/pytorch aten/src/ATen/native/cuda/ForeachReduceOp.cu", "PyTorch",
    ),
    Row(
        "optimizer", "kOptimizer kPreconditionOptimizer",
        "void kOptimizer32bit1State<float, 5>(float*, float*, float*, float*, float, float)",
        "bitsandbytes-foundation/bitsandbytes csrc/kernels.cu", "bitsandbytes", "optimizer step",
    ),
    # State-space models and linear attention
    Row(
        "attention",
        """^chunk_*gated_delta ^fused_recurrent ^chunk_fwd_kernel_ ^chunk_bwd_kernel_ ^chunk_gla ^chunk_kda ^chunk_rwkv
        ^recompute_w_u_fwd ^chunk_local_cumsum ^chunk_scaled_dot_kkt ^fused_sigmoid_gating_delta_rule ^fused_chunk
        ^prepare_wy_repr ^solve_tril ^merge_16x16_to ^parallel_attn ^parallel_nsa ^parallel_simple_gla
        ^parallel_retention ^parallel_based wkv""",
        "fused_recurrent_gated_delta_rule_fwd_kernel",
        "fla-org/flash-linear-attention fla/ops", "flash-linear-attention",
        "linear attention",
    ),
    Row(
        "sort",
        """selective_scan_fwd selective_scan_bwd ^_chunk_scan ^_chunk_state ^_state_passing ^_chunk_cumsum ^_bmm_chunk
        ^selective_state_update ^_selective_scan_update""",
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1, true, true, true, false>>(int)",
        "state-spaces/mamba csrc/selective_scan/selective_scan_fwd_kernel.cuh", "Mamba", "selective scan",
    ),
    Row(
        "elementwise", "causal_conv1d",
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true, c10::BFloat16>>(ConvParamsBase)",
        "Dao-AILab/causal-conv1d csrc/causal_conv1d_fwd.cu", "causal-conv1d", "short convolution + activation",
    ),
    # DeepSpeed
    Row(
        "elementwise", "^fused_bias_gelu ^fused_bias_relu ^fused_bias_silu ^fused_bias_add gptj_residual_add",
        "void fused_bias_gelu<__half>(__half*, __half const*, int, int)",
        "deepspeedai/DeepSpeed csrc/transformer/inference/csrc/gelu.cu", "DeepSpeed", "bias + activation or residual",
    ),
    Row(
        "norm", "^fused_ln ^fused_residual_ln fused_bias_residual ^rms_norm_kernel ^pre_rms_norm",
        "void fused_residual_ln<__half, 8, 1, 8, 64, true>(__half*, __half const*, __half const*, __half const*)",
        "deepspeedai/DeepSpeed csrc/transformer/inference/csrc/layer_norm.cu", "DeepSpeed", "bias + residual + norm",
    ),
)  # fmt: skip
