"""A value that an input may be, and which links would be odd: nobody computes that while another value looks alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from auditor.collect.dispatched import bare
from auditor.collect.partial import Partial
from auditor.collect.recorded_inputs import TensorSpec
from auditor.graph.model import Value

NORMS = frozenset({"aten::native_layer_norm", "aten::_fused_rms_norm", "aten::native_group_norm"})
_NEVER = float("inf")


class Candidate(msgspec.Struct, eq=False, gc=False):
    """A value made earlier. ``op`` numbers the ops of the thread. One for each output of a trace."""

    value: Value
    spec: TensorSpec
    op: int
    maker: tuple[str, str]
    """Names of the op that made it and of the one that made what it is a view of."""
    frame: int = -1
    root: Candidate | None = None
    linear_of: Candidate | None = None
    """The activation that this is a linear image of: a weight's GEMM, then only views, casts and scaling."""
    power_of: Candidate | None = None
    """The value that this is a power of."""
    source: Candidate | None = None
    """The input of its shape that it was made from."""
    read: int = 0
    """How many ops read it."""
    first_read: float = _NEVER
    """When the first of them started."""
    gemms: int = 0
    """How many of them are linear layers, which often share one input."""
    gated: bool = False
    """The product with a sigmoid."""
    normed: bool = False
    """The result of a convolution that a norm read: nobody else does."""
    stale: bool = False
    """Overwritten in place, so that a newer version is among the candidates; or out of reach."""
    taken: bool = False
    """A gradient that a node of the backward took up, or that was added to another: no other node reads it."""
    home: int = -1
    """The innermost call around it that is open, until ``home_until``."""
    home_until: float = -_NEVER
    partial: Partial | None = None
    """What is known of a value whose looks are not: it gets those of the first read that is linked to it."""
    origin: Value | None = None
    """Of such a value: what it is a view of."""

    @property
    def owner(self) -> Candidate:
        return self.root or self


class Read(msgspec.Struct, eq=False, gc=False):
    """An op whose inputs are to be linked."""

    op_name: str
    binary: bool = False
    """An elementwise op of two inputs that may look alike."""
    prefer: Candidate | None = None
    avoid: Candidate | None = None
    pre_norm_from: int | None = None
    """First op of the module call, for a sum where that is a norm: the residual is what such a norm read."""
    first_in_model: int = 0
    """First op of the model's call: it seldom reads what the script made before, where it made an alike value."""
    first_in_module: int = 0
    """Of a sum: first op of the module call. A residual is what came into the module."""
    in_order: bool = True
    """Of values made in parallel the first is read first. A backward pass reads the last: it goes back."""
    made_by_odd: Collection[int] = ()
    """Ops whose outputs it would be odd to read here."""


_NEVER_OF_ITSELF = frozenset(
    "aten::" + name + underscore
    for name in (
        "clamp", "clamp_min", "clamp_max", "nan_to_num", "relu", "relu6", "gelu", "silu", "sigmoid", "tanh", "_softmax",
        "_log_softmax", "abs", "isnan", "sin", "cos", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm",
    )
    for underscore in ("", "_")
)  # fmt: skip
_CONVOLUTIONS = frozenset({"aten::convolution", "aten::cudnn_convolution", "aten::miopen_convolution"})


_KEEPS_LINEAR = frozenset({"_to_copy", "mul", "div", "clone"})
_POWERS = frozenset({"pow", "square", "abs"})
_PAIRS = frozenset(["add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "maximum", "minimum"])


@dataclass(slots=True, frozen=True)
class Manner:
    """What the name of an op tells of its reads and its results: asked for every op of a trace, worked out once."""

    base: str
    """``add`` of ``aten::add``."""
    in_place: bool
    pairs: bool
    """An elementwise op of two inputs that may look alike."""
    adds: bool
    power: bool
    gates: bool
    """A product, which may be one with a gate."""
    keeps_linear: bool
    """It scales or casts: of a linear image it makes another one."""
    normalises: bool
    """A batch norm: nobody else reads the convolution that it reads."""
    once: bool
    """Nobody writes ``f(f(x))`` of it: it changes nothing the second time, or is a layer's end."""


@cache
def manner_of(name: str) -> Manner:
    """Of the op called ``name`` (``aten::add``)."""
    base = bare(name)
    return Manner(
        base, name.endswith("_"), base in _PAIRS, base in ("add", "add_"), base in _POWERS, name == "aten::mul",
        base in _KEEPS_LINEAR, name.endswith("batch_norm"), name in _NEVER_OF_ITSELF,
    )  # fmt: skip


def never_of_itself(manner: Manner, spec: TensorSpec) -> bool:
    """Whether nobody writes ``f(f(x))`` of such an op. One counter is not the next one's: batch norms count what they
    have seen.
    """
    return manner.once or (manner.adds and not spec.shape and spec.dtype in ("i64", "i32"))


def is_convolved(candidate: Candidate) -> bool:
    """Whether a convolution made it."""
    return candidate.maker[0] in _CONVOLUTIONS


def made_alike(one: Candidate, other: Candidate) -> bool:
    """By the same ops, a sine counted as a cosine."""
    return one.maker == other.maker or _with_cosines(one.maker) == _with_cosines(other.maker)


@cache
def _with_cosines(maker: tuple[str, str]) -> tuple[str, ...]:
    return tuple(name.replace("sin", "cos") for name in maker)


def is_odd(
    candidate: Candidate, read: Read, reachable: Sequence[Candidate], chosen: Collection[Candidate], *, feeds_gemm: bool
) -> bool:
    """Whether linking ``candidate`` would compute something that nobody writes, while there is an alternative.

    A GEMM of a GEMM of x where x can still be read (two linear layers in a row are one); x + W x; x² · s(x²) where
    x can be read (norms scale x); the cosine of a sine; a rotation of what the same angles rotated; f(f(x)) while y,
    made like x, waits for its f. ``reachable`` are the candidates, oldest first.
    """
    if feeds_gemm and candidate.linear_of is not None:
        return any(c.owner is candidate.linear_of.owner for c in reachable)
    if candidate.op < read.first_in_model <= reachable[-1].op:
        return True
    if candidate.op in read.made_by_odd or _turned(candidate.maker[0], read.op_name):
        return True
    if read.binary and (candidate.normed or _is_not_for_gates(candidate, reachable, chosen)):
        return True
    if candidate.maker[0] == read.op_name and candidate.source is not None:
        waiting = (c for c in reachable if not c.read and c is not candidate)
        return any(made_alike(c, candidate.source) for c in waiting)
    if read.pre_norm_from is not None and candidate.read and candidate.maker[0] in NORMS:
        return candidate.op >= read.pre_norm_from and candidate.source in reachable
    if read.binary and candidate.power_of is not None and candidate.read:
        return candidate.power_of in reachable
    return read.binary and any(c.linear_of is not None and c.linear_of.owner is candidate.owner for c in chosen)


def _is_not_for_gates(candidate: Candidate, reachable: Sequence[Candidate], chosen: Collection[Candidate]) -> bool:
    """A gate scales what it was made for: no other gate, and nothing that a gate scaled already."""
    if candidate.gated:
        return any(map(_is_gate, reachable)) or any(map(_is_gate, chosen))
    return _is_gate(candidate) and any(map(_is_gate, chosen))


def _is_gate(candidate: Candidate) -> bool:
    return candidate.maker[0] == "aten::sigmoid" and not candidate.read


def _turned(one: str, other: str) -> bool:
    """The sine of a cosine, or the other way round."""
    return (one == "aten::cos" and other == "aten::sin") or (one == "aten::sin" and other == "aten::cos")
