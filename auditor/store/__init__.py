"""Stored audits: one row per run in a database, its bulk tables as Parquet files.

::

    with Store.open() as store:
        run_id = store.save(document, tables)
        store.load("latest").document

A run is listed if and only if all of it is on disk: the files come first, the row last.
"""

from __future__ import annotations

from auditor.store.store import RunSummary, Store, StoredRun

__all__ = ["RunSummary", "Store", "StoredRun"]
