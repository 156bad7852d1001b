"""What kind of work a kernel does, in the few kinds that a reader can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from auditor.graph.ops import kind_of
from auditor.kernels import Family, classify

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
    "other": "random numbers, constants, and what neither op nor name tells",
    "pointwise": "one result for each element",
    "reduction": "sums, means, maxima over a dimension",
    "transfer": "the copy engine: to and from the host, and fills",
    "unlinked": "launched by no op that the recording knows, and of no known name",
}

COMPUTE_BOUND = frozenset({"gemm", "attention"})
_JOINED = {"movement": "copy", "random": "other", "generator": "other", "sync": "other", "allocation": "other"}
_OF_FAMILY: dict[Family, str] = {
    "gemm": "gemm", "attention": "attention", "elementwise": "pointwise", "reduction": "reduction", "norm": "norm",
    "softmax": "norm", "copy": "copy", "gather": "gather", "sort": "gather", "optimizer": "optimizer",
}  # fmt: skip
_BY_NAME: dict[Family, str] = {"collective": "collective", "memcpy": "transfer", "memset": "transfer"}
"""What a name tells whatever op launched it."""


def code(kind: str) -> int:
    """The place of a kind in :data:`KINDS`."""
    return KINDS.index(kind)


def kind_codes(
    op_names: Sequence[str], op_codes: NDArray[np.int32], names: Sequence[str], name_codes: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The kind of each kernel: by its op, and by its own name where the op says nothing. ``op_codes`` -1: of no op."""
    by_op = np.array([code(_of_op(name)) for name in op_names] + [code("unlinked")], np.int32)  # -1 is the last
    found = by_op[op_codes]
    families = [classify(name).family for name in names]
    always, else_ = _codes(families, _BY_NAME)[name_codes], _codes(families, _OF_FAMILY)[name_codes]
    silent = np.isin(found, (code("other"), code("unlinked"))) & (else_ >= 0) & ~_says_other(op_names, op_codes)
    return np.where(always >= 0, always, np.where(silent, else_, found)).astype(np.int32)


def _codes(families: Sequence[Family], kinds: Mapping[Family, str]) -> NDArray[np.int32]:
    """The kind of each family; -1 for one that ``kinds`` has not."""
    return np.array([code(kinds[family]) if family in kinds else -1 for family in families], np.int32)


def _says_other(op_names: Sequence[str], op_codes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether the op is known and its kind is one that readers see as ``other``: random numbers, constants."""
    return np.array([kind_of(name) != "other" and _of_op(name) == "other" for name in op_names] + [False])[op_codes]


def _of_op(name: str) -> str:
    kind = kind_of(name)
    return _JOINED.get(kind, kind)
