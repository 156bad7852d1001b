"""The ops around one site as a small op graph: enough to draw it, without loading the graph of the whole step.

A step may hold a million ops, and a site a dozen. What a drawing needs beside the site's own ops is who made its inputs
and who reads its results, through any number of views.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from auditor.document import Site
from auditor.graph.model import Kernel, OpGraph
from auditor.graph.tables import SCHEMAS, from_tables
from auditor.store import StoredRun

if TYPE_CHECKING:
    import pyarrow

_ID = re.compile(r'"v":(\d+)')
_VIEWS = 6
"""Views in a row that are followed from a site's values to who reads them."""
_READERS = 2000
"""Ops that are kept around a site: a value that thousands read is drawn by its first readers."""


def site_graph(run: StoredRun, site: Site) -> tuple[OpGraph, Site] | None:
    """The graph around ``site``, and the site with the indices of its ops in it; None where the run has no graph."""
    if not {"ops", "values", "kernels"} <= set(run.table_names):
        return None
    ops, values = run.table("ops", ["args", "outputs"]), run.table("values", ["id", "base"])
    if not site.ops or not all(0 <= i < len(ops) for i in site.ops):
        return None
    owners = run.table("kernels", ["op"])
    rows = _Neighbours(ops, values, owners).around(site.ops)
    return _cut(run, values, owners, rows, site)


def unlinked_kernels(run: StoredRun, site: Site) -> list[Kernel]:
    """The kernels of a site that no op is known for, in order; none where the run has no table of kernels."""
    if "kernels" not in run.table_names:
        return []
    loose = np.flatnonzero(np.asarray(run.table("kernels", ["op"]).column("op").is_null()))
    held = _taken(run, "kernels", [int(loose[i]) for i in site.unlinked if 0 <= i < len(loose)])
    return [Kernel(k["name"], k["start_us"], k["dur_us"], k["stream"], k["device"]) for k in held.to_pylist()]


class _Neighbours:
    """Looks up producers and readers in the tables, by column."""

    def __init__(self, ops: pyarrow.Table, values: pyarrow.Table, kernels: pyarrow.Table) -> None:
        self.args = ops.column("args").combine_chunks()
        made, by = _flat(ops, "outputs")
        order = np.argsort(made, kind="stable")
        self.made, self.made_by = made[order], by[order]
        ids = _numbers(values.column("id"))
        order = np.argsort(ids, kind="stable")
        self.ids, bases = ids[order], values.column("base").combine_chunks()
        self.based = ~np.asarray(bases.is_null())[order]
        self.bases = np.asarray(bases.fill_null(-1))[order]
        owners = kernels.column("op").combine_chunks().drop_null()
        self.launching = set(np.unique(np.asarray(owners)).tolist()) if len(owners) < 50_000 else np.asarray(owners)

    def around(self, site: Iterable[int]) -> list[int]:
        """Rows of the site's ops, of who made what they read, and of who reads what they make."""
        inside = sorted(set(site))
        rows = set(inside)
        for row in inside:
            rows |= self._makers(row, _VIEWS)
        rows |= self._readers(inside)
        return sorted(rows)

    def reads(self, row: int) -> set[int]:
        return {int(i) for i in _ID.findall(self.args[row].as_py() or "")}

    def _makers(self, row: int, views: int) -> set[int]:
        found: set[int] = set()
        for value in self.reads(row):
            maker = self._maker(value)
            if maker is None or maker >= row:
                continue
            found.add(maker)
            if views and self._is_view(maker):
                found |= self._makers(maker, views - 1)
        return found

    def _maker(self, value: int) -> int | None:
        at = int(np.searchsorted(self.made, value))
        return int(self.made_by[at]) if at < len(self.made) and self.made[at] == value else None

    def outputs(self, row: int) -> list[int]:
        return [int(v) for v in self.made[self.made_by == row]]

    def _is_view(self, row: int) -> bool:
        outputs = self.outputs(row)
        return bool(outputs) and not self._launches(row) and all(self.has_base(v) for v in outputs)

    def _launches(self, row: int) -> bool:
        if isinstance(self.launching, set):
            return row in self.launching
        return bool(np.any(self.launching == row))

    def has_base(self, value: int) -> bool:
        at = int(np.searchsorted(self.ids, value))
        return bool(at < len(self.ids) and self.ids[at] == value and self.based[at])

    def base(self, value: int) -> int | None:
        at = int(np.searchsorted(self.ids, value))
        return int(self.bases[at]) if self.has_base(value) else None

    def _readers(self, inside: list[int]) -> set[int]:
        """Ops after the site's first that read a result of it, or a view of one."""
        found: set[int] = set()
        made = {v for row in inside for v in self.outputs(row)}
        for _ in range(_VIEWS):
            new = {row for row in self._reading(made, inside[0]) if row not in found and row not in inside}
            found |= set(sorted(new)[:_READERS])
            made = {v for row in new if self._is_view(row) for v in self.outputs(row)}
            if not made or len(found) >= _READERS:
                break
        return found

    def _reading(self, values: set[int], start: int) -> list[int]:
        import pyarrow.compute as pc

        if not values:
            return []
        named = "|".join(map(str, sorted(values)))
        hits = pc.match_substring_regex(self.args.slice(start), f'"v":({named})}}')
        return [start + int(i) for i in np.flatnonzero(np.asarray(hits.fill_null(False)))]


def _cut(
    run: StoredRun, values: pyarrow.Table, owners: pyarrow.Table, rows: list[int], site: Site
) -> tuple[OpGraph, Site]:
    """The tables with ``rows`` and what they name, as a graph."""
    import pyarrow as pa

    new = {row: index for index, row in enumerate(rows)}
    part = _taken(run, "ops", rows)
    kept = _taken(run, "values", _places(values.column("id"), _closed(_named(part), values)))
    own = _taken(run, "kernels", _places(owners.column("op"), rows))
    moved = pa.array([new[row] for row in own.column("op").to_pylist()], pa.int64())
    own = own.set_column(own.column_names.index("op"), own.schema.field("op"), moved)
    graph = from_tables({"ops": part, "values": kept, "kernels": own})
    return graph, msgspec.structs.replace(site, ops=[new[row] for row in site.ops])


def _places(column: pyarrow.ChunkedArray, wanted: Iterable[int]) -> list[int]:
    """The rows whose value in ``column`` is among ``wanted``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    hits = pc.is_in(column, pa.array(sorted(wanted), pa.int64()))
    return [int(i) for i in np.flatnonzero(np.asarray(hits.combine_chunks().fill_null(False)))]


def _taken(run: StoredRun, name: str, rows: list[int]) -> pyarrow.Table:
    """Some rows of a table, read a column at a time: a whole table of a million rows is never in memory for them."""
    import pyarrow as pa

    wanted = pa.array(rows, pa.int64())
    parts = [run.table(name, [column]).take(wanted) for column in SCHEMAS[name].names]
    columns = {part.column_names[0]: part.column(0) for part in parts}
    return pa.table(columns).replace_schema_metadata(parts[0].schema.metadata)


def _named(ops: pyarrow.Table) -> set[int]:
    found = {int(i) for args in ops.column("args").to_pylist() for i in _ID.findall(args or "")}
    for column in ("outputs", "mutates"):
        found.update(v for row in ops.column(column).to_pylist() for v in row)
    return found


def _closed(ids: set[int], values: pyarrow.Table) -> set[int]:
    """``ids`` with the values that they are views of."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted, new = set(ids), set(ids)
    while new:
        rows = values.select(["id", "base"]).filter(pc.is_in(values.column("id"), pa.array(sorted(new), pa.int64())))
        new = {b for b in rows.column("base").to_pylist() if b is not None} - wanted
        wanted |= new
    return wanted


def _flat(table: pyarrow.Table, column: str) -> tuple[Any, Any]:
    """The items of a column of lists, and the row of each."""
    import pyarrow.compute as pc

    lists = table.column(column).combine_chunks()
    return _numbers(pc.list_flatten(lists)), _numbers(pc.list_parent_indices(lists))


def _numbers(column: Any) -> Any:
    return np.asarray(column.combine_chunks() if hasattr(column, "combine_chunks") else column).astype(np.int64)
