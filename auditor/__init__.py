"""Fusion Auditor: the kernels of a PyTorch model that should be one kernel, and what that costs.

::

    import auditor

    with auditor.record() as rec:  # runs of the model in here are recorded
        model(x)
    print(rec.audit())

    audit = auditor.load("trace.json.gz", execution_trace="trace.et.json.gz")
    audit.findings, audit.to_pandas()

    with auditor.patch(model, "fusion-plan.yaml"):  # the replacements of a plan, undone afterwards
        model(x)
    print(auditor.measure(model, x, "fusion-plan.yaml"))

Every name is imported on first use, so that ``import auditor`` and ``fusion-audit --help`` cost no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auditor.api import load as load
    from auditor.audit import Audit as Audit
    from auditor.collect.mark import step as step
    from auditor.errors import AuditError as AuditError
    from auditor.errors import ScriptFailed as ScriptFailed
    from auditor.patching.api import measure as measure
    from auditor.patching.api import patch as patch
    from auditor.ranks.api import join_ranks as join_ranks
    from auditor.session import record as record

__version__ = "0.1.0"

_HOME = {
    "Audit": "auditor.audit",
    "AuditError": "auditor.errors",
    "ScriptFailed": "auditor.errors",
    "join_ranks": "auditor.ranks.api",
    "load": "auditor.api",
    "measure": "auditor.patching.api",
    "patch": "auditor.patching.api",
    "record": "auditor.session",
    "step": "auditor.collect.mark",
}
"""Public name → module that defines it."""

__all__ = [
    "Audit",
    "AuditError",
    "ScriptFailed",
    "__version__",
    "join_ranks",
    "load",
    "measure",
    "patch",
    "record",
    "step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'auditor' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
