"""The audit that a test gets: its counts can explain themselves when they are too many."""

from __future__ import annotations

from auditor.audit import Audit
from auditor.testing.count import Count


class TestedAudit(Audit):
    """What ``fusion_audit(model, inputs)`` gives."""

    __test__ = False  # the name begins as those of tests do

    def __init__(self, of: Audit, test: str) -> None:
        super().__init__(of.document, of.graph)
        self._test = test

    def _count(self, key: str) -> Count:
        return Count.of(getattr(self.document.totals, key), self, key, self._test)

    @property
    def kernels(self) -> Count:
        """Kernels in all, transfers left out."""
        return self._count("kernels")

    @property
    def unfused_kernels(self) -> Count:
        """Kernels in findings."""
        return self._count("unfused_kernels")

    @property
    def avoidable_kernels(self) -> Count:
        """Kernels that fusing every finding would do away with."""
        return self._count("avoidable_kernels")

    @property
    def already_fused_kernels(self) -> Count:
        """Kernels that are fused ones."""
        return self._count("already_fused_kernels")

    @property
    def memory_bound_kernels(self) -> Count:
        """Kernels whose time is that of their memory traffic."""
        return self._count("memory_bound_kernels")

    @property
    def bytes(self) -> Count:
        """Bytes that all kernels read and write."""
        return self._count("bytes")

    @property
    def peak_bytes(self) -> Count:
        """Bytes alive at once, at most."""
        return self._count("peak_bytes")
