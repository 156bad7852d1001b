"""PyTorch's own kernels (ATen and what it uses: CUB, rocPRIM, Thrust), which do one op each.

The generic ones are told apart by the functor in their template: ``vectorized_elementwise_kernel<4, …MulFunctor…>``.
"""

from __future__ import annotations

from auditor.kernels.row import Row

_ELEMENTWISE = "at::native::vectorized_elementwise_kernel<4, at::native::"

NATIVE = (
    # Norms and softmaxes, some of them with a generic kernel around a functor
    Row(
        "norm",
        """unrolled_elementwise_kernel_for_multi_outputs<batch_norm elementwise_kernel<batch_norm
        elementwise_kernel<batchnorm""",
        (
            "void at::native::(anonymous namespace)::unrolled_elementwise_kernel_for_multi_outputs<3, "
            "at::native::(anonymous namespace)::batch_norm_update_stats_and_invert(at::Tensor const&)>(int)"
        ),
        "trace mi300x_resnet_ddp_training",
    ),
    Row(
        "norm",
        """elementwise_kernel<groupnorm elementwise_kernel<group_norm elementwise_kernel<layernorm
        elementwise_kernel<layer_norm elementwise_kernel<rms_norm""",
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::(anonymous "
            "namespace)::GroupNormKernelImplInternal<float>(at::Tensor const&)>>(int)"
        ),
        "pytorch/pytorch aten/src/ATen/native/cuda/group_norm_kernel.cu",
    ),
    Row(
        "norm",
        """batch_norm_ batchnorm_ layer_norm layernorm rowwisemoments computefusedparams computebackwardfusedparams
        computeinternalgradients compute1dbackward gammabetabackward groupnorm group_norm weight_norm
        local_response_norm instance_norm renorm_kernel ^welford""",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
        "trace h100_bert-small_launch_bound",
    ),
    Row(
        "softmax", "softmax log_softmax softmax_warp cunn_softmax cunn_spatialsoftmax",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(int)",
        "trace h100_owlv2_eager",
    ),
    # Indices and embeddings, before the copies: `index_copy`
    Row(
        "gather",
        """index_elementwise_kernel indexselect indexfunc index_copy index_put index_add index_fill indexing_backward
        _scatter_gather vectorized_gather gather_kernel scatter_kernel scatter_add embedding krn_partial
        compute_grad_weight sum_and_scatter compute_num_of_partial write_num_of_segments take_put masked_scatter
        masked_select searchsorted bucketize embeddingbag ^put_kernel indexkernel indexput vision::ops::*nms""",
        (
            "void at::native::index_elementwise_kernel<128, 4, "
            "at::native::gpu_index_kernel<at::native::index_kernel_impl<int>>>(long)"
        ),
        "trace h100_owlv2_eager",
    ),
    # Copies
    Row(
        "copy",
        """elementwise_kernel<direct_copy elementwise_kernel<copy_device_to_device elementwise_kernel<bfloat16_copy
        elementwise_kernel<bfloat16tofloat32_copy elementwise_kernel<float16_copy
        elementwise_kernel<float16tofloat32_copy elementwise_kernel<float8_copy elementwise_kernel<copy_kernel
        elementwise_kernel<conj_kernel""",
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::"
            "TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}>(int)"
        ),
        "trace h100_owlv2_eager",
    ),
    Row(
        "copy",
        """catarraybatchedcopy split_with_sizes_copy chunk_cat copy_kernel copykernel triu_tril roll_cuda flip_kernel
        pixel_shuffle reflection_pad replication_pad constant_pad tensor_kernel_scan_transpose transposekernel
        transpose_kernel convert_weight""",
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous "
            "namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(int)"
        ),
        "trace h100_qwen1.5-0.5b_eager",
    ),
    # Random numbers
    Row(
        "random",
        """distribution_elementwise distributionelementwise distribution_nullary fused_dropout dropout curand
        random_from_to randperm bernoulli
        normal_kernel uniform_kernel multinomial philox generate_seed random_permute rocrand""",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(long)",
        "trace a100_simple_add",
    ),
    # Pooling, and losses that pick a class
    Row(
        "gather",
        """max_pool avg_pool adaptive_max adaptive_average adaptiveaverage adaptivemax maxpool avgpool upsample
        grid_sampler nearest_neighbor roi_align roipool interpolate fractional_max""",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int, float const*, long, long, long)",
        "trace v100_resnet_ddp_ns_timestamps",
    ),
    Row(
        "gather", "nll_loss classnllcriterion ctc_loss multimargin multilabelmargin",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)",
        "trace rtx2080ti_linear_training",
    ),
    # Sorts, top-k, scans and compactions
    Row(
        "sort",
        """radixsort segmentedsort deviceselect devicepartition devicescan tensor_kernel_scan devicecompactinit
        reducebykey device_scan bitonicsort sorttopk gathertopk sbtopk mbtopk radixfindkth radix_sort merge_sort
        mergesort block_sort computeblockdigit findtopk fillsorted unique_kernel kernel_histogram kernelhistogram
        histogram compute_cuda_kernel cumsum cumprod gatherkthvalue gathermedian flag_kernel devicerle uniquebykey""",
        (
            "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false, "
            "long>(int*)"
        ),
        "trace a100_training_torch1.12",
    ),
    Row(
        "elementwise",
        """rocprim::*trampoline_kernel<transform_config thrust::*for_each thrust::*transform
        thrust::*_kernel_agent<parallel_for thrust::*parallel_for thrust::*fill thrust::*tabulate cub::*devicefor
        cub::*transform cub::*static_kernel""",
        (
            "void rocprim::ROCPRIM_400400_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400400_NS::default_config, "
            "rocprim::ROCPRIM_400400_NS::detail::transform_config_selector<unsigned long, true>>(int)"
        ),
        "trace mi300x_sd3.5_compiled_and_eager",
    ),
    Row(
        "reduction",
        """rocprim::*trampoline_kernel<reduce_config cub::*devicereduce cub::*devicesegmentedreduce
        thrust::*_kernel_agent<reduce thrust::*reduce""",
        (
            "void rocprim::ROCPRIM_400400_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400400_NS::default_config, "
            "rocprim::ROCPRIM_400400_NS::detail::reduce_config_selector<bool>>(int)"
        ),
        "trace mi300x_sd3.5_compiled_and_eager",
    ),
    Row(
        "sort",
        """thrust::*_kernel_agent<scan thrust::*_kernel_agent<unique thrust::*_kernel_agent<merge
        rocprim::*trampoline_kernel<scan_config rocprim::*trampoline_kernel<partition
        rocprim::*trampoline_kernel<sort rocprim::*trampoline_kernel<select rocprim::*trampoline_kernel<by_key
        rocprim::*lookback_scan rocprim::*radix_sort rocprim::*merge_sort""",
        (
            "void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<rocprim::ROCPRIM_400200_NS::detail::"
            "wrapped_scan_config<rocprim::ROCPRIM_400200_NS::default_config, long>>(int)"
        ),
        "trace mi300x_sglang_qwen3-8b_already_fused",
    ),
    # Convolutions that ATen has itself
    Row(
        "gemm", "conv_depthwise conv2d_depthwise conv_transpose im2col_kernel col2im_kernel vol2col slow_conv",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, float, int>(int)",
        "pytorch/pytorch aten/src/ATen/native/cuda/DepthwiseConv2d.cu",
    ),
    # Reductions and elementwise ops
    Row(
        "reduction",
        """reduce_kernel<reduceop reduce_kernel<norm at::native::reduce_kernel reducekernel sum_kernel cdist_kernel
        pdist_kernel linalg_vector_norm kernelpointwiseapply<norm""",
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
            "float, float>, unsigned int, float, 4>>(int)"
        ),
        "trace h100_qwen1.5-0.5b_eager",
    ),
    Row(
        "elementwise", "elementwise_kernel kernelpointwiseapply pointwiseapply elementwisekernel",
        (
            f"void {_ELEMENTWISE}BinaryFunctor<float, float, float, "
            f"at::native::binary_internal::MulFunctor<float>>>(int)"
        ),
        "trace h100_owlv2_eager",
    ),
    Row(
        "elementwise",
        """fill_kernel fillkernel arange linspace ^range_kernel amp_non_finite amp_update_scale at::native::*glu_kernel
        at::native::*gelu at::native::*silu_kernel relu_kernel clamp_kernel ^kernel_add ^add_kernel ^mul_kernel
        fused_lstm_cell prelu""",
        "void at::native::(anonymous namespace)::amp_update_scale_cuda_kernel(float*, int*, float const*)",
        "pytorch/pytorch aten/src/ATen/native/cuda/AmpKernels.cu",
    ),
    Row(
        "gather", "fft_ vector_fft regular_fft fft2d fft1d ^fft ^rfft bluestein",
        "void vector_fft<1024u, EPT<4u>, 4u, (padding_t)1, (twiddle_t)0, CB, 1u, single>(int)",
        "NVIDIA cuFFT, as nvprof names it",
    ),
)  # fmt: skip
