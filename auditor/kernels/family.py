"""The families of kernels, and which family an op's kernels are of."""

from __future__ import annotations

from functools import cache
from typing import Literal, get_args

from auditor.graph.ops import Kind, base_name, kind_of

Family = Literal[
    "gemm", "attention", "elementwise", "reduction", "norm", "softmax", "copy", "gather", "sort", "random",
    "optimizer", "collective", "memcpy", "memset", "other",
]  # fmt: skip
"""``gemm``: matrix products and convolutions. ``copy``: casts, transposes, concatenations. ``gather``: indexing,
embeddings, pooling. ``sort``: sorts, top-k, scans and compactions. ``other``: what nothing is known of."""

FAMILIES: tuple[Family, ...] = get_args(Family)

COMPUTE_BOUND: frozenset[Family] = frozenset({"gemm", "attention"})

_OF_KIND: dict[Kind, Family] = {
    "pointwise": "elementwise", "reduction": "reduction", "norm": "norm", "gemm": "gemm", "attention": "attention",
    "copy": "copy", "movement": "copy", "gather": "gather", "random": "random", "generator": "elementwise",
    "collective": "collective", "optimizer": "optimizer", "sync": "copy", "allocation": "elementwise",
}  # fmt: skip

_SORTS = frozenset(
    {
        "aten.topk", "aten.sort", "aten.argsort", "aten.kthvalue", "aten.unique", "aten._unique2",
        "aten.unique_consecutive", "aten.unique_dim", "aten.nonzero", "aten.cumsum", "aten.cumprod", "aten.cummax",
        "aten.cummin", "aten.logcumsumexp", "aten.masked_select", "aten.mode",
    }
)  # fmt: skip


@cache
def family_of_op(op: str) -> Family:
    """Family of the kernels that ``op`` (``aten.add_``) launches; ``other`` where the op says nothing."""
    base = base_name(op)
    if base in _SORTS:
        return "sort"
    if "softmax" in base and kind_of(op) == "norm":
        return "softmax"
    return _OF_KIND.get(kind_of(op), "other")
