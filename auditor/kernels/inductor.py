"""Names that TorchInductor composed: ``triton_poi_fused_add_mul_3`` is a pointwise kernel of an add and a mul.

The scheme is that of ``torch/_inductor/codegen/triton.py``: ``triton``, three letters of the heuristic, ``fused``, the
ATen ops that the kernel is from, and a number; ``cpp`` in place of the first two on a CPU.
"""

from __future__ import annotations

import re

from auditor.graph.ops import (
    ATTENTION,
    COPY,
    GATHER,
    GEMM,
    GENERATOR,
    MOVEMENT,
    NORM,
    POINTWISE,
    RANDOM,
    REDUCTION,
)  # fmt: skip
from auditor.kernels.family import Family
from auditor.kernels.row import Known

LIBRARY = "Inductor"

_PREFIX = re.compile(r"(?:triton_([a-z]{3})|triton|cpp)_fused(?=_)")
"""Without the three letters where it is of PyTorch 2.0."""
_NUMBER = re.compile(r"_\d[0-9cde]*$")
"""The number, and what Triton 2.0 wrote behind it of the arguments (``0d1d2de``)."""
_BARE = re.compile(r"triton_(poi|red|per|tem|for|spl)_|triton__?\d|cpp_fused_")
"""Kernels without ops in their name, and those of PyTorch 2.0 (``triton__0d1d2d3de``)."""

_WORDS = 8
"""Words of the longest op's name, ``_scaled_dot_product_flash_attention_for_cpu`` with its leading empty one."""

_TOLD = 4
"""Ops that ``fuses`` names; the rest are counted."""

_VIEWS = frozenset(
    {
        "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice",
        "select", "split", "split_with_sizes", "unbind", "as_strided", "alias", "detach", "lift_fresh_copy", "unfold",
        "diagonal", "movedim", "narrow", "chunk", "view_as_real", "view_as_complex",
    }
)  # fmt: skip
_NORMS = frozenset(
    ("rsqrt", "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_batch_norm")
)
_SCANS = frozenset(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "topk"])


def _bare(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name.removeprefix("aten.") for name in names)


_COPIES = _bare(COPY | MOVEMENT) | _VIEWS
_LOOKUPS = _bare(GATHER)
_REDUCTIONS = _bare(REDUCTION)
_VOCABULARY = (
    _bare(POINTWISE | REDUCTION | NORM | GEMM | ATTENTION | COPY | MOVEMENT | GATHER | RANDOM | GENERATOR) | _VIEWS
)


def decode(name: str) -> Known | None:
    """What a name that Inductor composed says; None for any other."""
    if not name.startswith(("triton_", "cpp_fused_")):
        return None
    found = _PREFIX.match(name)
    if found is None:
        bare = _BARE.match(name)
        return Known(_family(bare[1] or "", ()), LIBRARY, "ops of a compiled graph") if bare else None
    ops = ops_in(_NUMBER.sub("", name[found.end() :])[1:])
    return Known(_family(found[1] or "", ops), LIBRARY, _told(ops), ops)


def ops_in(words: str) -> tuple[str, ...]:
    """The ops whose names ``words`` joins; the longest of ATen's names win, words that ATen has not are one name."""
    parts = words.split("_")
    ops: list[str] = []
    at, last_known = 0, True
    while at < len(parts):
        for length in range(min(_WORDS, len(parts) - at), 0, -1):
            op = "_".join(parts[at : at + length])
            if op in _VOCABULARY or length == 1:
                break
        known = op in _VOCABULARY
        if op and not known and ops and not last_known:  # an op of somebody's own is one name: `moe_forward`
            ops[-1] += f"_{op}"
        elif op:
            ops.append(op)
        last_known = known
        at += length
    return tuple(ops)


def _family(kind: str, ops: tuple[str, ...]) -> Family:
    found = frozenset(ops)
    if kind == "tem":  # a template: a matrix product, a convolution or flex attention, with what follows it
        return "attention" if any("attention" in op for op in ops) else "gemm"
    if kind == "spl":  # a split scan
        return "sort"
    if kind in ("red", "per") or (not kind and found & _REDUCTIONS):
        if any("softmax" in op for op in ops):
            return "softmax"
        return "norm" if found & _NORMS else "sort" if found & _SCANS else "reduction"
    if found & _LOOKUPS and found <= _LOOKUPS | _COPIES:
        return "gather"
    return "copy" if ops and found <= _COPIES else "elementwise"


def _told(ops: tuple[str, ...]) -> str:
    real = [op for op in ops if op not in _VIEWS] or list(ops)
    if not real:
        return "ops of a compiled graph"
    more = len(real) - _TOLD
    return " + ".join(real[:_TOLD]) + (f" and {more} more" if more > 0 else "")
