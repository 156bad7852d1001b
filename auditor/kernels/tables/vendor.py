"""Kernels of the vendors' libraries: cuDNN, MIOpen, Composable Kernel, CUTLASS with a fused epilogue.

A name such as ``volta_scudnn_128x64_relu_interior_nn_v1`` or ``Cijk_…_Bias_HA_S_SAV_…`` tells what a kernel *can* do in
its epilogue, not what it did: cuDNN runs the first for convolutions without a ReLU too (ResNet in trace
torch1.8_resnet50_old_era), hipBLASLt the second without a bias. So these count as plain matrix products; only names
of kernels that were made for one fusion count as fused.
"""

from __future__ import annotations

from auditor.kernels.row import Row

_CK, _CUDNN, _MIOPEN = "Composable Kernel", "cuDNN", "MIOpen"

VENDOR = (
    # cuDNN
    Row(
        "gemm",
        """cudnn_generated_fort_native*convfwd*pointwise cudnn_generated_fort_native*matmul*pointwise
        cudnn_generated_fort_native*conv*bn""",
        "cudnn_generated_fort_native_sm80_convFwd_pointwise_pointwise_pointwise_kernel0_0",
        "NVIDIA/cudnn-frontend, its runtime fusion engine", _CUDNN, "convolution or GEMM + epilogue",
    ),
    Row(
        "norm", "cudnn_generated_fort_native*norm cudnn*layernorm cudnn*rmsnorm",
        "cudnn_generated_fort_native_sm90_layernorm_fwd_kernel0_0", "NVIDIA/cudnn-frontend, its norm engine", _CUDNN,
        "norm",
    ),
    Row(
        "gemm", "cudnn_generated_fort_native",
        "cudnn_generated_fort_native_sm80_convDgrad_kernel0_0", "NVIDIA/cudnn-frontend", _CUDNN, "",
    ),
    Row(
        "norm", "bn_addrelu nhwc_batch_norm*relu",
        "void nhwc_bn_addrelu_fwd<__half, 512, 2>(NhwcBatchNormFwdParams)", "NVIDIA/apex apex/contrib/csrc/groupbn",
        "apex", "batch norm + add + ReLU",
    ),
    Row(
        "norm", "bn_fw_ bn_bw_ batch_norm_fwtr batchnorm_fwtr batchnorm_bwtr nhwc_batch_norm ^bn_",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*)",
        "trace torch1.8_resnet50_old_era", _CUDNN, "",
    ),
    Row(
        "copy",
        """nchwtonhwc nhwctonchw nhwcaddpadding nchwaddpadding nhwctofoldednhwc foldednhwctonhwc tensortransform
        converttensor_kernel transpose_readwrite""",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>(int)",
        "trace v100_resnet_ddp_ns_timestamps", _CUDNN, "",
    ),
    Row(
        "elementwise",
        """scalepackedtensor cudnn::ops::scaletensor cudnn::ops::addtensor op_generic_tensor_kernel op_tensor_kernel
        setalgo*kernel cudnn::*activation_fw cudnn::*activation_bw""",
        "void cudnn::ops::scalePackedTensor_kernel<float, float>(cudnnTensor4dStruct, float*, float)",
        "trace torch1.8_resnet50_old_era", _CUDNN, "",
    ),
    Row(
        "gather", "cudnn::*pooling pooling_fw pooling_bw",
        "void cudnn::pooling_fw_4d_kernel<float, float, cudnn::maxpooling_func<float>, 0, false>(int)",
        "NVIDIA cuDNN 8, its pooling kernels as nvprof names them", _CUDNN, "",
    ),
    Row(
        "gemm",
        "lstm_elementwise elemwisernn rnn_block_persist ^rnn_ elemwise_unroll gru_elementwise ^lstm_cell gru_cell",
        "void LSTM_elementWise_fp<float, float, float, (cudnnRNNBiasMode_t)2>(int, int, int, int)",
        "NVIDIA cuDNN 8, its RNN kernels as nvprof names them", _CUDNN, "gates of a recurrent cell",
    ),
    # MIOpen
    Row(
        "norm", "miopenbatchnormactiv miopenbatchnorm*activ",
        "MIOpenBatchNormActivFwdTrainSpatial", "ROCm/MIOpen src/kernels/MIOpenBatchNormActivFwdTrainSpatial.cl",
        _MIOPEN, "batch norm + activation",
    ),
    Row(
        "norm", "miopenbatchnorm ^batchnormfwd ^batchnormbwd miopenlayernorm ^layernormfwd ^groupnormfwd",
        "MIOpenBatchNormFwdTrainSpatial", "ROCm/MIOpen src/kernels/MIOpenBatchNormFwdTrainSpatial.cpp", _MIOPEN, "",
    ),
    Row(
        "gemm", "miopenconvbiasactiv miopenconvunibatchnorm gcnasmconv*bias*activ",
        "MIOpenConvUniBatchNormActiv", "ROCm/MIOpen src/kernels/MIOpenConvUniBatchNormActiv.cl", _MIOPEN,
        "convolution + bias + activation",
    ),
    Row(
        "copy",
        """^batched_transpose ^transpose_nchw2cnhw ^transpose_cnhw2nchw ^transpose_packed ^general_tensor_reorder
        ^subtensoropwithcasttensor ^subtensoropwithtransform ^subtensoropwithsubtensor ^subtensoropwithcastscalar""",
        "batched_transpose_16x32_half", "trace mi300x_resnet_ddp_training", _MIOPEN, "",
    ),
    Row(
        "elementwise",
        """^subtensoropwithscalar ^op1dtensor ^op2dtensor ^op3dtensor ^op4dtensor ^op5dtensor ^optensor ^miopenactive
        ^miopenneuron""",
        "SubTensorOpWithScalar1d", "trace mi300x_resnet_ddp_training", _MIOPEN, "",
    ),
    Row(
        "gather", "^mlopooling miopenpooling",
        "mloPoolingForwardNaive", "ROCm/MIOpen src/kernels/MIOpenPoolingForwardNaive.cl", _MIOPEN, "",
    ),
    Row(
        "softmax", "^softmaxforward ^softmaxbackward ^miopensoftmax",
        "SoftmaxForward", "ROCm/MIOpen src/kernels/MIOpenSoftmax.cl", _MIOPEN, "",
    ),
    Row(
        "reduction", "gridwise_generic_reduce ^miopenreduce",
        "gridwise_generic_reduce_1", "ROCm/MIOpen src/kernels/gridwise_generic_reduction", _MIOPEN, "",
    ),
    Row(
        "gemm",
        """miopensp3asmconv gcnasmconv ^miopenconv ^mloconv ^igemm_ naive_conv gridwise_convolution ^conv1x1 ^conv3x3
        im2d2col im3d2col col2im2d col2im3d miopenwinograd gcnasmwino ^conv_winograd""",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1_wr2x2_ta1x8x2x1_1x4x1x64_tb1x8x2x1_1x4x1x64",
        "trace mi300x_sd3.5_compiled_and_eager", _MIOPEN, "",
    ),
    # Composable Kernel
    Row(
        "norm", "ck_tile::kentry<*rmsnorm2dfwd ck_tile::kentry<*layernorm2dfwd ck_tile::kentry<*add*rmsnorm2d",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_27Rmsnorm2dFwdPipelineProblemI",
        "trace vllm_decode_graph_replay", _CK, "norm (+ add, + quantise)",
    ),
    Row(
        "gemm", "ck_tile::kentry<fusedmoe ck_tile::*fusedmoegemm ck_moe_stage ck::kernel_moe ck::*moe_gemm",
        "void ck_tile::kentry<1, ck_tile::FusedMoeGemmKernel<ck_tile::FusedMoeGemmPipeline_FlatmmUk>>(int)",
        "ROCm/composable_kernel include/ck_tile/ops/fused_moe", _CK, "GEMMs of the experts + activation",
    ),
    Row(
        "softmax", "ck_tile::kentry<topksoftmax ck::*softmax",
        "void ck_tile::kentry<1, ck_tile::TopkSoftmaxKernel<ck_tile::TopkSoftmaxWarpPerRowPipeline>>(int)",
        "ROCm/composable_kernel include/ck_tile/ops/topk_softmax", _CK, "softmax + top-k",
    ),
    Row(
        "sort", "ck_tile::kentry<moesorting",
        "void ck_tile::kentry<1, ck_tile::MoeSortingKernel<ck_tile::MoeSortingProblemEx<int, float, 1>>>(int)",
        "ROCm/composable_kernel include/ck_tile/ops/fused_moe", _CK, "sort of tokens by expert",
    ),
    Row(
        "elementwise", "ck_tile::kentry<moesmoothquant ck_tile::kentry<smoothquant",
        "void ck_tile::kentry<1, ck_tile::Smoothquant<ck_tile::SmoothquantPipelineOnePass>>(int)",
        "ROCm/composable_kernel include/ck_tile/ops/smoothquant", _CK, "scale + maximum + quantise",
    ),
    Row(
        "gemm",
        """ck::*gemm<addrelu ck::*gemm<addfastgelu ck::*gemm<addgelu ck::*gemm<addsilu ck::*gemm<addmultiply
        ck::*gemm<multiplyadd ck::*gemm<multiplymultiply ck::*gemm<addaddfastgelu ck::*gemm<biasnormalize
        ck::*conv<addrelu ck::*conv<addclamp ck::*conv<biasclamp""",
        (
            "void ck::kernel_gemm_multiple_d_xdl_cshuffle<ck::GridwiseGemmMultipleD_xdl_cshuffle<unsigned short, "
            "float, ck::tensor_operation::element_wise::AddFastGelu, (ck::InMemoryDataOperationEnum)0>>(int)"
        ),
        "ROCm/composable_kernel include/ck/tensor_operation/gpu/element/element_wise_operation.hpp", _CK,
        "GEMM + epilogue",
    ),
    Row(
        "norm", "ck::*normalization ck::*batchnorm ck::*layernorm ck::*groupnorm",
        "void ck::kernel_normalization<ck::GridwiseNormalizationNaiveVariance_mk_to_mk<float, float, float>>(int)",
        "ROCm/composable_kernel include/ck/tensor_operation/gpu/grid/normalization", _CK, "norm",
    ),
    Row(
        "gemm", "ck::*gemm ck::*conv ck::*xdl ck_tile::kentry<*gemm ck_tile::*gemm ck_tile::kentry<*flatmm",
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseGemm"
            "_xdl"
        ),
        "trace mi300x_resnet_ddp_training", _CK, "",
    ),
    Row(
        "copy", "ck::*elementwise ck::*permute ck_tile::kentry<*elementwise ck_tile::kentry<*transpose",
        (
            "void ck::kernel_elementwise<ck::GridwiseElementwise<ck::Tuple<int>, "
            "ck::tensor_operation::PassThrough>>(int)"
        ),
        "ROCm/composable_kernel include/ck/tensor_operation/gpu/grid/gridwise_elementwise_dynamic_vector_dims.hpp",
        _CK, "",
    ),
    # CUTLASS, where the template names the epilogue
    Row(
        "gemm",
        """cutlass::*kernel<linearcombinationrelu cutlass::*kernel<linearcombinationgelu
        cutlass::*kernel<linearcombinationsilu cutlass::*kernel<linearcombinationbiasrelu
        cutlass::*kernel<linearcombinationbiaselementwise cutlass::*kernel<sm90treevisitor cutlass::*kernel<sm80evt
        cutlass::*kernel<sm90evt cutlass::*kernel<dualgemm""",
        (
            "void cutlass::Kernel2<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaMultistage<cutlass::"
            "gemm::GemmShape<128, 128, 32>>, cutlass::epilogue::threadblock::Epilogue<cutlass::epilogue::thread::"
            "LinearCombinationGELU<cutlass::half_t, 8>>>>(int)"
        ),
        "NVIDIA/cutlass include/cutlass/epilogue/thread", "CUTLASS", "GEMM + epilogue",
    ),
)  # fmt: skip
