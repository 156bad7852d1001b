"""Fused attention, by the library that has it."""

from __future__ import annotations

from auditor.kernels.row import Row

_FUSED = "attention"

ATTENTION = (
    Row(
        "attention",
        """^fmha_v2 ^fmhasm ^fmhakernel ^xqa_kernel ^kernel_mha ^kernel_sm90_mha masked_multihead_attention mmha::""",
        "fmha_v2_flash_attention_bf16_64_128_S_q_paged_kv_128_causal_sm90_kernel_nl",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/contextFusedMultiHeadAttention", "TensorRT-LLM", _FUSED,
    ),
    Row(
        "attention", "pytorch_flash::",
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, "
            "false>>(int)"
        ),
        "trace h100_qwen1.5-0.5b_eager", "flash-attention in PyTorch", _FUSED,
    ),
    Row(
        "attention",
        """flash::flash flash_fwd_ flash_bwd_ ^_flash_attn cutlass::device_kernel<flash:: cutlass::*kernel<flashattn
        flash_attn_ flash_attention flashattention ^compute_attn_ flash::prepare_varlen ^get_mla_metadata
        sparse_attn_fwd ^fmha_fprop ^fmha_dgrad ^fmha_bprop flash_decode""",
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::"
            "CollectiveMainloopFwdSm90>>>(int)"
        ),
        "Dao-AILab/flash-attention hopper/flash_fwd_launch_template.h", "flash-attention", _FUSED,
    ),
    Row(
        "attention", "fmha_cutlassf fmha_cutlassb attention_kernel_batched<attentionkernel pytorchmemeffattention",
        (
            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::"
            "Params)"
        ),
        "pytorch/pytorch aten/src/ATen/native/transformers/cuda/mem_eff_attention", "xFormers / PyTorch", _FUSED,
    ),
    Row(
        "attention", "cudnn_generated_fort_native_sdpa cudnn*sdpa cudnn*flash cudnn*mha",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "NVIDIA/cudnn-frontend, its SDPA engine", "cuDNN", _FUSED,
    ),
    Row(
        "attention",
        """withpagedkvcachekernel withraggedkvcachekernel singledecodewithkvcache singleprefillwithkvcache
        flashinfer::*attention flashinfer::*mla flashinfer::prefillwithkvcache mergestates
        persistentvariablelengthmerge""",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<(flashinfer::MaskMode)1>>(int)",
        "flashinfer-ai/flashinfer include/flashinfer/attention/prefill.cuh", "FlashInfer", _FUSED,
    ),
    Row(
        "attention",
        """^kernel_unified_attention ^reduce_segments vllm::paged_attention ^paged_attention vllm::merge_attn_states
        merge_attn_states ^kernel_paged_attention""",
        "kernel_unified_attention_2d", "trace vllm_decode_graph_replay", "vLLM", _FUSED,
    ),
    Row(
        "attention", "^_fwd_kernel$ ^_fwd_grouped_kernel_stage ^_fwd_kernel_stage ^decode_attention ^_decode_att_",
        "_fwd_grouped_kernel_stage1", "sgl-project/sglang python/sglang/srt/layers/attention/triton_ops", "SGLang",
        _FUSED,
    ),
    Row(
        "attention", "ck_tile::kentry<fmha ck_tile::*fmha ck_tile::kentry<unifiedattention",
        (
            "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40BlockFmhaBatchPrefillPipelineQRK"
            "SVSAsync"
        ),
        "trace mi300x_sglang_qwen3-8b_already_fused", "Composable Kernel", _FUSED,
    ),
    Row(
        "attention",
        """^attn_fwd ^bwd_kernel_dk_dv ^bwd_kernel_dq ^bwd_kernel_fuse ^bwd_preprocess ^_attn_fwd ^_attn_bwd
        ^_bwd_kernel_dkdv ^_bwd_kernel_dq ^_bwd_preprocess ^_attn_bwd_preprocess""",
        "attn_fwd", "trace mi300x_sd3.5_compiled_and_eager", "AOTriton", _FUSED,
    ),
    Row(
        "attention", "sage*attn qk_int_sv qk_int8_sv ^_sage",
        "void qk_int_sv_f16_attn_kernel<128, 64, 32, 64, 128, (DataType)0>(signed char*)",
        "thu-ml/SageAttention csrc/qattn/qk_int_sv_f16_cuda_sm80.cu", "SageAttention", _FUSED,
    ),
    Row(
        "attention", "cutlass::device_kernel<cutlass::fmha cutlass::*kernel<cutlass::fmha",
        (
            "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized<cute::"
            "tuple<int>>>(int)"
        ),
        "NVIDIA/cutlass examples/77_blackwell_fmha, as vLLM and FlashInfer build it", "CUTLASS", _FUSED,
    ),
    Row(
        "attention", "^attend_ker ^fwd_attend_ker ^bwd_attend",
        "void fwd_attend_ker<128, true>(fwd_globals<128>)", "HazyResearch/ThunderKittens kernels/attn",
        "ThunderKittens", _FUSED,
    ),
    Row(
        "attention", "natten::",
        "void natten::cuda::naive::PointwiseNeighborhood2D<float>(int)", "SHI-Labs/NATTEN csrc", "NATTEN", _FUSED,
    ),
    Row(
        "attention", "^_fwd_kernel_splitk ^_splitk_reduce",
        "_fwd_kernel_splitK", "facebookresearch/xformers xformers/ops/fmha/_triton/splitk_kernels.py", "xFormers",
        _FUSED,
    ),
    Row(
        "attention", "^micro_sdpa ^xe_fmha sdp::*fmha",
        "micro_sdpa", "uxlfoundation/oneDNN src/gpu/intel/ocl/micro_sdpa.cl", "oneDNN", _FUSED,
    ),
    Row(
        "attention", "hstu_attn",
        "_hstu_attn_fwd", "facebookresearch/generative-recommenders generative_recommenders/ops/triton", "HSTU", _FUSED,
    ),
    Row(
        "gather", "ms_deformable_",
        "void ms_deformable_im2col_gpu_kernel<float>(int, float const*, long const*, long const*, float const*)",
        "fundamentalvision/Deformable-DETR models/ops/src/cuda/ms_deform_im2col_cuda.cuh", "Deformable DETR",
        "sampling + weighted sum of deformable attention",
    ),
    Row(
        "softmax", "^attn_softmax",
        "void attn_softmax_v2<__half, 32>(__half*, __half*, __half*, float, bool)",
        "deepspeedai/DeepSpeed csrc/transformer/inference/csrc/softmax.cu", "DeepSpeed", "scale + mask + softmax",
    ),
    Row(
        "copy", "remove_padding add_padding transform0213 transform_0213",
        "void at::native::remove_padding_transform0213_2<c10::Half>(c10::Half const*, c10::Half*, int const*)",
        "pytorch/pytorch aten/src/ATen/native/nested/cuda/NestedTensorTransformerFunctions.cu", "", "",
    ),
    Row(
        "elementwise", "transform_bias_rescale_qkv",
        "void at::native::(anonymous namespace)::transform_bias_rescale_qkv_kernel<float, float, true>(int)",
        "trace h100_small_transformer_training", "PyTorch", "bias + scale + split of q, k and v",
    ),
)  # fmt: skip
