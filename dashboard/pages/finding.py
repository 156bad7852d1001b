"""One finding: what it is, why it saves what it saves, why it is legal, and what applying it measured."""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, Input, Output, State, callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.document import Document, Finding
from auditor.errors import AuditError
from auditor.report import facts
from auditor.report.format import count, duration, percent, ratio, safe, share
from dashboard.components import badges, links
from dashboard.components.applying import apply_section
from dashboard.components.downloads import download_buttons
from dashboard.components.facts import Tile, fact_list, tiles
from dashboard.components.filters import choice
from dashboard.components.measured import fix_for, measured
from dashboard.components.page import run_page, section
from dashboard.components.replacement import replacement_view
from dashboard.components.rule_docs import rule_docs
from dashboard.components.savings import savings
from dashboard.components.site_view import site_views
from dashboard.components.source import source_view
from dashboard.components.states import failed, guarded, loading, unexpected
from dashboard.data.findings import find_finding
from dashboard.data.rules import find_rule
from dashboard.data.severity import rule_settings
from dashboard.data.stored import document as document_of

dash.register_page(__name__, path_template="/run/<run_id>/finding/<fingerprint>", title="Finding · Fusion Auditor")

_OFFERED = 200
"""Sites that can be chosen."""
_IN_TILES = {"kernels", "memory", "device", "step"}


@guarded
def layout(run_id: str = "latest", fingerprint: str = "", site: str = "0", **_: str) -> html.Div:
    """The page of the finding with this fingerprint."""
    document = document_of(run_id)
    finding = find_finding(document, fingerprint)
    return run_page(
        document,
        "",
        dcc.Store(id="finding-which", data={"run": document.run.id, "fingerprint": finding.fingerprint}),
        _what(finding),
        tiles(_tiles(document, finding)),
        fact_list(fact for fact in facts.particulars(document, finding) if fact.label not in _IN_TILES),
        apply_section(document, finding),
        section("Measured", _measured_part(), download_buttons()),
        section(
            "Before and after",
            _sites(finding, site),
            loading(html.Div(id="finding-drawn"), "finding-drawn-wait", "the drawing"),
            html.Div(id="finding-site-facts"),
        ),
        savings(document, finding),
        section("Source", *source_view(document, finding.source)),
        section("What takes its place", *replacement_view(finding.replacement, finding.instead)),
        _docs(finding),
        html.Div(id="finding-address", hidden=True),
        title=finding.name,
    )  # fmt: skip


def _measured_part() -> Any:
    return loading(html.Div(id="finding-measured"), "finding-wait", "what was measured")


def _what(finding: Finding) -> html.P:
    severity = badges.severity(rule_settings().severity(finding.rule, finding.severity))
    doubt = badges.provenance(finding.provenance)
    parts: list[Any] = [severity, " ", _rule_link(finding), " · ", facts.owner(finding), " ", doubt]
    return html.P(parts)


def _tiles(document: Document, finding: Finding) -> list[Tile]:
    saving, step = finding.saving, document.totals.step_us
    timed = finding.device_us > 0
    less = ratio(finding.bytes_now - finding.bytes_fused, finding.bytes_now)
    return [
        Tile(
            "Kernel time saved",
            duration(saving.likely_us) if timed else facts.kernel_time(finding),
            f"likely, of {duration(finding.device_us)}; ideal {duration(saving.ideal_us)}" if timed else "",
        ),
        Tile(
            "Step time saved",
            share(saving.step_us, step) if step else "not known",
            f"likely {duration(saving.step_us)} of {duration(step)}, launches with it" if step else "",
        ),
        Tile(
            "Kernels",
            facts.kernels(finding),
            f"{count(facts.avoidable(finding))} avoidable, at {count(finding.sites)} sites",
        ),
        Tile(
            "Memory traffic",
            facts.traffic(finding),
            f"{percent(less)} less" if less and less > 0 else "",
        ),
    ]


def _rule_link(finding: Finding) -> dcc.Link:
    return dcc.Link(safe(finding.rule), href=links.rule(finding.rule))


def _sites(finding: Finding, site: str) -> Any:
    """Which site is drawn; the field is there even where there is one, for callbacks."""
    places = finding.places[:_OFFERED]
    index = int(site) if site.isdecimal() and int(site) < len(places) else 0
    labels = [f"{i + 1}. {safe(p.module) or facts.place(p.source) or 'site'}" for i, p in enumerate(places)]
    field = choice("finding-site", "Site", labels, labels[index] if labels else "", everything="", css="broad")
    return html.Div(field, className="filters", hidden=len(places) < 2)


def _docs(finding: Finding) -> html.Section:
    rule = find_rule(finding.rule)
    if rule is None:
        return section(
            "The rule", html.P([html.Code(safe(finding.rule)), " is not among the rules that are loaded here."])
        )
    return section(f"The rule: {safe(rule.id)}", *rule_docs(rule))


# --- what is drawn and measured --------------------------------------------------------------------


@callback(
    Output("finding-drawn", "children"),
    Output("finding-site-facts", "children"),
    Input("finding-site", "value"),
    State("finding-which", "data"),
)
def _draw(chosen: str | None, which: dict[str, str] | None) -> tuple[Any, Any]:
    if not which:
        raise PreventUpdate
    number = (chosen or "").partition(".")[0]
    index = int(number) - 1 if number.isdecimal() else 0
    try:
        return site_views(which["run"], find_finding(document_of(which["run"]), which["fingerprint"]), index)
    except AuditError as error:
        return failed(str(error)), None
    except Exception:
        return failed(unexpected("drawing")), None


@callback(
    Output("finding-measured", "children"),
    Input("shell-scheme", "data"),
    Input({"type": "job-state", "job": ALL}, "data"),
    State("finding-which", "data"),
)
def _measured(scheme: str | None, _: list[str], which: dict[str, str] | None) -> Any:
    if not scheme or not which:
        raise PreventUpdate
    try:
        finding = find_finding(document_of(which["run"]), which["fingerprint"])
        return measured(finding, fix_for(which["run"], finding), scheme)
    except AuditError as error:
        return failed(str(error))
    except Exception:
        return failed(unexpected("measurement"))
