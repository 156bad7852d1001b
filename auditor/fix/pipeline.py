"""Inside the script's process: capture a step, patch its model, verify, measure, and write down what came of it."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from auditor.collect.recorder import StopScript
from auditor.engine.rules import Rule
from auditor.fix.document import FixDocument, FixedSite, FixMemory, FixTiming, RatioInfo
from auditor.fix.inputs import CapturedCall, CapturedStep, InputCapture
from auditor.measure import Ratio
from auditor.patch.choose import ByMeasuring, Choice, as_plan
from auditor.patch.culprit import culprits
from auditor.patch.live import Patched
from auditor.patch.plan import Plan, PlanSite
from auditor.patch.rewrite import PatchSite
from auditor.patch.stepping import kept_state, run_step
from auditor.patch.threeway import ThreeWay, measure_step
from auditor.patch.verify import Verification, verify

RESULT = "fix.json"
MANY_GRAPHS = 8
"""Graphs of one model from which on its user should know: Dynamo's own limit for one function."""
PLAN = "plan.yaml"


class Options(msgspec.Struct, kw_only=True):
    """What the user asked for."""

    rules: list[str] = []
    """Folders of further rules."""
    select: list[str] = []
    """Ids of the rules whose sites may be patched."""
    limit: int | None = None
    min_gain: float = 0.0
    keep_all: bool = False
    compile: bool = True
    """Time ``torch.compile`` of the whole model as well."""
    dry: bool = False
    """Look for sites and proposals, and measure nothing."""
    run: str = ""
    cap_s: float = 20.0
    """Seconds for timing the step."""


def attach(folder: Path, options: dict[str, Any]) -> InputCapture:
    """The watcher of a script that is run to be fixed: it ends the script once ``folder`` holds the result."""
    given = msgspec.convert(options, Options)

    def then(step: CapturedStep) -> None:
        document, plan = fixed(step, given)
        if plan is not None and plan.kept:
            plan.save(folder / PLAN)
        write(folder, document)
        raise StopScript(0)

    return InputCapture(then)


def write(folder: Path, document: FixDocument) -> None:
    """Write the result, whole or not at all."""
    scratch = folder / f".{RESULT}.{os.getpid()}"
    scratch.write_bytes(msgspec.json.encode(document))
    os.replace(scratch, folder / RESULT)


def fixed(step: CapturedStep, options: Options) -> tuple[FixDocument, Plan | None]:
    """Patch, verify and measure the model of ``step``: of several modules the one that takes longest."""
    from auditor.engine.rules import load_rules

    rules = load_rules([Path(folder) for folder in options.rules])
    call = _longest(step)
    document = FixDocument(run=options.run, model=type(call.module).__name__, kind=step.kind)
    others = sorted({c.name for c in step.calls if c.module is not call.module})
    if others:
        document.notes.append(f"Only {call.name} was patched; the step calls {', '.join(others)} too.")
    fix = Fix(call, rules, options, document)
    try:
        plan = fix.run()
    except Exception as error:  # ours, or of the model on inputs that it took before: told, with the model as it was
        document.notes.append(f"The fix ended early: {type(error).__name__}: {error}")
        document.notes.append(traceback.format_exc(limit=-3))
        return document, None
    finally:
        fix.undo()
    return document, plan


def _longest(step: CapturedStep) -> CapturedCall:
    """By the number of elements of the parameters: the text encoder and the denoiser of one pipeline."""
    return max(step.calls, key=lambda call: sum(p.numel() for p in call.module.parameters()))


@dataclass
class Fix:
    """One model under repair."""

    call: CapturedCall
    rules: list[Rule]
    options: Options
    document: FixDocument
    patched: Patched | None = None
    plan: Plan | None = None
    calls: dict[tuple[str, str, str, int], int] | None = None

    def run(self) -> Plan:
        """Everything, in order. The model is unpatched afterwards."""
        before = run_step(self.call.module, self.call.step, backward=False)
        self.plan = self._try_sites()
        self._verify()
        self._measure()
        self._judge()
        self.undo()
        self._check_undone(before)
        self._describe()
        return self.plan

    def undo(self) -> None:
        """The model as it was."""
        if self.patched is not None:
            self.patched.undo()

    def _try_sites(self) -> Plan:
        choice = Choice(
            keep_all=self.options.keep_all, min_gain=self.options.min_gain, limit=self.options.limit,
            wanted=lambda rule: not self.options.select or rule in self.options.select,
        )  # fmt: skip
        chooser = ByMeasuring(choice, timed=not self.options.dry)
        self.patched = Patched(self.call.module, self.rules, chooser)
        run_step(self.call.module, self.call.step)
        for frame in self.patched.rewriter.frames:
            if frame.failure:
                self.document.notes.append(f"A graph could not be looked at: {frame.failure}")
        plan = Plan(
            run=self.options.run, model=type(self.call.module).__name__, torch=str(torch.__version__),
            device=_device_of(self.call.module),
        )  # fmt: skip
        return as_plan(chooser.outcomes, self.patched.sites, plan)

    def _verify(self) -> None:
        assert self.patched is not None and self.plan is not None
        if not self.plan.kept or self.options.dry:
            return
        verdict = verify(self.call.module, self.patched, self.call.step)
        if not verdict.ok:
            verdict = self._without_culprits(verdict)
        self.document.verified = verdict.ok
        self.document.verification = verdict.reason or f"on {', '.join(verdict.inputs)}"

    def _without_culprits(self, first: Verification) -> Verification:
        """Find the sites that make the model wrong, and go on without them."""
        assert self.plan is not None
        self.undo()
        found, verdict, patched = culprits(
            self.call.module, self.rules, self.plan, lambda p: verify(self.call.module, p, self.call.step)
        )
        for site in found:
            site.state, site.reason = "failed", f"the model is wrong with it: {first.reason}"
        self.patched = patched
        return verdict

    def _measure(self) -> None:
        assert self.patched is not None and self.plan is not None
        if self.options.dry:
            return
        times = measure_step(
            self.call.module, self.patched, self.call.step, compile=self.options.compile, cap_s=self.options.cap_s
        )
        self._note_times(times)

    def _note_times(self, times: ThreeWay) -> None:
        document, median = self.document, times.timings.median_us
        document.timing = FixTiming(
            eager_us=median["eager"], patched_us=median["patched"], compile_us=median.get("compile", 0.0),
            patched_vs_eager=_ratio(times.timings.ratio("patched")),
            compile_vs_eager=_ratio(times.timings.ratio("compile")) if "compile" in median else RatioInfo(),
            patched_first_us=times.timings.first_us["patched"],
            compile_first_us=times.timings.first_us.get("compile", 0.0), rounds=times.timings.rounds,
        )  # fmt: skip
        document.memory = FixMemory(
            eager_bytes=times.peak_bytes["eager"], patched_bytes=times.peak_bytes["patched"],
            compile_bytes=times.peak_bytes.get("compile", 0),
        )  # fmt: skip
        document.notes += times.notes
        document.measured_us = median["eager"] - median["patched"]

    def _judge(self) -> None:
        """Sites that were applied have to have been called, and the step as a whole has to win."""
        assert self.patched is not None and self.plan is not None
        calls = self._calls()
        for site in self.plan.kept:
            if not calls.get(site.key):
                site.state, site.reason = "failed", "it was applied and never called"
        ratio = self.document.timing.patched_vs_eager
        if self.plan.kept and not self.options.keep_all and not self.options.dry:
            if ratio.low <= 1.0 + self.options.min_gain:
                reason = f"the step does not win: {ratio.ratio:.3f} × ({ratio.low:.3f} to {ratio.high:.3f})"
                for site in self.plan.kept:
                    site.state, site.reason = "rolled_back", reason

    def _calls(self) -> dict[tuple[str, str, str, int], int]:
        """By site: how often its replacement runs in one step."""
        assert self.patched is not None
        if self.calls is None:
            self.calls = self._counted(self.patched)
        return self.calls

    def _counted(self, patched: Patched) -> dict[tuple[str, str, str, int], int]:
        before = [site.calls for site in patched.sites]
        with kept_state(self.call.module), patched.enabled():
            run_step(self.call.module, self.call.step)
        found: dict[tuple[str, str, str, int], int] = {}
        for site, calls in zip(patched.sites, before, strict=False):
            found[_key(site)] = found.get(_key(site), 0) + site.calls - calls
        return found

    def _check_undone(self, before: Any) -> None:
        from auditor.patch.errors import named_leaves

        after = run_step(self.call.module, self.call.step, backward=False)
        pairs = zip(named_leaves(before), named_leaves(after), strict=True)
        same = all(
            torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else True
            for (_, a), (_, b) in pairs
        )
        if not same:
            self.document.notes.append(
                "After the undo the model's outputs are not bit-equal to those before: it is not deterministic."
            )

    def _describe(self) -> None:
        assert self.patched is not None and self.plan is not None
        calls = self._calls()
        kernels = {_key(site): site.kernels for site in self.patched.sites}
        self.document.sites = [_fixed_site(site, calls, kernels) for site in self.plan.sites]
        self.document.compiles = self.patched.compiles
        self.document.graph_breaks = list(self.patched.graph_breaks)
        if self.patched.compiles > MANY_GRAPHS:
            self.document.notes.append(
                f"The model was traced {self.patched.compiles} times: something in it changes from call to call, and "
                "each change compiles anew."
            )


def _key(site: PatchSite) -> tuple[str, str, str, int]:
    return (site.key.rule, site.key.module, site.key.fingerprint, site.key.ordinal)


def _ratio(ratio: Ratio) -> RatioInfo:
    return RatioInfo(ratio=ratio.ratio, low=ratio.low, high=ratio.high)


def _fixed_site(
    site: PlanSite, calls: dict[tuple[str, str, str, int], int], kernels: dict[tuple[str, str, str, int], int]
) -> FixedSite:
    evidence = site.evidence
    gain = evidence.gain
    return FixedSite(
        rule=site.rule, module=site.module, tier=site.tier if site.replacement else 0, replacement=site.replacement,
        provider=site.provider, options=dict(site.options), state=site.state, reason=site.reason,
        calls=calls.get(site.key, 0), kernels=kernels.get(site.key, 0), error=evidence.error,
        eager_error=evidence.eager_error, before_us=evidence.before_us, after_us=evidence.after_us,
        gain=RatioInfo(ratio=gain.ratio, low=gain.low, high=gain.high) if gain else RatioInfo(),
    )  # fmt: skip


def _device_of(model: torch.nn.Module) -> str:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return device.type
