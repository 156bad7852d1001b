"""Matrix products and convolutions of cuBLAS, hipBLASLt, rocBLAS, cuDNN, CUTLASS and MAGMA, and what is called so."""

from __future__ import annotations

from auditor.kernels.row import Row

_CUBLAS, _CUDNN = "cuBLAS", "cuDNN"

BY_SCHEME = (
    Row(
        "gemm", "cijk_",
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x192x64_MI16x16x1_SN_LDSB1_AFC1_AG0_AFEM1_AFEM1_ASEM1_"
            "CLR1"
        ),
        "trace mi300x_sd3.5_compiled_and_eager", "hipBLASLt / rocBLAS",
    ),
    Row(
        "gemm", "^nvjet_",
        "nvjet_tst_256x96_64x5_2x1_2cta_v_badd_NNT", "sgl-project/sglang pull request 22440", _CUBLAS,
    ),
)  # fmt: skip
"""Names that are one long list of a kernel's parameters: nothing else is to be found in them."""

PRODUCTS = (
    Row(
        "gemm",
        """splitkreduce cublaslt:: cublas_ ^cublas epilogue::impl::globalkernel gemvx gemv dot_kernel
        reduce_1block_kernel<cublas gemmk1 gemmsn_ gemm_kernel2x2 ^scal_kernel ^axpy_kernel trsm trmm syrk cherk
        zherk""",
        "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16, __nv_bfloat16, float, __nv_bfloat16>(int)",
        "trace h100_owlv2_eager", _CUBLAS,
    ),
    Row(
        "gemm", "xmma_gemm xmma_fprop xmma_dgrad xmma_wgrad xmma_*conv xmma_*implicit",
        (
            "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_stage4_warpsize4x1x1_g1_"
            "tensor16x8x16_execute_kernel"
        ),
        "NVIDIA cuDNN 8.9, a recorded profile", f"{_CUBLAS} / {_CUDNN}",
    ),
    Row(
        "gemm",
        """scudnn hcudnn 884cudnn 1688cudnn 16816cudnn cudnn_infer cudnn_train cask_cudnn cudnn::cnn:: cudnn::gemm
        dgrad_engine wgrad_alg dgrad_alg dgrad2d wgrad2d dgrad_ wgrad_ fprop implicit_convolve explicit_convolve
        convolve_ winograd computeoffsets computeboffsets computewgrad precomputed_convolve conv2d_grouped_direct
        depthwise_ conv2d_c1_k1 dgrad_2d first_layer_ kern_precompute flip_filter cudnn*winograd cudnn::*convolve
        im2col4d reduce_wgrad""",
        "volta_scudnn_128x64_relu_interior_nn_v1", "trace torch1.8_resnet50_old_era", _CUDNN,
    ),
    Row(
        "gemm",
        """cutlass::*kernel<gemm cutlass::*kernel<fprop cutlass::*kernel<dgrad cutlass::*kernel<wgrad
        cutlass::*kernel<conv cutlass*::kernel<tensorop cutlass*::kernel2 cutlass_*gemm cutlass_tensorop cutlass3x_""",
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(cutlass_80_ten"
            "sorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8::Params)"
        ),
        "trace h100_bert-small_launch_bound", "CUTLASS",
    ),
    Row(
        "gemm", "magma",
        "void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(int, int, int)",
        "trace v100_training_no_shapes", "MAGMA",
    ),
    Row(
        "gemm", "cusparse:: cusparselt rocsparse_*csrm rocsparse_*coom",
        "void cusparse::csrmv_v3_kernel<int, int, float, float, float>(int)", "NVIDIA cuSPARSE, as Nsight names it",
        "cuSPARSE / rocSPARSE",
    ),
    Row(
        "gemm", "getrf potrf geqrf gesvd syevj syevd larft laswp trtri rocsolver",
        "void getrf_pivot<float, float, 0, 256, 1, 32>(int, int, float*, int, int*)",
        "NVIDIA cuSOLVER, as Nsight names it", "cuSOLVER / rocSOLVER",
    ),
    Row(
        "gemm", "^gen_conv ^gen9_conv ^xe_hp_conv ^xe_conv ^ref_convolution ^conv_kernel_fwd ^conv_kernel_bwd",
        "gen_conv_kernel", "uxlfoundation/oneDNN src/gpu/intel/jit/conv", "oneDNN",
    ),
    Row(
        "norm", "gemma*norm",
        "_gemma_rmsnorm_kernel", "names of norm kernels elsewhere", "", "RMS norm with 1 + weight",
    ),
    Row(
        "gemm",
        """gemm matmul ^_mm_kernel ^mm_kernel ^bmm_kernel addmm tinygemm bgmv sgmv lora_expand lora_shrink conv2d
        conv1d convolution matvec ^triton_mm ^triton_bmm ^triton_conv rocblas_ mul_mat_ _lora_a_kernel
        _lora_b_kernel""",
        "ampere_sgemm_128x64_nn", "trace a100_training_torch1.12",
    ),
    # Whatever is left that says in a word what it does: Triton kernels are called so by their authors
    Row(
        "attention", "attention mha_ flash_ fmha",
        "void ft_attention::mha_fwd_kernel<float>(int)", "names of attention kernels elsewhere", "", "attention",
    ),
    Row(
        "norm", "rmsnorm rms_norm",
        "_rmsnorm_kernel", "names of norm kernels elsewhere", "", "RMS norm",
    ),
    Row(
        "elementwise", "swiglu geglu silu_mul silu_and silumul rope_kernel _rope_ ^rope_ rotary",
        "_swiglu_kernel", "names of fused kernels elsewhere", "", "rotary embedding or gated activation",
    ),
)  # fmt: skip
