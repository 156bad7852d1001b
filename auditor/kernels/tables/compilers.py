"""Kernels of compilers beside Inductor, whose names :mod:`auditor.kernels.inductor` decodes."""

from __future__ import annotations

from auditor.kernels.row import Row

_TRT = "NVIDIA TensorRT"

COMPILERS = (
    Row(
        "attention", "__myl_*mha __myl_*fmha _gemm_mha_v2",
        "_gemm_mha_v2_0x27c8ee3fd4bb1b1b9d1c", "NVIDIA/TensorRT issue 3620", _TRT, "attention",
    ),
    Row(
        "gemm", "^__myl_fc ^__myl_*fc ^__myl_*matmul ^__myl_*conv",
        "__myl_FcCastAddMulMulMulCast_0x1eab7", "NVIDIA/TensorRT issue 4236, layers of Myelin", _TRT,
        "GEMM + epilogue",
    ),
    Row(
        "softmax", "^__myl_*maxsubexpsum",
        "__myl_MaxSubExpSumDivMul_0x6e1bd2", "NVIDIA/TensorRT issue 4236, layers of Myelin", _TRT, "softmax",
    ),
    Row(
        "norm", "^__myl_*mean*sqrt",
        "__myl_MeanSubMulMeanAddSqrtDivMulMulAdd_0x91ac3e", "NVIDIA/TensorRT issue 4236, layers of Myelin", _TRT,
        "norm",
    ),
    Row(
        "elementwise", "^__myl_ ^myelin",
        "__myl_SiluMul_0x5b1c44", "NVIDIA/TensorRT issue 4236, layers of Myelin", _TRT, "chain of ops",
    ),
    Row(
        "elementwise", "^generatednativepointwise",
        "generatedNativePointwise", "NVIDIA/TensorRT, its pointwise fusion", _TRT, "chain of elementwise ops",
    ),
    Row(
        "reduction", "^nvfuser_reduction ^nvfuser_persistent ^nvfuser_inner ^nvfuser_outer",
        "nvfuser_inner_persistent_f0_c1_r0_g0", "NVIDIA/Fuser csrc/runtime/executor.cpp", "nvFuser", "chain of ops",
    ),
    Row(
        "elementwise", "^nvfuser_ cudacodegen::kernel",
        "void CudaCodeGen::kernel1<float>(CudaCodeGen::Tensor<float, 2>)", "NVIDIA/Fuser csrc/codegen.cpp", "nvFuser",
        "chain of ops",
    ),
    Row(
        "reduction", "^input_*fusion",
        "input_add_reduce_fusion_3", "openxla/xla xla/service/gpu/fusions", "XLA", "chain of ops",
    ),
    Row(
        "copy",
        """^loop_transpose_fusion ^loop_copy_fusion ^loop_convert_fusion ^wrapped_transpose ^wrapped_convert
        ^wrapped_copy""",
        "loop_convert_fusion_12", "openxla/xla xla/service/gpu/fusions", "XLA", "chain of copies",
    ),
    Row(
        "elementwise", "^loop_*fusion ^fusion_ ^triton_softmax_",
        "loop_multiply_add_fusion", "openxla/xla xla/service/gpu/fusions", "XLA", "chain of ops",
    ),
    Row(
        "norm", "skiplayernorm skipsimplifiedlayernorm",
        "void onnxruntime::contrib::cuda::SkipLayerNormKernelSmall<__half, 256u, 8>(__half*, __half const*)",
        "microsoft/onnxruntime onnxruntime/contrib_ops/cuda/bert/skip_layer_norm_impl.cu", "ONNX Runtime", "add + norm",
    ),
)  # fmt: skip
