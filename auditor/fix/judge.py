"""What the two audits say of a fix: what was predicted for its sites, and what may be gained at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from auditor.document import Document, Site
from auditor.fix_document import FixDocument, FixedSite, Prediction, PredictionError
from auditor.report.format import ratio

Place = tuple[str, str]
"""Rule and module."""


def judged(fix: FixDocument, before: Document, after: Document | None) -> None:
    """Fill in what needs the audits ``before`` and ``after`` the fix."""
    fix.before = before.totals
    fix.amdahl_cap = before.totals.saving.amdahl_cap
    if after is not None:
        fix.after = after.totals
        fix.notes += [note for note in after.run.notes if note not in fix.notes and _tells(note)]
    found = pairs(before, fix.sites)
    for site, place in found:
        site.predicted_share = ratio(place.saving.likely_us, place.device_us) or 0.0
    fix.predictions = predictions(found)
    fix.prediction_error = prediction_error(fix.sites)
    fix.predicted_us = sum(place.saving.step_us for site, place in found if site.state == "kept")


def pairs(before: Document, sites: Sequence[FixedSite]) -> list[tuple[FixedSite, Site]]:
    """Sites that were timed with the places of the audit that they are: of one rule in one module, in order."""
    places: dict[Place, list[Site]] = defaultdict(list)
    for finding in before.findings:
        if finding.phase != "backward":  # sites are found in forward; their times have the backward in them
            for place in finding.places:
                places[finding.rule, place.module].append(place)
    found = []
    for site in sites:
        left = places[site.rule, site.module]
        if left and _timed(site):
            found.append((site, left.pop(0)))
    return found


def predictions(found: Iterable[tuple[FixedSite, Site]]) -> list[Prediction]:
    """By rule: the kernel time that the audit expected to save, and what was measured site by site."""
    by_rule: dict[str, list[tuple[FixedSite, Site]]] = defaultdict(list)
    for site, place in found:
        by_rule[site.rule].append((site, place))
    return [_prediction(rule, by_rule[rule]) for rule in sorted(by_rule)]


def _prediction(rule: str, found: list[tuple[FixedSite, Site]]) -> Prediction:
    predicted_us = sum(place.saving.likely_us for _, place in found)
    before_us, after_us = sum(site.before_us for site, _ in found), sum(site.after_us for site, _ in found)
    return Prediction(
        rule=rule, sites=len(found), predicted_us=predicted_us, measured_us=before_us - after_us, before_us=before_us,
        after_us=after_us, after_predicted_us=sum(_after_us(site) for site, _ in found),
        predicted_share=ratio(predicted_us, sum(place.device_us for _, place in found)) or 0.0,
        measured_share=ratio(before_us - after_us, before_us) or 0.0,
    )  # fmt: skip


def prediction_error(sites: Iterable[FixedSite]) -> PredictionError:
    """Over all sites that were predicted and measured: how far the predicted time after is from the measured one."""
    errors = [
        abs(_after_us(site) - site.after_us) / site.after_us
        for site in sites
        if site.predicted_share is not None and _timed(site)
    ]
    if not errors:
        return PredictionError()
    return PredictionError(sites=len(errors), median=median(errors), worst=max(errors))


def _after_us(site: FixedSite) -> float:
    """What was predicted, at the pace of the measurement."""
    return site.before_us * (1 - (site.predicted_share or 0.0))


def _timed(site: FixedSite) -> bool:
    return site.before_us > 0 and site.after_us > 0


def _tells(note: str) -> bool:
    """Whether a note of the audit after the fix is about the plan."""
    return note.startswith(("Patched by a plan", "The plan was not applied", "Not applied", "Error: applied"))
