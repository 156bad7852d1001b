"""One model under repair: every site tried, what is left verified and measured as a whole, and undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import fx, nn

from auditor.config import Config
from auditor.engine.rules import Rule
from auditor.fix.inputs import CapturedCall
from auditor.fix.options import Options
from auditor.fix_document import FixDocument, FixedSite, FixMemory, FixTiming, RatioInfo
from auditor.measuring import Ratio
from auditor.measuring.clocks import first_us
from auditor.patching.calls import Proposal
from auditor.patching.choose import ByMeasuring, Choice, as_plan
from auditor.patching.culprit import culprits
from auditor.patching.errors import named_leaves
from auditor.patching.live import Patched
from auditor.patching.patch_site import PatchSite
from auditor.patching.plan import Evidence, Plan, PlanSite
from auditor.patching.state import kept_state
from auditor.patching.step import Step, run_step
from auditor.patching.threeway import ThreeWay, measure_step
from auditor.patching.verify import Verification, verify
from auditor.selection import Selection

UNSEEN = "A graph could not be looked at"
"""How the sentence on a mistake of ours begins: nothing is known of the sites of that graph."""
Key = tuple[str, str, str, int]


def _quiet(_stage: str) -> None:
    return None


@dataclass
class _Told(ByMeasuring):
    """Says of each site that it is tried. ``of``: how many there are, as far as graphs were traced."""

    say: Callable[[str], None] = _quiet
    of: Callable[[], int] = lambda: 0

    def choose(self, site: PatchSite, nodes: Sequence[fx.Node]) -> tuple[Proposal | None, str]:
        number = len(self.outcomes) + 1
        self.say(f"{'trying' if self.timed else 'looking at'} sites: {number} of {max(self.of(), number)}")
        return super().choose(site, nodes)


@dataclass
class Repair:
    """One model, one captured step. What is found goes into ``document``."""

    call: CapturedCall
    rules: list[Rule]
    options: Options
    document: FixDocument
    say: Callable[[str], None] = _quiet
    """Told each stage."""
    _live: list[Patched] = field(default_factory=list)
    """What has to be undone."""

    @property
    def model(self) -> nn.Module:
        """The live model."""
        return self.call.module

    @property
    def step(self) -> Step:
        """The captured call."""
        return self.call.step

    def run(self) -> Plan:
        """Everything, in order. The model is as it was afterwards, whatever happens."""
        before = self._output()
        try:
            with kept_state(self.model):
                plan = self._repaired()
        finally:
            for patched in self._live:
                patched.undo()
        if not _equal(before, self._output()):
            self.document.notes.append(
                "After the undo the outputs are not bit-equal to those before: the model is not deterministic."
            )
        return plan

    def _repaired(self) -> Plan:
        patched, plan = self._try_sites()
        if not self.options.dry:
            if plan.kept:
                patched = self._verified(patched, plan)
            times = self._timed(patched) if plan.kept else self._timed_as_it_is(patched)
            patched, plan, times = self._bound_instead(patched, plan, times)
        calls = {} if self.options.dry else self._calls(patched)
        if not self.options.dry:
            applied = bool(plan.kept)
            self._note_times(times, self._first_call_us(patched, plan), applied=applied)
            if applied:
                self._judge(plan, patched, calls, times.timings.ratio("patched"))
        self._describe(patched, plan, calls)
        return plan

    def _output(self) -> list[Any]:
        """Without its graph: while that lives it shows the parameters' memory, and none of them can be moved."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            leaves = [leaf for _, leaf in named_leaves(run_step(self.model, self.step, backward=False))]
        return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def _try_sites(self) -> tuple[Patched, Plan]:
        choice = Choice(
            keep_all=self.options.keep_all, min_gain=self.options.min_gain, limit=self.options.limit,
            wanted=lambda rule: not self.options.select or rule in self.options.select,
        )  # fmt: skip
        chooser = _Told(choice, timed=not self.options.dry, say=self.say)
        keep = Selection(Config(suppress=self.options.suppress), self.rules).keep
        patched = self._patched(Patched(self.model, self.rules, chooser, keep=keep))
        chooser.of = lambda: sum(bool(site.proposals) for site in patched.sites)
        run_step(self.model, self.step)
        chooser.say = _quiet  # what verification traces anew is no stage
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        plan = Plan(
            run=self.options.run, model=type(self.model).__name__, torch=str(torch.__version__), device=device.type
        )
        return patched, as_plan(chooser.outcomes, patched.sites, plan)

    def _patched(self, patched: Patched) -> Patched:
        self._live.append(patched)
        return patched

    def _verified(self, patched: Patched, plan: Plan) -> Patched:
        """The model patched with what is right in it as a whole."""
        self.say("verifying the patched model")
        verdict = self._judged(patched)
        if not verdict.ok:
            self.say("verifying: looking for the sites that make the model wrong")
            patched.undo()
            found, rest, patched = culprits(self.model, self.rules, plan, self._judged)
            self._patched(patched)
            for site in found:
                site.state, site.reason = "failed", f"the model is wrong with it: {verdict.reason}"
            verdict = rest
        self.document.verified = verdict.ok
        self.document.verification = verdict.reason or f"on {', '.join(verdict.inputs)}"
        return patched

    def _judged(self, patched: Patched) -> Verification:
        return verify(self.model, patched, self.step)

    def _timed(self, patched: Patched) -> ThreeWay:
        self.say("measuring the step")
        return measure_step(self.model, patched, self.step, compile=self.options.compile, cap_s=self.options.cap_s)

    def _timed_as_it_is(self, patched: Patched) -> ThreeWay:
        """Without anything to apply: the traced model, unpatched, would only show what tracing costs."""
        with patched.disabled(), Patched.by_plan(self.model, self.rules, Plan()) as nothing:
            return self._timed(nothing)

    def _bound_instead(self, patched: Patched, plan: Plan, times: ThreeWay) -> tuple[Patched, Plan, ThreeWay]:
        """Where every kept site is a module of its own, binding their forwards spares the tracing of the whole."""
        leaves = {name for name, module in self.model.named_modules() if not list(module.children())}
        if not plan.kept or any(site.module not in leaves for site in plan.kept):
            return patched, plan, times
        patched.disable()
        own = _of_tier_1(plan)
        bound = self._patched(Patched.by_plan(self.model, self.rules, own))
        run_step(self.model, self.step)
        if bound.bound and all(m.sites and not m.reason for m in bound.bound) and self._judged(bound).ok:
            again = self._timed(bound)
            if again.timings.ratio("patched").ratio > times.timings.ratio("patched").ratio:
                return bound, own, again
        bound.undo()
        return patched, plan, times

    def _calls(self, patched: Patched) -> dict[Key, int]:
        """By site: how often its replacement runs in one step."""
        before = {id(site): site.calls for site in patched.sites}
        with patched.enabled():
            run_step(self.model, self.step)
        found: dict[Key, int] = {}
        for site in patched.sites:  # among them those of graphs that this step was traced into
            found[_key(site)] = found.get(_key(site), 0) + site.calls - before.get(id(site), 0)
        return found

    def _judge(self, plan: Plan, patched: Patched, calls: dict[Key, int], gain: Ratio) -> None:
        """Sites that were applied have to have been called, without a failure, and the step as a whole has to win."""
        failures = {_key(site): site.failure for site in patched.sites if site.failure}
        for site in plan.kept:
            if site.key in failures:
                site.state, site.reason = "failed", failures[site.key]
            elif not calls.get(site.key):
                site.state, site.reason = "failed", "it was applied and never called"
        if not self.document.verified:
            for site in plan.kept:
                site.state, site.reason = "failed", f"the model is wrong: {self.document.verification}"
        if not self.options.keep_all and gain.low <= 1.0 + self.options.min_gain:
            for site in plan.kept:
                site.state = "rolled_back"
                site.reason = f"the step does not win: {gain.ratio:.3f} × ({gain.low:.3f} to {gain.high:.3f})"

    def _first_call_us(self, patched: Patched, plan: Plan) -> float:
        """Wall time of the first call of a model that the plan is applied to: traced and rewritten, kernels at hand."""
        if not plan.kept:
            return 0.0
        with patched.disabled(), Patched.by_plan(self.model, self.rules, plan):
            device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
            return first_us(lambda: run_step(self.model, self.step), device)

    def _note_times(self, times: ThreeWay, first_us: float, *, applied: bool) -> None:
        """Where nothing was applied there are no figures of a patched step."""
        document, median = self.document, times.timings.median_us
        peaks, compiled = times.peak_bytes, "compile" in median
        document.timing = FixTiming(
            eager_us=median["eager"], patched_us=median["patched"] if applied else 0.0,
            compile_us=median.get("compile", 0.0),
            patched_vs_eager=_ratio(times.timings.ratio("patched")) if applied else RatioInfo(),
            compile_vs_eager=_ratio(times.timings.ratio("compile")) if compiled else RatioInfo(),
            patched_first_us=first_us, compile_first_us=times.compile_first_us,
            rounds=times.timings.rounds,
        )  # fmt: skip
        document.memory = FixMemory(
            eager_bytes=peaks["eager"], patched_bytes=peaks["patched"] if applied else 0,
            compile_bytes=peaks.get("compile", 0),
        )  # fmt: skip
        document.notes += times.notes
        document.measured_us = median["eager"] - median["patched"] if applied else 0.0

    def _describe(self, patched: Patched, plan: Plan, calls: dict[Key, int]) -> None:
        kernels = {_key(site): site.kernels for site in patched.sites}
        self.document.sites = [_fixed_site(site, calls, kernels, dry=self.options.dry) for site in plan.sites]
        self.document.compiles = patched.compiles
        self.document.graph_breaks = list(patched.graph_breaks)
        self.document.notes += patched.problems
        self.document.limit = self.options.limit
        self.document.failure = next((p for p in patched.problems if p.startswith(UNSEEN)), "")


def _equal(before: list[Any], after: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True) if isinstance(a, torch.Tensor))


def _of_tier_1(plan: Plan) -> Plan:
    """The plan with every kept site bound to its module."""
    sites = [msgspec.structs.replace(s, tier=1) if s.state == "kept" else s for s in plan.sites]
    return msgspec.structs.replace(plan, sites=sites)


def _key(site: PatchSite) -> Key:
    return (site.key.rule, site.key.module, site.key.fingerprint, site.key.ordinal)


def _ratio(ratio: Ratio) -> RatioInfo:
    return RatioInfo(ratio=ratio.ratio, low=ratio.low, high=ratio.high)


def _fixed_site(site: PlanSite, calls: dict[Key, int], kernels: dict[Key, int], *, dry: bool) -> FixedSite:
    evidence = Evidence() if dry else site.evidence
    gain = evidence.gain
    return FixedSite(
        rule=site.rule, module=site.module, tier=site.tier if site.replacement else 0, replacement=site.replacement,
        provider=site.provider, options=dict(site.options), state=site.state, reason=site.reason,
        calls=calls.get(site.key, 0), kernels=kernels.get(site.key, 0), error=evidence.error,
        eager_error=evidence.eager_error, before_us=evidence.before_us, after_us=evidence.after_us,
        gain=RatioInfo(ratio=gain.ratio, low=gain.low, high=gain.high) if gain else RatioInfo(),
    )  # fmt: skip
