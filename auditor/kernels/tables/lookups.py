"""Embedding tables of recommendation models, as FBGEMM has them."""

from __future__ import annotations

from auditor.kernels.row import Row

_FBGEMM = "FBGEMM"

LOOKUPS = (
    Row(
        "gather", "embedding_backward_codegen*find_long_segments embedding_backward*grad_indice_weights",
        "split_embedding_backward_codegen_dense_unweighted_find_long_segments(int)",
        "trace dlrm_8_ranks", _FBGEMM, "",
    ),
    Row(
        "gather", "embedding_backward_codegen_dense",
        (
            "void split_embedding_backward_codegen_dense_unweighted_kernel_cta_per_row_1<float, float, float, 1ul, "
            "8>(int)"
        ),
        "trace dlrm_8_ranks", _FBGEMM, "pooled lookups of many tables, backward",
    ),
    Row(
        "gather", "embedding_backward_codegen",
        (
            "void split_embedding_backward_codegen_rowwise_adagrad_weighted_kernel_cta_per_row_1<float, float, "
            "float>(int)"
        ),
        "trace a100_training_torch1.12", _FBGEMM, "pooled lookups of many tables, backward + optimizer step",
    ),
    Row(
        "gather",
        """embedding_codegen_forward embedding_codegen_grad embedding_nobag_codegen int_nbit_split_embedding
        embedding_inplace_update""",
        "void split_embedding_codegen_forward_weighted_kernel<float, float, float, long, 1ul>(int)",
        "trace a100_training_torch1.12", _FBGEMM, "pooled lookups of many tables",
    ),
    Row(
        "gather",
        """fbgemm_gpu:: bounds_check_indices linearize_index permute_pooled_embs recat_copy_async
        to_dense_representation linearize_cache_indices jagged_""",
        "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int, int, int const*, int const*, int*)",
        "trace a100_training_torch1.12", _FBGEMM, "",
    ),
)  # fmt: skip
