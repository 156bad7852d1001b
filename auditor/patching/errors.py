"""How far a result is off, against how far eager's own is: both measured against a reference in higher precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auditor.patching.precision import parts

ROUNDINGS = {torch.float64: 64.0, torch.float32: 2.0, torch.bfloat16: 0.5, torch.float16: 0.5}
"""Units of the last place of the largest element that any result may be off besides twice eager's error: low precision
rounds its result once, and in fp32 sums of another order differ by a few. (fp64: its reference is no better.)"""
TIMES_EAGER = 2.0
NOISE = 0.5
"""Where eager's errors have this part of the reference's RMS, the tensor is what rounding left of a zero: the gradient
of the bias of attention's keys. Two roundings of it differ by more than twice as easily as by less."""
TIMES_NOISE = 10.0
"""How many times as large they may be then. What is wrong is larger by orders of magnitude."""
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
_OVERFLOWING = 1e30
"""Where the reference is beyond this, low precision has its own largest number: a mask made of ``finfo(dtype).min``."""


@dataclass(frozen=True)
class LeafError:
    """One tensor of a result.

    Errors are the largest absolute difference from the reference, divided by the reference's RMS: the largest, as a
    mean hides one wrong row; the RMS, as it is zero only where every element is, and as one large element (an outlier
    channel) moves a maximum much more. Of a reference that is all zero they are absolute. The
    verdict does not depend on the divisor, which serves to compare leaves with each other.
    """

    path: str
    error: float
    eager_error: float
    allowed: float
    mismatch: float = 0.0
    """Share of the elements of a 16-bit result that do not equal eager's bit for bit."""
    wrong: str | None = None
    """What is wrong besides the error: its shape, its NaNs, an integer."""
    elements: int = 0

    @property
    def ok(self) -> bool:
        return self.wrong is None and self.error <= self.allowed

    @property
    def reason(self) -> str | None:
        """One clause that says why it fails."""
        if self.wrong:
            return f"{self.path} {self.wrong}"
        if self.ok:
            return None
        return (
            f"{self.path} is off by {self.error:.3g} of its RMS, eager by {self.eager_error:.3g} "
            f"({self.allowed:.3g} allowed)"
        )

    @property
    def severity(self) -> float:
        """The error as a multiple of what is allowed, for ranking."""
        if self.wrong:
            return float("inf")
        return self.error / self.allowed if self.allowed else (0.0 if self.error == 0 else float("inf"))


@dataclass(frozen=True)
class Comparison:
    """A result, leaf by leaf. ``error`` and ``eager_error`` are those of the worst leaf: that nearest to its bound."""

    leaves: tuple[LeafError, ...]

    @property
    def worst(self) -> LeafError | None:
        return max(self.leaves, key=lambda leaf: leaf.severity, default=None)

    @property
    def error(self) -> float:
        return self.worst.error if self.worst else 0.0

    @property
    def eager_error(self) -> float:
        return self.worst.eager_error if self.worst else 0.0

    @property
    def mismatch(self) -> float:
        return max((leaf.mismatch for leaf in self.leaves), default=0.0)

    @property
    def ok(self) -> bool:
        return all(leaf.ok for leaf in self.leaves)

    @property
    def reason(self) -> str | None:
        return self.worst.reason if self.worst else None


def compare(new: Any, eager: Any, exact: Any, coarser: Mapping[str, torch.dtype] | None = None) -> Comparison:
    """Judge ``new`` by ``eager`` and the reference ``exact``: containers of tensors of one structure.

    A leaf passes iff its error is at most twice eager's plus :data:`ROUNDINGS`. Shape, dtype, structure and the places
    of NaN and inf have to agree with eager's; integers, booleans and what is no tensor have to be equal. ``coarser``
    names leaves that are no more exact than another dtype: a loss in fp32 after a step in parameters of 16 bits.
    """
    rounded = coarser or {}
    mine, its, true = (dict(named_leaves(value)) for value in (new, eager, exact))
    found = [
        compare_leaf(path, mine[path], leaf, true.get(path), rounded.get(path))
        if path in mine
        else _missing(path, "is missing")
        for path, leaf in its.items()
    ]
    found += [_missing(path, "is there, but eager has none") for path in mine if path not in its]
    return Comparison(tuple(found))


def compare_leaf(path: str, new: Any, eager: Any, exact: Any, coarser: torch.dtype | None = None) -> LeafError:
    """One leaf of :func:`compare`; see there."""
    if not isinstance(eager, Tensor) or not isinstance(new, Tensor):
        same = type(new) is type(eager) and not isinstance(eager, Tensor) and bool(new == eager)
        return _missing(path, None if same else f"is {_described(new)}, not {_described(eager)}")
    wrong = _form(new, eager)
    if wrong is None and not eager.is_floating_point() and not eager.is_complex():
        wrong = None if torch.equal(new, eager) else f"differs from eager's in {_share(new, eager):.3g} of its elements"
        return replace(_missing(path, wrong), elements=eager.numel())
    if wrong is None and not isinstance(exact, Tensor):
        wrong = "has no reference"
    if wrong is None and exact.shape != eager.shape:
        wrong = f"has the shape {tuple(eager.shape)}, the reference {tuple(exact.shape)}"
    return _missing(path, wrong) if wrong else _measured(path, new, eager, exact, coarser or eager.dtype)


def _unit(dtype: torch.dtype) -> float:
    return ROUNDINGS.get(dtype, 0.0) * torch.finfo(dtype).eps


def _measured(path: str, new: Tensor, eager: Tensor, exact: Tensor, rounded: torch.dtype) -> LeafError:
    unit = max(_unit(eager.dtype), _unit(rounded))
    mismatch = _share(new, eager) if eager.dtype in _SIXTEEN_BITS else 0.0
    new, eager, exact = (_wide(tensor) for tensor in (new, eager, exact))
    if bool((exact.isnan() & eager.isfinite()).any()):
        return _missing(path, "has a reference with NaN where eager has none")
    counted = eager.isfinite() & (exact.abs() < _OVERFLOWING)
    if _share(new[~counted], eager[~counted]):
        return _missing(path, "differs from eager's where the reference overflows")
    new, eager, exact = new[counted], eager[counted], exact[counted]
    if not exact.numel():
        return LeafError(path, 0.0, 0.0, 0.0, mismatch)
    scale = _rms(exact)
    eager_error = float((eager - exact).abs().max()) / scale
    error = float((new - exact).abs().max()) / scale
    times = TIMES_NOISE if eager_error and _rms(eager - exact) > NOISE * scale else TIMES_EAGER
    allowed = times * eager_error + unit * float(exact.abs().max()) / scale
    return LeafError(path, error, eager_error, allowed, mismatch, None, exact.numel())


def _wide(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.detach().to(torch.complex128)) if tensor.is_complex() else tensor.detach().double()


def _rms(exact: Tensor) -> float:
    """Root of the mean square, 1 where that is zero. Scaled first, so that no square over- or underflows."""
    largest = float(exact.abs().max())
    return largest * float((exact / largest).square().mean().sqrt()) if largest else 1.0


def _form(new: Tensor, eager: Tensor) -> str | None:
    if new.shape != eager.shape or new.dtype != eager.dtype:
        return f"is {_described(new)}, not {_described(eager)}"
    if not (eager.is_floating_point() or eager.is_complex()):
        return None
    if not torch.equal(new.isnan(), eager.isnan()):
        return f"has {int(new.isnan().sum())} NaN, eager {int(eager.isnan().sum())}, or elsewhere"
    infinite = eager.isinf()
    if not torch.equal(new.isinf(), infinite) or not torch.equal(new[infinite], eager[infinite]):
        return f"has {int(new.isinf().sum())} inf, eager {int(infinite.sum())}, or elsewhere or of another sign"
    return None


def _share(new: Tensor, eager: Tensor) -> float:
    unequal = (new != eager) & ~(new.isnan() & eager.isnan())
    return float(unequal.double().mean()) if new.numel() else 0.0


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"a {type(value).__name__}" if value is None or len(repr(value)) > 20 else repr(value)


def _missing(path: str, wrong: str | None) -> LeafError:
    return LeafError(path, 0.0, 0.0, 0.0, 0.0, wrong)


_PLAIN = (bool, int, float, complex, str, type(None))


def named_leaves(value: Any, name: str = "output") -> Iterator[tuple[str, Any]]:
    """Tensors and plain values with their paths (``logits``, ``[1]``, ``past_key_values.layers[0].keys``).

    ``name`` is the path of a value that is a leaf itself. Objects are looked into; what holds no tensor is passed over.
    """
    yield from _leaves(value, "", name, set())


def _leaves(value: Any, path: str, name: str, above: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Tensor, *_PLAIN)):
        yield path or name, value
    elif id(value) not in above:
        for key, item in parts(value):
            attribute = isinstance(key, str) and key.startswith(".")
            if attribute and isinstance(item, _PLAIN):  # what an object notes for itself is no result
                continue
            step = key if attribute else f".{key}" if isinstance(key, str) else f"[{key!r}]"
            yield from _leaves(item, f"{path}{step}".lstrip("."), name, above | {id(value)})


def floating_leaves(value: Any) -> list[tuple[str, Tensor]]:
    """The floating and complex tensors of a result with their paths: those that a gradient may flow to."""
    return [
        (path, leaf)
        for path, leaf in named_leaves(value)
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    ]
