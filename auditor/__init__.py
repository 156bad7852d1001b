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

    with torch.profiler.profile(on_trace_ready=auditor.trace_handler()):  # in a training; see auditor.integrations
        model(x)
    auditor.log(audit, to="mlflow")

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
    from auditor.errors import OverBudget as OverBudget
    from auditor.errors import ScriptFailed as ScriptFailed
    from auditor.integrations.torch_profiler import trace_handler as trace_handler
    from auditor.patching.api import measure as measure
    from auditor.patching.api import patch as patch
    from auditor.ranks.api import join_ranks as join_ranks
    from auditor.session import record as record
    from auditor.tracking import log as log

__version__ = "0.1.0"

_HOME = {
    "Audit": "auditor.audit",
    "AuditError": "auditor.errors",
    "OverBudget": "auditor.errors",
    "ScriptFailed": "auditor.errors",
    "join_ranks": "auditor.ranks.api",
    "load": "auditor.api",
    "log": "auditor.tracking",
    "measure": "auditor.patching.api",
    "patch": "auditor.patching.api",
    "record": "auditor.session",
    "step": "auditor.collect.mark",
    "trace_handler": "auditor.integrations.torch_profiler",
}
"""Public name → module that defines it."""

__all__ = [
    "Audit",
    "AuditError",
    "OverBudget",
    "ScriptFailed",
    "__version__",
    "join_ranks",
    "load",
    "log",
    "measure",
    "patch",
    "record",
    "step",
    "trace_handler",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'auditor' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
