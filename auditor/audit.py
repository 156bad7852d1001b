"""An audit: the document, the op graph that it speaks of, and ways to read both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from auditor.config import Config
from auditor.devices.describe import Device
from auditor.document import Document, Finding, Overhead, Run
from auditor.engine.assemble import assemble
from auditor.engine.claims import claim
from auditor.engine.fused import leaves_fused_alone
from auditor.engine.per_step import per_step
from auditor.engine.rules import Rule
from auditor.graph.garbage import collection_paused
from auditor.graph.model import OpGraph
from auditor.selection import Selection

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow


class Audit:
    """What an audit found. ``document`` is the plain data, ``graph`` the ops that its sites index.

    ``others``: of a job of several ranks, document and op tables of each rank but the one that the audit shows.
    """

    def __init__(
        self, document: Document, graph: OpGraph,
        others: Mapping[int, tuple[Document, dict[str, pyarrow.Table]]] | None = None,
    ) -> None:  # fmt: skip
        self.document = document
        self.graph = graph
        self.others = dict(others or {})

    @property
    def findings(self) -> list[Finding]:
        """Findings, the largest likely saving first."""
        return self.document.findings

    @property
    def kernels(self) -> int:
        """Kernels in all, transfers left out; like every count here of one step, of a trace over the whole file."""
        return self.document.totals.kernels

    @property
    def unfused_kernels(self) -> int:
        """Kernels in findings: those that should be part of another one."""
        return self.document.totals.unfused_kernels

    @property
    def avoidable_kernels(self) -> int:
        """Kernels that fusing every finding would do away with."""
        return self.document.totals.avoidable_kernels

    @property
    def already_fused_kernels(self) -> int:
        """Kernels that are fused ones."""
        return self.document.totals.already_fused_kernels

    @property
    def memory_bound_kernels(self) -> int:
        """Kernels whose time is that of their memory traffic."""
        return self.document.totals.memory_bound_kernels

    @property
    def bytes(self) -> int:
        """Bytes that all kernels read and write."""
        return self.document.totals.bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes alive at once, at most: tensors of the graph, without an allocator's own."""
        return self.document.totals.peak_bytes

    def tables(self) -> dict[str, pyarrow.Table]:
        """The op graph as the store keeps it, and those of the other ranks."""
        from auditor.graph.tables import to_tables
        from auditor.store.rank_tables import with_ranks

        return with_ranks(to_tables(self.graph), self.others)

    def to_pandas(self) -> pd.DataFrame:
        """One row for each finding; times in microseconds, sizes in bytes."""
        import pandas as pd

        columns = (
            "rule", "name", "family", "severity", "module_class", "phase", "dtype", "sites", "kernels", "kernels_after",
            "device_us", "bytes_now", "bytes_fused", "replacement", "provenance", "fingerprint",
        )  # fmt: skip
        rows = []
        for finding in self.findings:
            row = {column: getattr(finding, column) for column in columns}
            row |= {f"saving_{k}": getattr(finding.saving, k) for k in ("ideal_us", "likely_us", "step_us")}
            source = finding.source
            rows.append(row | {"source": f"{source.file}:{source.line}" if source else ""})
        extra = ["saving_ideal_us", "saving_likely_us", "saving_step_us", "source"]
        return pd.DataFrame(rows, columns=[*columns, *extra])

    def __repr__(self) -> str:
        from auditor.report.headline import brief

        return f"<Audit of {brief(self.document)}>"

    def __str__(self) -> str:
        from auditor.report import render

        return render(self.document, self.graph, "text")

    def _repr_html_(self) -> str:
        from auditor.report import notebook

        return notebook(self.document)


@collection_paused()
def audit_graph(
    graph: OpGraph,
    *,
    rules: Sequence[Rule],
    device: Device,
    config: Config | None = None,
    run: Run | None = None,
    overhead: Overhead | None = None,
) -> Audit:
    """Match the chosen rules against ``graph`` and price what they find on ``device``."""
    config = config or Config()
    config.check_selectors([(rule.id, rule.name) for rule in rules])
    selection = Selection(config, rules)
    claims = claim(graph, selection.chosen, keep=selection.keep, possible=leaves_fused_alone)
    parts = assemble(graph, claims, rules, device, by_name=run is not None and run.source == "trace")
    for finding in parts.findings:
        finding.severity = config.severity_of(finding.rule, finding.name, finding.severity)
    document = Document(
        run=run or Run(),
        coverage=parts.coverage,
        overhead=overhead or Overhead(),
        totals=parts.totals,
        steps=per_step(graph, parts.findings, claims.traffic),
        findings=parts.findings,
        refused=parts.refused,
        suppressed=selection.report(),
        families=parts.census.families,
        live=parts.census.live,
        unplaced=parts.census.unplaced,
    )
    claims.dismantle()
    document.run.select, document.run.ignore = list(config.select), list(config.ignore)
    document.run.notes.extend(n for n in (*graph.coverage.notes, *parts.notes) if n not in document.run.notes)
    return Audit(document, graph)
