"""Whether a patched model still computes what it did: against the same model unpatched, judged by a run in fp64.

Both versions run on the captured inputs and on perturbed ones, with the same random numbers. Compared are the outputs,
the gradient of every parameter and of the inputs, what the step wrote to its inputs, parameters and buffers, and in
training the loss over a few SGD steps. The model is left as it was, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from auditor.patching.errors import Comparison, LeafError, compare, floating_leaves, named_leaves
from auditor.patching.perturb import variants
from auditor.patching.precision import (
    HigherPrecision,
    called_with,
    copied_tensor,
    copies,
    home_of,
    named_state,
    wide_copy,
    wide_state,
)
from auditor.patching.state import State, kept_state
from auditor.patching.step import Step, cotangents_of, named_inputs, step_modes, tensors_of

FAITHFUL = 0.02
"""Share of a 16-bit output that may differ from eager's bits where the same roundings are claimed. The order of a sum
turns a rounding in a few of 10,000 elements; a norm that rounds in another place differs in a third of them."""
FEW = 4096
"""Elements of a leaf under which eager's largest error on one input is luck (a norm's weight has 256, and a model has a
hundred): for those it is eager's largest over all inputs that were run. The factor of two stays."""


class Switchable(Protocol):
    """A patch of a live model that can be switched."""

    def enabled(self) -> AbstractContextManager[Any]:
        """Inside, the model is patched."""

    def disabled(self) -> AbstractContextManager[Any]:
        """Inside, the model is as it was."""


@dataclass(frozen=True)
class Verification:
    """The verdict. ``error`` and ``eager_error`` (see LeafError) are those of the leaf that is nearest to its bound."""

    ok: bool
    reason: str | None
    error: float = 0.0
    eager_error: float = 0.0
    leaves: tuple[LeafError, ...] = ()
    """Each leaf as it was on the inputs where it was worst."""
    mismatch: float = 0.0
    inputs: tuple[str, ...] = ()
    """What was run: ``captured inputs``, and the perturbed ones that the model takes in eager."""


def verify(
    model: nn.Module,
    patched: Switchable,
    step: Step,
    *,
    perturbations: int = 2,
    steps: int = 3,
    faithful: bool = False,
) -> Verification:
    """Judge ``patched`` on ``step`` and on ``perturbations`` variants of it.

    Args:
        model: the live model that ``patched`` switches. It is left as it was: parameters, buffers, gradients, flags
            and random states.
        patched: the patch.
        step: the captured call.
        perturbations: variants of the inputs, of those that eager takes: other values, other sizes.
        steps: SGD steps whose loss is compared, for training on the captured inputs; 0 for none.
        faithful: the patch claims the roundings of eager: :data:`FAITHFUL` of the 16-bit outputs may differ in a bit.
            Meant for a step of the module that is patched: further on one bit becomes many.
    """
    compared: dict[str, Comparison] = {}
    with kept_state(model) as state:
        if model.training != step.training:
            model.train(step.training)
        for name, given in variants(step):
            if len(compared) > perturbations:
                break
            runs = _Runs(model, patched, state, given, steps if not compared else 0)
            try:
                eager, exact = runs.eager(), runs.exact()
            except Exception as error:  # what the model raises is not ours to know
                if compared:
                    continue
                return Verification(False, f"there is no reference: {_clause(error)}")
            try:
                new = runs.patched()
            except Exception as error:
                return Verification(False, f"it raises on {name}: {_clause(error)}", inputs=(*compared, name))
            compared[name] = compare(new, eager, exact, {_losses_of(runs.steps): runs.coarsest})
    return _judged(compared, faithful)


def _clause(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _judged(compared: Mapping[str, Comparison], faithful: bool) -> Verification:
    worst: dict[str, tuple[LeafError, str]] = {}
    for name, comparison in compared.items():
        for leaf in comparison.leaves:
            leaf = _with_luck(leaf, compared.values())
            if leaf.path not in worst or leaf.severity > worst[leaf.path][0].severity:
                worst[leaf.path] = (leaf, name)
    leaves = tuple(leaf for leaf, _ in worst.values() if leaf.elements or leaf.wrong)
    mismatch = max((leaf.mismatch for c in compared.values() for leaf in c.leaves if _is_output(leaf)), default=0.0)
    if not leaves:
        return Verification(False, "the step returns no tensor", inputs=tuple(compared))
    leaf, name = max(worst.values(), key=lambda found: found[0].severity)
    reason = f"{leaf.reason}, on {name}" if leaf.reason else None
    if reason is None and faithful and mismatch > FAITHFUL:
        reason = f"{mismatch:.0%} of an output differ from eager's bits, though the same roundings are claimed"
    return Verification(reason is None, reason, leaf.error, leaf.eager_error, leaves, mismatch, tuple(compared))


def _losses_of(steps: int) -> str:
    return f"loss over {steps} SGD steps"


def _is_output(leaf: LeafError) -> bool:
    return " " not in leaf.path


def _with_luck(leaf: LeafError, comparisons: Any) -> LeafError:
    """The leaf with eager's worst error over all inputs, where one input says little of it.

    That is where it has few elements (:data:`FEW`), or where eager gets no digit right (the gradient of a key's bias is
    zero but for rounding).
    """
    if leaf.wrong or (leaf.elements >= FEW and leaf.eager_error < 1):
        return leaf
    same = [other for c in comparisons for other in c.leaves if other.path == leaf.path and not other.wrong]
    return replace(leaf, allowed=max(other.allowed for other in same))


@dataclass
class _Version:
    """The model as it is called, live or in fp64, with the tensors that a step may change."""

    call: Callable[[Any, Any], Any]
    tensors: Callable[[], Mapping[str, Tensor]]
    """Parameters and buffers by name, at present: a step may put another tensor in a slot."""
    reset: Callable[[], None]
    copied: Callable[[Tensor], Tensor]
    """Copies a captured tensor for this version."""

    def unique(self) -> dict[str, Tensor]:
        """``tensors`` with shared ones under their first name."""
        found: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in self.tensors().items():
            found.setdefault(id(tensor), (name, tensor))
        return dict(found.values())


@dataclass
class _Runs:
    """The versions on one input. Each gives tensors and plain values by path; the model is reset after each.

    Eager runs first: it sets the gradients that come in and the rate of the SGD steps for all. (In the fp64 run even a
    gradient that is drawn would not be rounded as eager's is.)
    """

    model: nn.Module
    patch: Switchable
    state: State
    step: Step
    steps: int
    rate: float = 0.0
    coarsest: torch.dtype = torch.float64
    """Of the parameters that learn: their values after a step, and so the losses then, are no more exact."""
    cotangents: list[Tensor | None] | None = None

    def eager(self) -> dict[str, Any]:
        with self.patch.disabled():
            return self._run(self._live(), first=True)

    def patched(self) -> dict[str, Any]:
        with self.patch.enabled():
            return self._run(self._live())

    def exact(self) -> dict[str, Any]:
        tensors = wide_state(self.model)
        version = _Version(
            lambda args, kwargs: called_with(self.model, tensors, args, kwargs),
            lambda: tensors,
            lambda: tensors.update(wide_state(self.model)),
            wide_copy,
        )
        with self.patch.disabled(), HigherPrecision(home_of(self.model, self.step.args, self.step.kwargs)):
            return self._run(version, live=False)

    def _live(self) -> _Version:
        def call(args: Any, kwargs: Any) -> Any:
            return self.model(*args, **kwargs)

        return _Version(call, lambda: named_state(self.model), self.state.reset, copied_tensor)

    def _run(self, version: _Version, *, live: bool = True, first: bool = False) -> dict[str, Any]:
        try:
            found = self._observed(version, live)
            learned = [t for t in version.unique().values() if t.grad is not None]
            if self.steps and learned:
                if first:
                    self.rate = _rate(learned)
                    self.coarsest = max((t.dtype for t in learned), key=lambda dtype: torch.finfo(dtype).eps)
                found[_losses_of(self.steps)] = self._losses(version, live)
            return found
        finally:
            version.reset()

    def _observed(self, version: _Version, live: bool) -> dict[str, Any]:
        """What one step returns and what it changes."""
        inputs, output = self._forward(version, live)
        found: dict[str, Any] = {}
        for path, leaf in named_leaves(output):
            found[path] = copied_tensor(leaf.detach()) if isinstance(leaf, Tensor) else leaf
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                found[f"requires_grad of {path}"] = leaf.requires_grad
        if self.step.has_backward:
            self._backward(output)
            learned = [*version.unique().items(), *tensors_of(inputs)]
            found |= {f"gradient of {name}": _detached(t.grad) for name, t in learned if t.requires_grad and t.is_leaf}
        given = dict(tensors_of(named_inputs(self.step.args, self.step.kwargs)))
        for path, leaf in tensors_of(inputs):
            found[f"{path} after the step"] = _changed(leaf, version.copied(given[path]) if path in given else None)
        for name, tensor in version.unique().items():
            found[f"{name} after the step"] = _changed(tensor, version.copied(self.state.values[name]))
        return found

    def _forward(self, version: _Version, live: bool) -> tuple[dict[str, Any], Any]:
        self.state.rng.restore()
        args, kwargs = copies((tuple(self.step.args), dict(self.step.kwargs)), version.copied)
        with step_modes(self.step, live):
            return named_inputs(args, kwargs), version.call(args, kwargs)

    def _losses(self, version: _Version, live: bool) -> Tensor:
        """[steps]: the loss before each SGD step, from the values before the step on."""
        version.reset()
        losses = []
        for _ in range(self.steps):
            _, output = self._forward(version, live)
            losses.append(self._backward(output))
            for tensor in version.unique().values():
                if tensor.grad is not None:
                    tensor.data.add_(tensor.grad, alpha=-self.rate)
                    tensor.grad = None
        return torch.stack(losses)

    def _backward(self, output: Any) -> Tensor:
        """Gradients of the loss, the sum of outputs times cotangents. Returns the loss, [].

        There are none where the outputs are of other shapes than eager's, or need none: that is seen in the outputs.
        """
        outputs = [leaf for _, leaf in floating_leaves(output)]
        if self.cotangents is None:
            self.cotangents = cotangents_of(outputs, self.step)
        pairs = [
            (leaf, grad.to(leaf))
            for leaf, grad in zip(outputs, self.cotangents, strict=False)
            if grad is not None and leaf.requires_grad and leaf.shape == grad.shape
        ]
        if not pairs:
            return torch.zeros(())
        torch.autograd.backward([leaf for leaf, _ in pairs], [grad for _, grad in pairs])
        return _loss(pairs)


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _changed(now: Tensor, before: Tensor | None) -> Any:
    """A copy of the values if the step wrote them."""
    same = before is not None and now.shape == before.shape and torch.equal(_bare(now), _bare(before))
    return "untouched" if same else copied_tensor(now.detach())


def _bare(tensor: Tensor) -> Tensor:
    return torch.nan_to_num(tensor.detach()) if tensor.is_floating_point() else tensor.detach()


def _loss(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """[]: in the dtype of a scalar output; a sum over other outputs in fp32, or in fp64 where the model is."""
    loss = torch.stack([(leaf.detach().double() * grad.double()).sum() for leaf, grad in pairs]).sum()
    scalar, dtype = all(leaf.dim() == 0 for leaf, _ in pairs), pairs[0][0].dtype
    return loss.to(dtype if scalar or dtype == torch.float64 else torch.float32)


def _rate(tensors: Sequence[Tensor]) -> float:
    """A learning rate that moves the parameters by a hundredth of their norm."""
    moved = sum(float(t.grad.double().square().sum()) for t in tensors if t.grad is not None)
    size = sum(float(t.detach().double().square().sum()) for t in tensors)
    return 0.01 * (size / moved) ** 0.5 if moved > 0 else 0.0
