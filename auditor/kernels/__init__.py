"""What a kernel does, by its name alone: its family, the library it is from, and what it fuses.

Names come from traces, so they are untrusted text of any length; only their beginning is read. The knowledge is a
table of rows (:mod:`auditor.kernels.tables`), of which the first that fits decides; names that a compiler composed are
decoded (:mod:`auditor.kernels.inductor`). What no row fits is ``other``.
"""

from __future__ import annotations

from auditor.kernels.classify import classify
from auditor.kernels.family import COMPUTE_BOUND, FAMILIES, Family, family_of_op
from auditor.kernels.row import Known

__all__ = ["COMPUTE_BOUND", "FAMILIES", "Family", "Known", "classify", "family_of_op"]
