"""AG Grid with safe defaults: text is text, cells are drawn by functions of this project, nothing is evaluated.

Column definitions name a cell renderer of ``assets/dashAgGridComponentFunctions.js``; formatted text is made here in
Python, beside the number that a column sorts by.
"""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag

_THEME = {
    "function": (
        "themeQuartz.withParams({"
        "backgroundColor: 'var(--bg)', foregroundColor: 'var(--text)', headerBackgroundColor: 'var(--soft)',"
        "headerTextColor: 'var(--dim)', borderColor: 'var(--line)', rowHoverColor: 'var(--hover)',"
        "selectedRowBackgroundColor: 'var(--chosen)', accentColor: 'var(--link)', chromeBackgroundColor: 'var(--soft)',"
        "oddRowBackgroundColor: 'var(--bg)', fontFamily: 'inherit', fontSize: 13, headerFontSize: 12,"
        "spacing: 6, rowHeight: 34, headerHeight: 34, wrapperBorderRadius: 4, borderRadius: 3,"
        "browserColorScheme: 'inherit', checkboxUncheckedBorderColor: 'var(--dim)',"
        "checkboxCheckedBackgroundColor: 'var(--link)', checkboxCheckedShapeColor: 'var(--bg)'"
        "})"
    )
}
_COLUMN = {"sortable": True, "resizable": True, "suppressHeaderMenuButton": True, "filter": False}


def grid(
    ident: Any,
    columns: list[dict[str, Any]],
    rows: list[dict[str, Any]] | None = None,
    *,
    row_id: str = "id",
    options: dict[str, Any] | None = None,
    height: str = "",
    **properties: Any,
) -> dag.AgGrid:
    """A grid of ``rows``.

    Args:
        ident: of the component.
        columns: AG Grid's definitions; ``field``, ``headerName``, ``cellRenderer`` …
        rows: one dict each; None where a callback delivers them.
        row_id: the field that tells rows apart; its values hold letters and digits only.
        options: further ``dashGridOptions``.
        height: of the grid in CSS; as high as its rows where it is empty.
        properties: further ones of :class:`dash_ag_grid.AgGrid`.
    """
    settings = {
        "theme": _THEME,
        "animateRows": False,
        "ensureDomOrder": True,  # screen readers follow the order of the elements
        "suppressDragLeaveHidesColumns": True,
        "enableCellTextSelection": True,
        "suppressColumnVirtualisation": True,
        "localeText": {"noRowsToShow": "Nothing matches."},
        **({} if height else {"domLayout": "autoHeight"}),
        **(options or {}),
    }
    return dag.AgGrid(
        id=ident, columnDefs=columns, rowData=rows, defaultColDef=_COLUMN, getRowId=f"params.data.{row_id}",
        dashGridOptions=settings, style={"height": height or None, "width": "100%"}, **properties,
    )  # fmt: skip


def number(field: str, label: str, text: str, **more: Any) -> dict[str, Any]:
    """A column that sorts by the number in ``field`` and shows the text in the field ``text``."""
    return {
        "field": field, "headerName": label, "type": "rightAligned", "cellRenderer": "FusionText",
        "cellRendererParams": {"from": text}, "cellClass": ["num", "ag-right-aligned-cell"], **more,
    }  # fmt: skip


def link(field: str, label: str, href: str, text: str = "", **more: Any) -> dict[str, Any]:
    """A column whose text links to the address in the field ``href``, which starts with ``/``.

    ``text``: the field with what is shown of it, where that is less than all; the whole is then its title.
    """
    parameters = {"href": href, "from": text or field}
    return {
        "field": field, "headerName": label, "cellRenderer": "FusionLink", "cellRendererParams": parameters, **more,
    }  # fmt: skip
