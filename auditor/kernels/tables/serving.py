"""Fused kernels of engines that serve models: vLLM, SGLang, FlashInfer, AITER, TensorRT-LLM, triton_kernels."""

from __future__ import annotations

from auditor.kernels.row import Row

_VLLM, _SGL, _FI, _AITER, _TK = "vLLM", "SGLang", "FlashInfer", "AITER", "OpenAI triton_kernels"
_ADD_NORM, _NORM, _GATED, _ROPE = "add + RMS norm", "RMS norm", "activation + mul", "rotary embedding"
_PAGES = "write of the KV cache"

SERVING = (
    # vLLM
    Row(
        "norm",
        """vllm::fused_add_rms_norm_static_fp8_quant vllm::rms_norm_dynamic_per_token_quant
        vllm::rms_norm_static_fp8_quant vllm::*rms_norm*quant""",
        "void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16, c10::Float8_e4m3fn>(c10::Float8_e4m3fn*)",
        "vllm-project/vllm csrc/layernorm_quant_kernels.cu", _VLLM, "RMS norm + quantise",
    ),
    Row(
        "norm", "vllm::fused_add_rms_norm",
        (
            "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16*, c10::BFloat16 "
            "const*)"
        ),
        "vllm-project/vllm csrc/layernorm_kernels.cu", _VLLM, _ADD_NORM,
    ),
    Row(
        "norm", "vllm::rms_norm",
        (
            "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, c10::BFloat16 const*, "
            "float)"
        ),
        "vllm-project/vllm csrc/layernorm_kernels.cu", _VLLM, _NORM,
    ),
    Row(
        "norm", "fusedqknormrope fused_qknorm_rope fused_qk_norm_rope",
        "void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, false>(void*, int, int, int, int, float)",
        "vllm-project/vllm csrc/fused_qknorm_rope_kernel.cu", _VLLM, "RMS norm of q and k + rotary embedding",
    ),
    Row(
        "elementwise", "vllm::*act_and_mul*quant vllm::silu_mul_fp8_quant _silu_mul_fp8_quant",
        "void vllm::act_and_mul_quant_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>>(c10::Float8_e4m3fn*)",
        "vllm-project/vllm csrc/quantization/activation_kernels.cu", _VLLM, "activation + mul + quantise",
    ),
    Row(
        "elementwise",
        "vllm::act_and_mul vllm::swigluoai_and_mul vllm::fatrelu_and_mul vllm::act_and_mul_kernel_with_param",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>(c10::BFloat16*)",
        "vllm-project/vllm csrc/activation_kernels.cu", _VLLM, _GATED,
    ),
    Row(
        "elementwise", "vllm::activation_kernel",
        "void vllm::activation_kernel<c10::Half, &vllm::gelu_fast_kernel<c10::Half>>(c10::Half*, c10::Half const*)",
        "vllm-project/vllm csrc/activation_kernels.cu", _VLLM, "activation",
    ),
    Row(
        "elementwise", "vllm::*rotary_embedding ^_triton_mrope",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)",
        "trace vllm_decode_graph_replay", _VLLM, _ROPE,
    ),
    Row(
        "copy", "vllm::reshape_and_cache vllm::concat_and_cache vllm::copy_blocks vllm::gather_cache vllm::cp_gather",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>(int)",
        "trace vllm_decode_graph_replay", _VLLM, _PAGES,
    ),
    Row(
        "softmax", "topkgatingsoftmax topkgating moesoftmax grouped_topk moe_fused_gate",
        "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, 32, int>(float const*, bool const*, float*, int, int*)",
        "vllm-project/vllm csrc/moe/topk_softmax_kernels.cu", _VLLM, "softmax + top-k",
    ),
    Row(
        "sort", "moe_align_block_size count_and_sort_expert_tokens moe_sorting",
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*, int*, int, int)",
        "vllm-project/vllm csrc/moe/moe_align_sum_kernels.cu", _VLLM, "sort of tokens by expert",
    ),
    Row(
        "gemm", "^fused_moe_kernel ^_fused_moe ^invoke_fused_moe ^fused_moe_",
        "fused_moe_kernel", "vllm-project/vllm vllm/model_executor/layers/fused_moe/fused_moe.py", _VLLM,
        "gather + GEMMs of the experts",
    ),
    Row(
        "reduction", "moe_sum",
        "void vllm::moe::moe_sum_kernel<c10::BFloat16, 2>(c10::BFloat16*, c10::BFloat16 const*, int)",
        "vllm-project/vllm csrc/moe/moe_align_sum_kernels.cu", _VLLM, "",
    ),
    Row(
        "gather",
        """rejection_greedy_sample rejection_random_sample sample_recovered_tokens eagle_prepare_inputs
        apply_token_bitmask apply_repetition_penalties convert_vertical_slash""",
        "rejection_greedy_sample_kernel", "vllm-project/vllm vllm/v1/sample/rejection_sampler.py", _VLLM, "",
    ),
    Row(
        "gemm", "wvsplitk llgemm1 ^llmm1",
        "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2, 16, 8, 2, 1>(int, int, __hip_bfloat16 const*)",
        "vllm-project/vllm csrc/rocm/skinny_gemms.cu", _VLLM, "",
    ),
    # SGLang
    Row(
        "elementwise", "sgl_hip::activation:: sglang::*act_and_mul",
        (
            "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_P"
            "S4_i"
        ),
        "trace mi300x_sglang_qwen3-8b_already_fused", _SGL, _GATED,
    ),
    Row(
        "copy", "store_kvcache store_kv_cache set_kv_buffer set_mla_kv_buffer concat_mla_",
        "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>((anonymous namespace)::StoreKVCacheParams)",
        "trace mi300x_sglang_qwen3-8b_already_fused", _SGL, _PAGES,
    ),
    Row(
        "gather",
        """create_flashinfer_kv_indices compute_position_kernel resolve_future_token_ids write_req_to_token_pool
        create_chunked_prefix_cache assign_req_to_token_pool assign_extend_cache_locs ^alloc_extend_kernel
        ^alloc_decode_kernel get_last_loc build_tree_efficient _convert_req_index _copy_page_indices""",
        "create_flashinfer_kv_indices_triton", "trace mi300x_sglang_qwen3-8b_already_fused", _SGL, "",
    ),
    Row(
        "elementwise", "^fused_gdn_gating",
        "fused_gdn_gating_kernel", "sgl-project/sglang pull request 22353", _SGL, "gates of linear attention",
    ),
    Row(
        "gather", "^_fwd_kernel_ep_ ^ep_scatter ^ep_gather reorder_triton_kernel compute_src2dst compute_seg_indptr",
        "_fwd_kernel_ep_scatter_1", "sgl-project/sglang python/sglang/srt/layers/moe/ep_moe/kernels.py", _SGL, "",
    ),
    # FlashInfer
    Row(
        "norm", "flashinfer::norm::*fusedaddrmsnorm fusedaddrmsnormkernel",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)",
        "flashinfer-ai/flashinfer issue 2396", _FI, _ADD_NORM,
    ),
    Row(
        "norm", "flashinfer::norm:: ^rmsnormkernel ^rmsnormquantkernel",
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*)",
        "flashinfer-ai/flashinfer issue 2396", _FI, _NORM,
    ),
    Row(
        "elementwise", "flashinfer::activation:: flashinfer::*act_and_mul",
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>(__nv_bfloat16*, __nv_bfloat16 const*)",
        "flashinfer-ai/flashinfer include/flashinfer/activation.cuh", _FI, _GATED,
    ),
    Row(
        "elementwise", "batchqkapplyrotary applyrotary*cache ropequantize",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheHeadParallelismKernel<true, 128u, 8u>(__nv_bfloat16*)",
        "flashinfer-ai/flashinfer include/flashinfer/pos_enc.cuh", _FI, _ROPE,
    ),
    Row(
        "copy", "appendpagedkvcache appendpagedkvmla",
        "void flashinfer::AppendPagedKVCacheKernel<128u, 8u, __nv_bfloat16, int>(flashinfer::paged_kv_t<int>)",
        "flashinfer-ai/flashinfer include/flashinfer/page.cuh", _FI, _PAGES,
    ),
    Row(
        "sort", "flashinfer::sampling:: ^topksampling ^toppsampling ^topktoppsampling ^radixtopk airtopp",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, 4u, float, int>(float*, int*)",
        "flashinfer-ai/flashinfer include/flashinfer/sampling.cuh", _FI, "top-k + top-p + sampling",
    ),
    # AITER
    Row(
        "norm", "aiter::*add_rmsnorm*quant aiter::*add_rmsnorm aiter::*add_rms_norm",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
        "trace mi300x_sglang_qwen3-8b_already_fused", _AITER, "RMS norm (+ add, + quantise)",
    ),
    Row(
        "norm", "aiter::*rmsnorm aiter::*rms_norm aiter::*layernorm aiter::*layer_norm ^_fused_rms_",
        "_ZN5aiter20layernorm2d_fwd_bf16E", "ROCm/aiter csrc/kernels", _AITER, "norm",
    ),
    Row(
        "attention", "aiter::fmha aiter::pa_ aiter::mla_ aiter::*paged_attention aiter::*flash_attn aiter::*fmha",
        "_ZN5aiter24fmha_fwd_hd128_bf16_rtneE", "ROCm/aiter hsa/gfx942/fmha_v3_fwd", _AITER, "attention",
    ),
    Row(
        "gemm", "aiter::fmoe aiter::*fmoe aiter::*moe_stage aiter::*moe_gemm",
        "_ZN5aiter44fmoe_bf16_blockscaleBf16_g1u1_ps_silu_32x128E", "ROCm/aiter pull request 2690", _AITER,
        "GEMMs of the experts + activation",
    ),
    Row(
        "gemm", "aiter::*gemm",
        "_ZN5aiter38flatmm_uk_gfx9_f16f8_128x256x128_gemm_E", "ROCm/aiter csrc/py_itfs_cu", _AITER, "",
    ),
    Row(
        "elementwise", "aiter::*act_and_mul aiter::*silu_and_mul aiter::*gelu",
        "void aiter::act_and_mul_kernel<__hip_bfloat16, __hip_bfloat16, &aiter::silu_kernel, 8>(__hip_bfloat16*)",
        "ROCm/aiter csrc/kernels/activation_kernels.cu", _AITER, _GATED,
    ),
    Row(
        "elementwise", "aiter::*rope aiter::*rotary ^kn_entry_*_rope ^kn_entry_",
        "void aiter::kn_entry_2c_sbhd_cached_indirect_inplace<OpCachedFwd, 0, false, true>(__hip_bfloat16*)",
        "ROCm/aiter csrc/include/rope/rope_common.h", _AITER, _ROPE,
    ),
    Row(
        "copy", "aiter::*reshape_and_cache aiter::*concat_and_cache",
        "void aiter::reshape_and_cache_kernel<__hip_bfloat16, __hip_bfloat16, 0>(__hip_bfloat16 const*)",
        "ROCm/aiter csrc/kernels/cache_kernels.cu", _AITER, _PAGES,
    ),
    Row(
        "elementwise", "aiter::*quant",
        "void aiter::dynamic_per_group_scaled_quant_kernel<__hip_bfloat16, 32, 128>(float*)",
        "ROCm/aiter csrc/kernels/quant_kernels.cu", _AITER, "quantise",
    ),
    # TensorRT-LLM
    Row(
        "norm",
        "tensorrt_llm::*rmsnorm tensorrt_llm::*layernorm fusedaddrmsnormquant generalrmsnorm generallayernorm",
        "void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16, __nv_fp8_e4m3, false>(__nv_bfloat16 const*)",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/rmsnormKernels.cu", "TensorRT-LLM", "norm + quantise",
    ),
    Row(
        "elementwise", "tensorrt_llm::*doactivation tensorrt_llm::*doGatedActivation applybiasropeupdatekvcache",
        "void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16, __nv_bfloat16, 256, 128>(int)",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/unfusedAttentionKernels", "TensorRT-LLM",
        "bias + rotary embedding + write of the KV cache",
    ),
    Row(
        "gather", "finalizemoerouting expandinputrows",
        "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16, __nv_bfloat16>(int)",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/moe_kernels.cu", "TensorRT-LLM",
        "scatter + sum over the experts",
    ),
    Row(
        "gemm", "^bmm_*swiglu ^bmm_*_silu",
        "bmm_E4m3_E4m3E4m3_Fp32_t128x8x512u2_s6_et64x8_m64x8x32_cga1x1x1_16dp256b_TN_transOut_swiGlu_dynBatch_sm100f",
        "flashinfer-ai/flashinfer, cubins of trtllm-gen", "TensorRT-LLM", "GEMM + SwiGLU",
    ),
    Row(
        "gemm", "^bmm_e4m3 ^bmm_e2m1 ^bmm_bfloat16 ^bmm_fp16 ^bmm_mxe",
        "bmm_Bfloat16_E4m3E4m3_Fp32_t128x16x128_s6_et128x16_m128x16x32_cga1x1x1_16dp256b_TN_schedS_sm100f",
        "flashinfer-ai/flashinfer, cubins of trtllm-gen", "TensorRT-LLM", "scales + GEMM",
    ),
    # OpenAI's triton_kernels, by which vLLM runs gpt-oss
    Row(
        "gemm", "^_matmul_ogs_*swiglu ^_p_matmul_ogs_*swiglu ^_matmul_ogs_*_silu",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "trace vllm_decode_graph_replay", _TK,
        "gather + dequantise + GEMM + SwiGLU",
    ),
    Row(
        "gemm", "^_matmul_ogs ^_p_matmul_ogs",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "trace vllm_decode_graph_replay", _TK,
        "dequantise + GEMM",
    ),
    Row(
        "gather", "^_combined_routing ^_routing_ ^_expt_data",
        "_combined_routing_compute", "trace vllm_decode_graph_replay", _TK, "",
    ),
    Row(
        "gather", "^_finalize_matmul ^_finalize_scatter",
        "_finalize_matmul_scatter_bf16", "trace vllm_decode_graph_replay", _TK, "scatter + sum over the experts",
    ),
    Row(
        "reduction", "^_sum_bitmatrix",
        "_sum_bitmatrix_rows", "trace vllm_decode_graph_replay", _TK, "",
    ),
    Row(
        "sort", "^_topk_forward ^_topk_backward ^_topk",
        "_topk_forward", "trace vllm_decode_graph_replay", _TK, "top-k + softmax",
    ),
    Row(
        "copy", "^reshape_and_cache ^concat_and_cache",
        "reshape_and_cache_kernel_flash",
        "vllm-project/vllm vllm/attention/ops/triton_reshape_and_cache_flash.py", _VLLM,
        _PAGES,
    ),
)  # fmt: skip

SHARED = (
    # Names that several engines share, so without their namespace
    Row(
        "norm", "fused_add_rms_norm add_rms_norm_kernel add_rmsnorm",
        "_fused_add_rmsnorm_kernel", "sgl-project/sglang python/sglang/srt/layers", "Triton kernel", _ADD_NORM,
    ),
    Row(
        "elementwise", "act_and_mul silu_and_mul gelu_and_mul swiglu_and_mul",
        "_act_and_mul_kernel", "sgl-project/sglang python/sglang/srt/layers/moe", _SGL, _GATED,
    ),
    Row(
        "elementwise", "rotary_embedding_kernel rotary_kernel apply_rotary rotary_pos_emb",
        "void rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)",
        "trace mi300x_sglang_qwen3-8b_already_fused", _SGL, _ROPE,
    ),
)  # fmt: skip
"""Held against a name after those of the libraries for training."""
