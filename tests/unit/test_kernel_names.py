"""What a kernel's name says: every row of the table against its example, and names that nobody would write."""

from __future__ import annotations

import random
import string
import time

import pytest

from auditor.kernels import FAMILIES, Known, classify, family_of_op
from auditor.kernels.classify import row_of
from auditor.kernels.inductor import ops_in
from auditor.kernels.name import MAX_READ, read_name
from auditor.kernels.row import patterns_of
from auditor.kernels.tables import ROWS


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[row.example[:40] for row in ROWS])
def test_every_row_is_the_first_that_its_example_fits(index: int) -> None:
    # A row that an earlier one hides would never say anything
    row = ROWS[index]
    assert row_of(row.example) == index
    assert classify(row.example) == Known(row.family, row.library, row.fuses)
    assert row.family in FAMILIES
    assert row.source


def test_patterns_are_long_enough_to_be_looked_up_and_stand_once() -> None:
    every = [(text, row) for row in ROWS for text in row.names.lower().split()]
    assert [text for text, _ in every if len(text.lstrip("^").split("<")[0].split("*")[0].rstrip("$")) < 3] == []
    texts = [text for text, _ in every]
    assert sorted({text for text in texts if texts.count(text) > 1}) == []


@pytest.mark.parametrize(
    ("name", "family"),
    [
        # Generic kernels of ATen, told apart by their functor
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
         "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)", "elementwise"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
         "::{lambda()#3}::operator()() const::{lambda()#7}>(int)", "copy"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, "
         "unsigned int, float, 4> >(int)", "reduction"),
        ("void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar "
         "const&)>(int)", "elementwise"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<int>(int)", "copy"),
        # The functor may be an index's, whatever the kernel around it is called
        ("void at::native::index_elementwise_kernel<128, 4, at::native::index_copy_kernel_impl<at::native::OpaqueType"
         "<4> >(at::TensorIterator&)>(int)", "gather"),
        # Mangled, as ROCm's profiler leaves some
        ("_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIffffEEjfLi4EEEEEvT1_", "reduction"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
         "elementwise"),
        # Libraries of matrix products and convolutions
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "gemm"),
        ("nvjet_hsh_256x96_64x4_2x1_v_bz_coopA_TNT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
         "gemm"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false, "
         "true, true, false, 7, cublasGemvParams<int>>(int)", "gemm"),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)", "gemm"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1.kd", "gemm"),
        ("MIOpenBatchNormBwdSpatialDX", "norm"),
        # A batch norm's letters in a list of a GEMM's parameters are none
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x112x32_MI16x16x16x1_SN_1LDSB0_EPS1_ELFLRn20_EMLL0_GRPM0p30_GRVWn1", "gemm"),
        ("turing_fp16_s1688cudnn_fp16_256x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1", "gemm"),
        ("Custom_Cijk_Alik_Bljk_HHS_BH_Bias_AS_SAV_UserArgs_MT256x256x64", "gemm"),
        # Attention in CuTe's Python, and mangled
        ("kernel_cutlass_kernel_flash_attncuteflash_fwdFlashAttentionForwardSm90_object_at__tensor", "attention"),
        ("_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90INS1_9MainloopE", "attention"),
        ("_ZN4vllm25paged_attention_v2_kernelI14__hip_bfloat16Li128EEvPf", "attention"),
        # Thrust names its algorithms in the template
        ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<int>>(int)",
         "elementwise"),
        ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__reduce::ReduceAgent<int>>(int)", "reduction"),
        # NCCL before 2.7, which wrote the collective first; its newest; names of engines' own
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "collective"),
        ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevWorkArgs const*)", "collective"),
        ("void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)", "collective"),
        ("void quickreduce::allreduce_prototype_twoshot<int>(int)", "collective"),
        # Words in words: `herk` in GatherKernel, `gemm` in gemma, `sum_kernel` in cumsum, `fprop` of attention
        ("void my::GatherKernel<int>(int)", "gather"), ("_gemma_rmsnorm_kernel", "norm"), ("cumsum_kernel", "sort"),
        ("fmha_fprop_fp16_512_64_sm80_kernel(Fused_multihead_attention_fprop_params)", "attention"),
        ("void biasAddRelu_fprop<c10::Half>(c10::Half*)", "elementwise"), ("rearrange_kernel", "copy"),
        ("void fused_output_kernel<float>(float*)", "other"),
        # Intel's: SYCL functors of ATen, kernels of oneDNN
        ("at::native::xpu::DistributionElementwiseKernelFunctor<float>", "random"),
        ("at::native::xpu::IndexKernelFunctor<int>", "gather"), ("xe_reorder", "copy"), ("gen_conv_kernel", "gemm"),
        # A library that is not in the table, with a word that says what it does
        ("_dynamic_mxfp4_quant_kernel", "elementwise"), ("void mylib::transposeKernelV2<__half>(int)", "copy"),
        # Collectives, transfers
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy"),
        ("Memset (Device)", "memset"),
        # No names of kernels that anything is known of
        ("", "other"), ("main_kernel", "other"), ("my_secret_op<float>(int)", "other"),
        ("_Z", "other"), ("void ", "other"),
    ],
)  # fmt: skip
def test_names_are_read_as_what_they_are(name: str, family: str) -> None:
    assert classify(name).family == family


@pytest.mark.parametrize(
    ("name", "family", "ops", "fuses"),
    [
        ("triton_poi_fused_add_mul_3", "elementwise", ("add", "mul"), "add + mul"),
        ("triton_poi_fused__to_copy_cat_slice_1", "copy", ("_to_copy", "cat", "slice"), "_to_copy + cat"),
        ("triton_per_fused__softmax_add_2", "softmax", ("_softmax", "add"), "_softmax + add"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "norm",
         ("_to_copy", "add", "mean", "mul", "pow", "rsqrt"), "_to_copy + add + mean + mul and 2 more"),
        ("triton_red_fused_sum_12", "reduction", ("sum",), "sum"),
        ("triton_tem_fused_addmm_relu_4", "gemm", ("addmm", "relu"), "addmm + relu"),
        ("triton_tem_fused_flex_attention_0", "attention", ("flex_attention",), "flex_attention"),
        ("triton_for_fused_1", "elementwise", (), "ops of a compiled graph"),
        ("triton_poi_fused_embedding_view_0", "gather", ("embedding", "view"), "embedding"),
        ("triton_poi_fused_add_embedding_0", "elementwise", ("add", "embedding"), "add + embedding"),
        ("triton_spl_fused_cumsum_0", "sort", ("cumsum",), "cumsum"),
        ("triton_fused_add_mul_0", "elementwise", ("add", "mul"), "add + mul"),
        ("triton_poi_fused_add_mul_0d1d2de", "elementwise", ("add", "mul"), "add + mul"),
        ("triton__0d1d2d3de", "elementwise", (), "ops of a compiled graph"),
        ("cpp_fused_add_native_layer_norm_5", "elementwise", ("add", "native_layer_norm"), "add + native_layer_norm"),
        ("triton_poi_fused_abs_add_cos_div_exp_log_mul_sin_0", "elementwise",
         ("abs", "add", "cos", "div", "exp", "log", "mul", "sin"), "abs + add + cos + div and 4 more"),
    ],
)  # fmt: skip
def test_what_inductor_composed_is_decoded(name: str, family: str, ops: tuple[str, ...], fuses: str) -> None:
    assert classify(name) == Known(family, "Inductor", fuses, ops)  # type: ignore[arg-type]


def test_a_kernel_of_the_users_own_in_triton_is_not_taken_for_inductors() -> None:
    assert classify("triton_my_kernel").library == ""
    assert ops_in("add_moe_forward_mul") == ("add", "moe_forward", "mul")  # an op that ATen has not is one name


def test_a_name_is_read_in_two_parts() -> None:
    assert read_name("void at::native::(anonymous namespace)::softmax_warp_forward<float, 8>(float*)") == (
        "at::native::softmax_warp_forward",
        "<float, 8>(float*)",
    )
    assert read_name("void <unnamed>::softmax_warp_forward<float>(float*)").head == "softmax_warp_forward"
    assert read_name("_ZN5aiter24fmha_fwd_hd128_bf16_rtneE") == ("aiter::fmha_fwd_hd128_bf16_rtne", "e")
    assert read_name("_ZN2ck16tensor_operation6device12_GLOBAL__N_111kernel_gemmIfE").head.endswith("::kernel_gemm")


def test_what_a_name_can_do_is_no_fusion_that_ran() -> None:
    # cuDNN and hipBLASLt run kernels of these names for products without any epilogue
    for name in ("volta_scudnn_128x64_relu_interior_nn_v1", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x64"):
        assert (classify(name).family, classify(name).fuses) == ("gemm", "")


_HOSTILE = {
    "letters": "a" * 1_000_000,
    "underscores": "triton_poi_fused" + "_" * 1_000_000,
    "digits": "triton_poi_fused_" + "1" * 1_000_000 + "x",
    "numbers": "triton_poi_fused" + "_1" * 500_000 + "x",
    "templates": "void at::native::reduce_kernel" + "<" * 1_000_000,
    "mangled": "_ZN" + "1a" * 500_000,
    "a huge length": "_ZN" + "9" * 1_000_000,
    "anonymous": "(anonymous namespace)::" * 40_000,
    "the enabled": "std::enable_if<" * 60_000,
    "pieces in vain": "void cutlass::kernel" * 50_000,
    "nul and escapes": "\x00\x1b[31m<script>" * 60_000,
    "surrogates": "\ud800" * 1_000_000,
}


@pytest.mark.parametrize("name", _HOSTILE.values(), ids=_HOSTILE.keys())
def test_a_megabyte_is_read_in_no_time(name: str) -> None:
    started = time.process_time()
    known = classify(name)
    assert time.process_time() - started < 0.1
    assert known.family in FAMILIES
    assert len(known.fuses) < 2 * MAX_READ
    assert known == classify(name[:MAX_READ])


def test_two_thousand_names_of_sixty_thousand_kernels() -> None:
    made = random.Random(0)
    tail = string.ascii_lowercase
    names = [
        f"{made.choice(ROWS).example}_{''.join(made.choices(tail, k=12))}, {made.choice(ROWS).example}"
        for _ in range(2000)
    ]
    kernels = [made.choice(names) for _ in range(60_000)]
    started = time.process_time()
    for name in kernels:
        classify(name)
    assert time.process_time() - started < 1.5, "0.2 s on one idle core: something grew with the table"


def test_an_op_tells_the_family_of_its_kernels() -> None:
    told = {op: family_of_op(op) for op in ("aten.add_", "aten._softmax", "aten.mm", "aten.topk", "aten.to", "vllm.x")}
    assert told == {
        "aten.add_": "elementwise",
        "aten._softmax": "softmax",
        "aten.mm": "gemm",
        "aten.topk": "sort",
        "aten.to": "copy",
        "vllm.x": "other",
    }


def test_a_row_with_an_empty_piece_is_refused() -> None:
    row = ROWS[0]
    with pytest.raises(ValueError, match="a piece of it is empty"):
        patterns_of(type(row)(row.family, "gemm**x", row.example, row.source))
