"""Files that a page offers and that are too large for a callback: streamed, never whole in memory."""

from __future__ import annotations

import re

from flask import Blueprint, Response, request

from auditor.errors import AuditError
from auditor.store.failures import status_of
from dashboard.data.kernel_csv import as_csv, groups_csv
from dashboard.data.kernel_query import from_text
from dashboard.data.kernel_table import kernel_table

downloads = Blueprint("downloads", __name__)


@downloads.get("/run/<run>/kernels.csv")
def kernels_csv(run: str) -> Response:
    """The kernels of a run that pass the filters of the address, in its order; their groups where it names some."""
    by = request.args.get("group", "")
    try:
        table = kernel_table(run)
        query = from_text(request.args.get("filter", ""), request.args.get("group_sort" if by else "sort", ""))
        pieces = groups_csv(table, query, by) if by else as_csv(table, query)
    except AuditError as error:
        return Response(f"{error}\n", status_of(error), content_type="text/plain; charset=utf-8")
    name = re.sub(r"[^\w.-]", "_", f"{table.run}-by-{by}" if by else table.run, flags=re.ASCII)
    headers = {"Content-Disposition": f'attachment; filename="kernels-{name}.csv"', "X-Content-Type-Options": "nosniff"}
    return Response(pieces, 200, headers, content_type="text/csv; charset=utf-8")
