"""Quantised matrix products, and the kernels that quantise for them."""

from __future__ import annotations

from auditor.kernels.row import Row

_PRODUCT = "dequantise + GEMM"

QUANTISED = (
    Row(
        "gemm", "marlin::marlin ^marlin$ ^marlin_24 ^marlin_moe marlin_moe_wna16::",
        "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 16, 4, 4, true, false, 0>(int4 const*)",
        "IST-DASLab/marlin marlin/marlin_cuda_kernel.cu", "Marlin", _PRODUCT,
    ),
    Row(
        "copy", "gptq_marlin_repack awq_marlin_repack",
        "void marlin::gptq_marlin_repack_kernel<256, 4, false>(unsigned int const*, unsigned int const*)",
        "vllm-project/vllm csrc/quantization/gptq_marlin/gptq_marlin_repack.cu", "Marlin", "",
    ),
    Row(
        "gemm",
        "gemm_half_q_half vecquant4matmul vecquant8matmul ^q_gemm matmul_248 q4_matmul mul_mat_q mul_mat_vec_q",
        "void vllm::gptq::gemm_half_q_half_gptq_4bit_kernel<true, 8>(__half const*, unsigned int const*)",
        "vllm-project/vllm csrc/quantization/gptq/q_gemm.cu", "GPTQ / ExLlama", _PRODUCT,
    ),
    Row(
        "gemm", "gemm_forward_4bit_cuda gemv_forward_4bit awq_gemm_kernel ^awq_gemm ^gemv_kernel_g64 ^gemv_kernel_g128",
        "void vllm::awq::gemm_forward_4bit_cuda_m16nXk32<128>(int, int, __half*, int*, __half*)",
        "vllm-project/vllm csrc/quantization/awq/gemm_kernels.cu", "AWQ", _PRODUCT,
    ),
    Row(
        "gemm", "kgemm_4bit_inference kgemv_4bit",
        "void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>(int, int, int, __nv_bfloat16*, unsigned char*)",
        "bitsandbytes-foundation/bitsandbytes csrc/kernels.cu", "bitsandbytes", _PRODUCT,
    ),
    Row(
        "elementwise",
        """^kdequantizeblockwise ^kquantizeblockwise ^kint8vectorquant ^kdequant_mm ^kgetcolrowstats
        ^kdoublerowcolquant""",
        "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*, float*, __nv_bfloat16*)",
        "bitsandbytes-foundation/bitsandbytes csrc/kernels.cu", "bitsandbytes", "quantise or dequantise",
    ),
    Row(
        "gemm", "deep_gemm:: sm90_fp8_gemm sm100_fp8_gemm fp8_gemm_kernel",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 1u, 128u, 128u, 128u>(float*, int*)",
        "deepseek-ai/DeepGEMM deep_gemm/include/deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh", "DeepGEMM",
        "block scales + GEMM",
    ),
    Row(
        "gemm",
        """^_w8a8_block_fp8_matmul ^_w8a8_block_int8_matmul ^_scaled_mm_kernel ^scaled_mm_kernel ^_gemm_a8w8
        ^_gemm_afp4wfp4 ^_gemm_a16w""",
        "_w8a8_block_fp8_matmul", "vllm-project/vllm vllm/model_executor/layers/quantization/utils/fp8_utils.py",
        "vLLM / AITER", "block scales + GEMM",
    ),
    Row(
        "gemm",
        "cutlass::device_kernel<machete cutlass::device_kernel<vllm::cutlass cutlass::kernel2<vllm::cutlass",
        "void cutlass::device_kernel<vllm::cutlass_3x_gemm<cutlass::float_e4m3_t, cutlass::bfloat16_t>>(int)",
        "vllm-project/vllm csrc/quantization/w8a8/cutlass/c3x", "vLLM CUTLASS", "GEMM + scales + bias",
    ),
    Row(
        "elementwise",
        """per_token_group_quant per_token_quant_8bit scaled_fp8_quant scaled_int8_quant cvt_fp16_to_fp4 cvt_fp8_to_fp4
        _per_token_quant act_quant_kernel segmented_max_reduction per_tensor_absmax per_tensor_quant per_token_quant_fp8
        quantize_fp8 mxfp8_quant mxfp4_quant to_mxfp8 quantize_with_block_size""",
        "void vllm::dynamic_per_token_scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)",
        "vllm-project/vllm csrc/quantization/w8a8/fp8/common.cu", "vLLM / SGLang", "maximum + scale + quantise",
    ),
    Row(
        "elementwise", "dequantize_weights reconstruct_exllama reconstruct_gptq awq_dequantize",
        "void vllm::awq::dequantize_weights(int*, __half*, int*, __half*, int)",
        "vllm-project/vllm csrc/quantization/awq/gemm_kernels.cu", "AWQ / GPTQ", "unpack + scale",
    ),
)  # fmt: skip
