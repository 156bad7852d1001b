"""What a finding is, apart from where it is."""

from __future__ import annotations

import hashlib

from auditor.document import Finding
from auditor.graph.ops import portable_name


def kind_of(finding: Finding) -> str:
    """What a finding is, wherever it is and runs: a few digits of its rule, phase, ops and variant."""
    variant = str(sorted(finding.variant.items()))
    text = "|".join((finding.rule, finding.phase, *map(portable_name, finding.ops), variant))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
