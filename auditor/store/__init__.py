"""Stored audits: one row per run in a database, its bulk tables as Parquet files.

::

    with Store.open() as store:
        run_id = store.save(document, tables)
        store.load("latest").document

A run is listed if and only if all of it is on disk: the files come first, the row last.
"""

from __future__ import annotations

from auditor.store.failures import Missing, Unavailable
from auditor.store.listing import RunFilter, RunSummary
from auditor.store.store import Store, StoredRun

__all__ = ["Missing", "RunFilter", "RunSummary", "Store", "StoredRun", "Unavailable"]
