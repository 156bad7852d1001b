"""One site tried on its own: its inputs made up at random, every proposal held against the separate ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from auditor.collect.capture import SHORT, hint
from auditor.measuring import Ratio, interleave, kept_memory
from auditor.patching.calls import Proposal
from auditor.patching.errors import Comparison, compare
from auditor.patching.patch_site import PatchSite
from auditor.patching.precision import in_higher_precision
from fused_replacements import unfused_reasons

CAP_S = 2.0
"""Seconds for timing one proposal against the separate ops."""
TIGHT = 0.01
FAITHFUL_MISMATCH = 0.1
"""Of a replacement that rounds where the separate ops do, at most this share of 16-bit elements may differ: what
differs then are sums in another order. A norm that goes back to bf16 in the wrong place differs in a third and more."""
UNTIMED = Ratio(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Verdict:
    """What was found of one proposal. Times are microseconds of one call, with its backward where there is one."""

    ok: bool
    reason: str = ""
    error: float = 0.0
    eager_error: float = 0.0
    mismatch: float = 0.0
    gain: Ratio = UNTIMED
    before_us: float = 0.0
    after_us: float = 0.0

    @property
    def timed(self) -> bool:
        """Whether ``gain`` was measured."""
        return self.before_us > 0


class Probe:
    """The site's function on random inputs of the shapes, strides and dtypes that it was traced with."""

    def __init__(self, site: PatchSite, nodes: Sequence[fx.Node], *, timed: bool = True) -> None:
        assert site.function is not None
        self._site, self._timed, self._lead = site, timed, site.lead
        self._nodes = tuple(nodes) if self._lead is None else self._lead.sources
        self._fakes = site.inputs if self._lead is None else self._lead.fakes
        self._reads, self._region = tuple(nodes), site.function
        self._buffers = {buffer for proposal in site.proposals for buffer in proposal.buffers}
        self._grad = torch.is_grad_enabled()
        self._gradient_written = False

    @property
    def key(self) -> object:
        """Equal for sites that compute the same on tensors alike."""
        described = tuple(
            (
                SHORT.get(t.dtype),
                tuple(map(hint, t.shape)),
                tuple(map(hint, t.stride())),
                t.requires_grad,
                str(t.device),
            )
            for t in self._fakes
        )
        way = "" if self._lead is None else self._lead.function.code
        return (self._site.key.fingerprint, way, described, self._grad)

    def judge(self, proposal: Proposal) -> Verdict:
        """Whether ``proposal`` is right here, and how much faster."""
        try:
            with _outside_of_tracing():
                return self._judged(proposal)
        except Exception as error:  # a provider may raise anything; its proposal is then no good
            text = str(error).splitlines()[0][:200] if str(error) else ""
            return Verdict(False, f"it fails: {type(error).__name__}: {text}")

    def _judged(self, proposal: Proposal) -> Verdict:
        with unfused_reasons() as unfused:
            new = self._results(self._by(proposal))
        if unfused:
            return Verdict(False, f"it runs unfused here ({unfused[0]})")
        written = self._written()
        if written:
            return Verdict(False, written)
        found: Comparison = compare(new, self._eager, self._exact)
        verdict = Verdict(found.ok, found.reason or "", found.error, found.eager_error, found.mismatch)
        if found.ok and proposal.faithful and found.mismatch > FAITHFUL_MISMATCH:
            share = f"{found.mismatch:.0%} of its elements differ from eager's"
            return Verdict(False, f"it rounds elsewhere ({share})", found.error, found.eager_error, found.mismatch)
        return self._with_times(verdict, proposal) if verdict.ok and self._timed else verdict

    def _written(self) -> str:
        """What the last run overwrote of what is its caller's. Inputs are put back."""
        changed = [not torch.equal(t, kept) for t, kept in zip(self._inputs, self._kept, strict=True)]
        with torch.no_grad():
            for tensor, kept, wrong in zip(self._inputs, self._kept, changed, strict=True):
                if wrong:
                    _fill(tensor, kept)
        if any(changed):
            return f"it writes to its input {self._nodes[changed.index(True)].name}"
        return "its backward writes to the gradient that comes in" if self._gradient_written else ""

    def _with_times(self, verdict: Verdict, proposal: Proposal) -> Verdict:
        cotangents = self._cotangents(self._function)
        versions = {
            "eager": lambda: self._step(self._function, cotangents),
            "new": lambda: self._step(self._by(proposal), cotangents),
        }
        with kept_memory():
            times = interleave(versions, baseline="eager", cap_s=CAP_S, tight=TIGHT, device=self._device)
        median = times.median_us
        return Verdict(
            True, "", verdict.error, verdict.eager_error, verdict.mismatch, times.ratio("new"), median["eager"],
            median["new"],
        )  # fmt: skip

    def _by(self, proposal: Proposal) -> Callable[..., Any]:
        def run(*inputs: Tensor) -> Any:
            outputs = proposal.run(self._values(inputs).__getitem__)
            return outputs[0] if len(outputs) == 1 else outputs

        return run

    def _function(self, *inputs: Tensor) -> Any:
        """The separate ops."""
        values = self._values(inputs)
        return self._region(*[values[node] for node in self._reads])

    def _values(self, inputs: Sequence[Tensor]) -> dict[fx.Node, Tensor]:
        """By node what was made up, and what follows from that."""
        values = dict(zip(self._nodes, inputs, strict=True))
        if self._lead is not None:
            derived = _leaves(self._lead.function(*[values[node] for node in self._lead.takes]))
            values.update(zip(self._lead.derived, derived, strict=True))
        return values

    @cached_property
    def _device(self) -> torch.device:
        return next((t.device for t in self._fakes), torch.device("cpu"))

    @cached_property
    def _inputs(self) -> tuple[Tensor, ...]:
        """Ordinary numbers; positive ones where those give nothing finite (a root, a logarithm)."""
        inputs = self._random(signed=True)
        with torch.no_grad():
            outputs = _leaves(self._function(*inputs))
        if all(o.is_floating_point() and not o.isfinite().any() for o in outputs if o.numel()):
            return self._random(signed=False)
        return inputs

    def _random(self, *, signed: bool) -> tuple[Tensor, ...]:
        """Numbers for every input; those that will share a buffer lie in one."""
        made = {
            n: _random_like(fake, i, signed) for i, (n, fake) in enumerate(zip(self._nodes, self._fakes, strict=True))
        }
        for buffer in self._buffers:
            parts = torch.cat([made[node].detach() for node in buffer]).split([len(made[node]) for node in buffer])
            for node, part in zip(buffer, parts, strict=True):
                made[node] = part.requires_grad_(made[node].requires_grad)
        return tuple(made.values())

    @cached_property
    def _kept(self) -> tuple[Tensor, ...]:
        return tuple(tensor.detach().clone() for tensor in self._inputs)

    @cached_property
    def _eager(self) -> list[Tensor]:
        return self._results(self._function)

    @cached_property
    def _exact(self) -> list[Tensor]:
        exact: list[Tensor] = in_higher_precision(lambda: self._results(self._function, wide=True), (), {})
        return exact

    def _results(self, function: Callable[..., Any], *, wide: bool = False) -> list[Tensor]:
        """Outputs, then gradients of the inputs that learn."""
        inputs = [_leaf(t, wide) for t in self._inputs]
        self._gradient_written, _ = False, self._kept  # which is made before anything can write to the inputs
        torch.manual_seed(0)
        outputs = _leaves(function(*inputs))
        learned = [t for t in inputs if t.requires_grad]
        if not learned:
            return outputs
        with_grad = [(o, c.to(o.dtype)) for o, c in zip(outputs, self._random_like(outputs), strict=True)
                     if o.requires_grad]  # fmt: skip
        if not with_grad:
            return outputs
        given = [c for _, c in with_grad]
        kept = [c.clone() for c in given]
        gradients = torch.autograd.grad([o for o, _ in with_grad], learned, given, allow_unused=True)
        self._gradient_written = not all(map(torch.equal, given, kept))
        return [o.detach() for o in outputs] + [g for g in gradients if g is not None]

    def _random_like(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Cotangents; the same numbers for eager's outputs and for wider ones."""
        made = []
        for i, output in enumerate(outputs):
            generator = torch.Generator(device=output.device).manual_seed(1 + i)
            narrow = torch.randn(output.shape, generator=generator, device=output.device, dtype=torch.float32)
            made.append(narrow.to(torch.bfloat16).to(output.dtype) if output.is_floating_point() else narrow)
        return made

    def _cotangents(self, function: Callable[..., Any]) -> list[Tensor | None] | None:
        if not any(t.requires_grad for t in self._inputs):
            return None
        outputs = _leaves(function(*self._inputs))
        return [c if o.requires_grad else None for o, c in zip(outputs, self._random_like(outputs), strict=True)]

    def _step(self, function: Callable[..., Any], cotangents: list[Tensor | None] | None) -> object:
        outputs = _leaves(function(*self._inputs))
        if cotangents is None:
            return outputs
        pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if c is not None]
        learned = [t for t in self._inputs if t.requires_grad]
        return torch.autograd.grad([o for o, _ in pairs], learned, [c for _, c in pairs], allow_unused=True)


@contextmanager
def _outside_of_tracing() -> Iterator[None]:
    """A backend is called while Dynamo traces: what is tried here is no part of that, and draws no random numbers.

    While ``is_compiling`` is true every replacement runs in the form that is traced, op by op.
    """
    from torch._guards import tracing

    nothing: Any = None
    compiling, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, False
    try:
        with tracing(nothing), torch.random.fork_rng():
            yield
    finally:
        torch.compiler._is_compiling_flag = compiling


def _random_like(fake: Tensor, seed: int, signed: bool) -> Tensor:
    """A tensor of the shape, strides, dtype and device of ``fake``; it learns where that does."""
    generator = torch.Generator(device=fake.device).manual_seed(seed)
    shape, strides = [hint(n) for n in fake.shape], [hint(n) for n in fake.stride()]
    made = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
    if fake.dtype.is_floating_point or fake.dtype.is_complex:
        dtype = torch.complex64 if fake.dtype.is_complex else torch.float32
        numbers = torch.randn(shape, generator=generator, dtype=dtype, device=fake.device)
        _fill(made, numbers if signed else numbers.abs() + 0.1)
    elif fake.dtype is torch.bool:
        _fill(made, torch.rand(shape, generator=generator, device=fake.device) > 0.3)
    else:
        _fill(made, torch.randint(0, 2, shape, generator=generator, device=fake.device))
    return made.requires_grad_(fake.requires_grad)


def _fill(tensor: Tensor, numbers: Tensor) -> None:
    """Write ``numbers``; of dimensions that are expanded (stride 0) only the one element that there is."""
    one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    tensor[one].copy_(numbers[one])


def _leaf(tensor: Tensor, wide: bool) -> Tensor:
    made = tensor.detach()
    if wide and made.is_floating_point():
        made = made.double()
    return made.requires_grad_(tensor.requires_grad)


def _leaves(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]
