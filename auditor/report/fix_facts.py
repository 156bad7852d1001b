"""What a report says of a fix, in words and in order, before any format dresses it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from auditor.fix_document import NOT_SELECTED, FixDocument, FixedSite, RatioInfo
from auditor.report.facts import Fact
from auditor.report.format import count, duration, percent, plural, ratio, safe, size, speedup

STATES = ("kept", "rolled_back", "refused", "failed")
UNITS = {"kept": "kept", "rolled_back": "rolled back", "refused": "refused", "failed": "failed"}
HEAD = ("rule", "module", "sites", "tier", "replacement", "provider", "calls", "error / eager's", "gain")
_PROVIDERS = {"triton": "library"}
"""Names that mislead: this library's own kernel is Triton on a GPU only, on a CPU it is C++."""
TIMING_HEAD = ("version", "step", "against eager (95 %)", "first call", "extra memory")


@dataclass(frozen=True)
class SiteGroup:
    """Sites that differ only in the numbers of their layers. Names and the reason are safe to show."""

    state: str
    rule: str
    where: str
    tier: int
    replacement: str
    provider: str
    reason: str
    sites: tuple[FixedSite, ...]
    dry: bool = False
    """Nothing was measured."""

    @property
    def cells(self) -> tuple[str, ...]:
        """One cell for each of :data:`HEAD`."""
        tried = bool(self.replacement)
        return (
            self.rule, self.where, count(len(self.sites)), str(self.tier) if self.tier else "–",
            self.replacement or "–", self.provider or "–",
            count(sum(site.calls for site in self.sites)) if tried and not self.dry else "–",
            self._errors(), interval(self._gain()),
        )  # fmt: skip

    def _errors(self) -> str:
        worst = max(self.sites, key=lambda site: site.error)
        if not worst.error and not worst.eager_error:
            return "–"
        return f"{worst.error:.1e} / {worst.eager_error:.1e}"

    def _gain(self) -> RatioInfo:
        """Of the group: the middle one's ratio, between the lowest and the highest end."""
        gains = sorted((s.gain for s in self.sites if s.gain.ratio), key=lambda gain: gain.ratio)
        if not gains:
            return RatioInfo()
        low, high = min(gain.low for gain in gains), max(gain.high for gain in gains)
        return RatioInfo(ratio=gains[len(gains) // 2].ratio, low=low, high=high)


def groups(sites: Iterable[FixedSite], state: str, *, dry: bool = False) -> list[SiteGroup]:
    """The sites in ``state``, those of numbered layers together, in the order of their first."""
    found: dict[tuple[str, str, int, str, str, str], list[FixedSite]] = {}
    for site in sites:
        if site.state == state:
            key = (site.rule, layerless(site.module), site.tier, site.replacement, site.provider, site.reason)
            found.setdefault(key, []).append(site)
    return [
        SiteGroup(
            state, safe(rule), safe(where) or "the model itself", tier, safe(replacement),
            _PROVIDERS.get(provider, safe(provider)), safe(reason), tuple(members), dry,
        )
        for (rule, where, tier, replacement, provider, reason), members in found.items()
    ]  # fmt: skip


def layerless(module: str) -> str:
    """``model.layers.3.mlp`` as ``model.layers.*.mlp``."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)


def interval(gain: RatioInfo) -> str:
    """``×1.25 (1.20 to 1.31)``, a dash where nothing was measured."""
    if not gain.ratio:
        return "–"
    return f"{speedup(gain.ratio)} ({gain.low:.2f} to {gain.high:.2f})"


def title(fix: FixDocument) -> str:
    """``Model (run 1m8mj1ak381b)``."""
    run = f" (run {safe(fix.run)})" if fix.run else ""
    return f"{safe(fix.model) or 'a model'}{run}"


def verdict(fix: FixDocument) -> str:
    """The result in one sentence."""
    kept = sum(site.state == "kept" for site in fix.sites)
    gain = fix.timing.patched_vs_eager
    if fix.dry:
        changed = f"changed: {', '.join(map(safe, fix.changed))}" if fix.changed else "nothing was changed"
        return f"{plural(kept, 'site')} would be tried, and nothing was measured; {changed}."
    if not kept:
        return nothing_kept(fix)
    if not gain.ratio:
        return f"{plural(kept, 'site')} kept."
    much = percent(abs(1 - 1 / gain.ratio))
    if gain.low > 1:
        return f"{plural(kept, 'site')} kept: the step takes {much} less time, {interval(gain)}."
    slower = "no less time" if gain.high >= 1 else f"{percent(1 / gain.ratio - 1)} more time"
    return f"{plural(kept, 'site')} kept, as asked; the step takes {slower}, {interval(gain)}."


def nothing_kept(fix: FixDocument) -> str:
    """Why nothing was kept: that is the model's own matter only where something was tried and did not win."""
    sites = _asked(fix)
    states = {site.state for site in sites}
    thrown_away = next((site.reason for site in sites if site.reason.startswith("the patched script failed")), "")
    if fix.failure or thrown_away:
        return f"Nothing was kept, which says nothing of the model. {_sentence(fix.failure or thrown_away)}"
    if not sites:
        return f"Nothing was kept: no site was found in the model as it runs. {cap(fix)}"
    if fix.limit == 0:
        return f"Nothing was kept, as the limit is 0 sites; {plural(len(sites), 'site')} found. {cap(fix)}"
    if "rolled_back" in states:
        return f"Not worth it here: nothing was kept of {plural(len(sites), 'site')}. {cap(fix)}"
    why = "what was tried is not right here" if "failed" in states else "no replacement can take the place of any"
    return f"Nothing was kept of {plural(len(sites), 'site')}: {why}, for the reasons above. {cap(fix)}"


def _sentence(text: str) -> str:
    words = safe(text).strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def cap(fix: FixDocument) -> str:
    """What could be gained at the very most."""
    if fix.amdahl_cap <= 1 or not math.isfinite(fix.amdahl_cap):
        return "The audit sees nothing to gain."
    at_most = percent(1 - 1 / fix.amdahl_cap)
    return (
        f"If every finding of the audit cost nothing at all, the step would be at most {speedup(fix.amdahl_cap)} as "
        f"fast ({at_most} less time)."
    )


def headline(fix: FixDocument) -> list[Fact]:
    """What was fixed and what it adds up to; lines that would say nothing are left out."""
    lines = [
        Fact("script", safe(shlex.join(fix.script)), literal=True),
        Fact("exit", f"the script ended with code {fix.exit_code}" if fix.exit_code else ""),
        Fact("step", safe(fix.kind)),
        Fact("sites", _states(fix)),
        Fact("verified", _verified(fix)),
        Fact("kernels", _kernels(fix)),
        Fact("saved", _saved(fix)),
        Fact("prediction", _prediction(fix)),
        Fact("Amdahl cap", _cap(fix)),
        Fact("compiles", _compiles(fix)),
        Fact("audit after", f"fusion-audit show {shlex.quote(safe(fix.after_run))}" if fix.after_run else ""),
    ]
    return [line for line in lines if line.value]


def _states(fix: FixDocument) -> str:
    names = {**UNITS, "kept": "to be tried"} if fix.dry else UNITS
    asked = _asked(fix)
    counts = [(sum(site.state == state for site in asked), names[state]) for state in STATES]
    counts.append((len(fix.sites) - len(asked), "not selected"))
    return " · ".join(f"{count(n)} {name}" for n, name in counts if n) or "none found"


def _asked(fix: FixDocument) -> list[FixedSite]:
    """Sites that the fix was asked to try."""
    return [site for site in fix.sites if site.reason != NOT_SELECTED]


def _verified(fix: FixDocument) -> str:
    if fix.dry or not fix.verification:
        return ""
    return f"yes, {safe(fix.verification)}" if fix.verified else f"NO: {safe(fix.verification)}"


def _kernels(fix: FixDocument) -> str:
    if fix.dry:
        return ""
    if not fix.after_run and not fix.after.kernels:
        return f"{count(fix.before.kernels)}, of which {count(fix.before.unfused_kernels)} unfused; no audit after"
    unfused = fewer(fix.before.unfused_kernels, fix.after.unfused_kernels)
    return f"{fewer(fix.before.kernels, fix.after.kernels)} · unfused {unfused}"


def fewer(before: int, after: int) -> str:
    """``64 → 2 (97 % fewer)``."""
    change = f"{count(before)} → {count(after)}"
    part = ratio(before - after, before)
    if not part:
        return change
    return f"{change} ({percent(part)} fewer)" if part > 0 else f"{change} ({percent(-part)} more)"


def _saved(fix: FixDocument) -> str:
    if not fix.timing.patched_us or not any(site.state == "kept" for site in fix.sites):
        return ""
    predicted = f"{duration(fix.predicted_us)} of a step predicted, " if fix.predicted_us else ""
    return f"{predicted}{duration(fix.measured_us)} measured"


def _prediction(fix: FixDocument) -> str:
    error = fix.prediction_error
    if not error.sites:
        return ""
    off = f"{percent(error.median)} in the median and {percent(error.worst)} at worst"
    return f"of a fused site's time off by {off}, {plural(error.sites, 'site')}"


def _cap(fix: FixDocument) -> str:
    known = not fix.dry and fix.amdahl_cap > 1 and math.isfinite(fix.amdahl_cap)
    return f"{speedup(fix.amdahl_cap)}, if every finding cost nothing" if known else ""


def _compiles(fix: FixDocument) -> str:
    if not fix.compiles:
        return ""
    breaks = f" · {plural(len(fix.graph_breaks), 'graph break')}: {'; '.join(map(safe, fix.graph_breaks))}"
    return f"{plural(fix.compiles, 'graph')} traced{breaks if fix.graph_breaks else ''}"


def timing_rows(fix: FixDocument) -> list[tuple[str, ...]]:
    """One row for each version that was timed, with a cell for each of :data:`TIMING_HEAD`."""
    timing, memory = fix.timing, fix.memory
    nothing = RatioInfo()
    rows = [
        ("eager", timing.eager_us, nothing, 0.0, memory.eager_bytes),
        ("patched", timing.patched_us, timing.patched_vs_eager, timing.patched_first_us, memory.patched_bytes),
        ("torch.compile", timing.compile_us, timing.compile_vs_eager, timing.compile_first_us, memory.compile_bytes),
    ]
    return [
        (name, duration(us), interval(gain), duration(first) if first else "–", size(extra))
        for name, us, gain, first, extra in rows
        if us
    ]


PREDICTION_HEAD = ("rule", "sites", "before", "after, predicted", "after, measured", "error")
PREDICTION_TITLE = "time of the fused sites, each measured alone: predicted by the audit and measured"


def prediction_rows(fix: FixDocument) -> list[tuple[str, ...]]:
    """Predicted and measured time of the fused sites by rule. Documents of before these figures have no rows."""
    rows: list[tuple[str, ...]] = []
    for one in fix.predictions:
        off = ratio(one.after_predicted_us - one.after_us, one.after_us)
        if off is not None:
            times = (one.before_us, one.after_predicted_us, one.after_us)
            rows.append((safe(one.rule), count(one.sites), *map(duration, times), f"{100 * off:+.0f} %"))
    return rows


def usage(fix: FixDocument) -> list[str]:
    """How to use the plan: commands and code, ready to paste."""
    if not fix.plan:
        return []
    script = shlex.join(map(safe, fix.script))
    return [
        f"fusion-audit run --patch {shlex.quote(safe(fix.plan))} {script}",
        f"auditor.patch(model, {safe(fix.plan)!r})  # after: import auditor",
    ]
