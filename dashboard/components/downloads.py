"""What a fix leaves for the user: the plan that production applies, and the suggested change of the source."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import dash
from dash import Input, Output, State, callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.document import Finding
from auditor.errors import AuditError
from auditor.fix_document import FixDocument
from auditor.patching.plan import HEADER, Plan, load_plan
from auditor.store.registering import registered
from dashboard.components.measured import fix_for
from dashboard.components.source import why_not_here
from dashboard.components.states import failed
from dashboard.context import current
from dashboard.data.findings import find_finding
from dashboard.data.rules import all_rules
from dashboard.data.stored import document as document_of
from dashboard.data.stored import stored

_APPLY = "Of this finding's sites; apply it with patch -p1 in the folder that the script was run in"
_LARGEST = 8_000_000
"""Bytes of a plan."""


def plan_text(fix: FixDocument) -> str:
    """The plan of a fix, as it was written on this machine.

    The path stands in a document, which may come from elsewhere: nothing but a plan of that very run is given out, and
    nothing of any other file, not even why it is no plan.

    Raises:
        AuditError: there is none to give.
    """
    import msgspec

    plan = _plan(Path(fix.plan)) if fix.plan else None
    if plan is None or plan.run != fix.run:
        raise AuditError(
            f"The plan of run {fix.run} is not on this machine any more; make it again with: fusion-audit fix {fix.run}"
        )
    return HEADER + msgspec.yaml.encode(plan, order=None).decode()


def _plan(path: Path) -> Plan | None:
    try:
        seen = path.stat()
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > _LARGEST:
            return None
        return load_plan(path)
    except (OSError, ValueError, AuditError):
        return None


def diff_text(run: str, finding: Finding) -> str:
    """Suggested changes of the user's own source at the sites of ``finding``, as a unified diff.

    It applies with ``patch -p1`` in the folder that the script was run in.

    Raises:
        AuditError: the files are not this machine's, or there is nothing to suggest.
    """
    from auditor.fix.suggest import suggestions

    refused = why_not_here(run)
    if refused:
        raise AuditError(f"No source is read here: {refused}")
    registration = registered(current().store, run)
    folder = Path(registration.folder) if registration else None
    found = suggestions(stored(run), all_rules(), current().config, folder=folder, only=finding.fingerprint)
    if not found.changes:
        why = " ".join(found.notes) or "No finding lies in source files of yours."
        raise AuditError(f"There is nothing to suggest a change of. {why}")
    return "".join(change.diff for change in found.changes)


def download_buttons() -> html.Div:
    """The plan and the diff as files, or why there is none."""
    return html.Div(
        [
            html.Div(
                [
                    html.Button("Download the plan", id="finding-plan", type="button"),
                    html.Button("Download the source diff", id="finding-diff", type="button", title=_APPLY),
                    dcc.Download(id="finding-file"),
                ],
                className="row",
            ),
            html.Div(id="finding-file-problem"),
        ]
    )


@callback(
    Output("finding-file", "data"),
    Output("finding-file-problem", "children"),
    Input("finding-plan", "n_clicks"),
    Input("finding-diff", "n_clicks"),
    State("finding-which", "data"),
    prevent_initial_call=True,
)
def _download(plan: int | None, diff: int | None, which: dict[str, str]) -> tuple[Any, Any]:
    if not (plan or diff):
        raise PreventUpdate
    run = which["run"]
    try:
        finding = find_finding(document_of(run), which["fingerprint"])
        if dash.ctx.triggered_id == "finding-diff":
            return {"content": diff_text(run, finding), "filename": f"fusion-{run}.diff", "type": "text/x-diff"}, None
        fix = fix_for(run, finding)
        if fix is None:
            return dash.no_update, failed("No fix of this run is stored yet.", "No plan yet")
        return {"content": plan_text(fix), "filename": f"fusion-plan-{run}.yaml", "type": "application/yaml"}, None
    except AuditError as error:
        return dash.no_update, failed(str(error), "Nothing to download")
