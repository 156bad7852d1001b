"""What kind of work a kernel does, in the few kinds that a reader can tell apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from auditor.graph.ops import kind_of

KINDS = (
    "attention", "collective", "copy", "gather", "gemm", "norm", "optimizer", "other", "pointwise", "reduction",
    "transfer", "unlinked",
)  # fmt: skip
"""In the order of the alphabet: the codes of a column sort as its texts do."""

MEANING = {
    "attention": "attention in one kernel",
    "collective": "communication between devices",
    "copy": "copies, casts, concatenations, fills",
    "gather": "reads or writes by index, pooling, sorting",
    "gemm": "matrix products and convolutions",
    "norm": "norms and softmax in one kernel",
    "optimizer": "parameter updates over many tensors",
    "other": "random numbers, constants and ops that are not known",
    "pointwise": "one result for each element",
    "reduction": "sums, means, maxima over a dimension",
    "transfer": "the copy engine: to and from the host, and fills",
    "unlinked": "launched by no op that the recording knows",
}

COMPUTE_BOUND = frozenset({"gemm", "attention"})
_JOINED = {"movement": "copy", "random": "other", "generator": "other", "sync": "other", "allocation": "other"}
_COLLECTIVE = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)


def code(kind: str) -> int:
    """The place of a kind in :data:`KINDS`."""
    return KINDS.index(kind)


def kind_codes(
    op_names: Sequence[str], op_codes: NDArray[np.int32], names: Sequence[str], name_codes: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The kind of each kernel: by its own name where that says it, else by its op's. ``op_codes`` -1: of no op."""
    by_op = np.array([code(_of_op(name)) for name in op_names] + [code("unlinked")], np.int32)  # -1 is the last
    by_name = np.array([_of_kernel(name) for name in names], np.int32)
    named = by_name[name_codes]
    return np.where(named >= 0, named, by_op[op_codes]).astype(np.int32)


def _of_op(name: str) -> str:
    kind = kind_of(name)
    return _JOINED.get(kind, kind)


def _of_kernel(name: str) -> int:
    if name.startswith(("Memcpy", "Memset")):
        return code("transfer")
    return code("collective") if _COLLECTIVE.search(name) else -1
