"""Kernels that talk to other processes, and copies and fills that a runtime does by a kernel."""

from __future__ import annotations

from auditor.kernels.row import Row

COMMUNICATION = (
    Row(
        "collective", "^nccl*kernel ^rcclgenerickernel ^mscclkernel mscclpp oneccl",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "trace mi300x_resnet_ddp_training", "NCCL / RCCL",
    ),
    Row(
        "collective",
        """allreduce_fusion_kernel lamport*rmsnorm allreduce*rmsnorm fused_allreduce_rmsnorm oneshotallreducefusion
        twoshotallreducefusion""",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 4>(int)",
        "flashinfer-ai/flashinfer include/flashinfer/comm/trtllm_allreduce_fusion.cuh", "FlashInfer",
        "all-reduce + add + RMS norm",
    ),
    Row(
        "collective", "cross_device_reduce allreduce_naive local_device_load_rmsnorm",
        "void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*, sglang::RankSignals, sglang::Signal*)",
        "vllm-project/vllm csrc/custom_all_reduce.cuh", "vLLM / SGLang / AITER",
    ),
    Row(
        "collective",
        """deep_ep:: nvshmem rocshmem barrier_on_stream_kernel c10d::symmetric_memory multimem_all_reduce
        multimem_one_shot one_shot_all_reduce two_shot_all_reduce""",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)",
        "deepseek-ai/DeepEP csrc/kernels/intranode.cu", "DeepEP / symmetric memory",
    ),
    Row(
        "collective", "oneshotallreduce twoshotallreduce allreduce_prototype aiter::*reduce_scatter aiter::*allgather",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(tensorrt_llm::kernels::AllReduceParams)",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/customAllReduceKernels.cu", "TensorRT-LLM / AITER",
    ),
    Row(
        "collective", "^userbuffers_ ^kuserbuffers_",
        "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
        "NVIDIA/TransformerEngine transformer_engine/common/comm_gemm_overlap/userbuffers", "Transformer Engine",
    ),
    Row(
        "collective",
        "allreduce all_reduce reduce_scatter reducescatter all_gather allgather all_to_all alltoall all2all",
        "_all_gather_push_2d_ll_kernel", "ByteDance-Seed/Triton-distributed python/triton_dist/kernels", "",
    ),
    Row(
        "memcpy", "^__amd_rocclr_copy",
        "__amd_rocclr_copyBuffer.kd", "ROCm/clr rocclr/device/blitcl.cpp", "ROCm runtime",
    ),
    Row(
        "memset", "^__amd_rocclr_fill ^__amd_rocclr_initheap",
        "__amd_rocclr_fillBufferAligned.kd", "ROCm/clr rocclr/device/blitcl.cpp", "ROCm runtime",
    ),
)  # fmt: skip
