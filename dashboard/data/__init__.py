"""Read models: what the pages and the API show, as columns and plain data, bounded in memory.

=================  ============================================================================================
runs               the stored runs as lines: filtered, sorted, paged, and as trends by model
stored             documents by run, kept while they fit
step               where a step's time goes, unknown kernels apart
kernel_table       every kernel of one run as columns
kernels            those columns filtered, sorted, paged, grouped; and as CSV
timeline           what of a run's kernels is to be drawn between two times
roofline           kernels of one name as a point: arithmetic intensity and achieved rate
compare            two runs: what is gone, new, slower, faster
cache              the memory that all of it shares
=================  ============================================================================================

Nothing in here imports Dash. Every function takes a reference to a run as the store understands it and may raise
:class:`auditor.AuditError` with one sentence.
"""
