"""Audits in trackers of experiments: Weights & Biases, MLflow, TensorBoard. None of them is needed to import this."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from auditor.audit import Audit
from auditor.errors import AuditError

__all__ = ["log"]

_MODULES = {
    "wandb": "auditor.tracking.wandb",
    "mlflow": "auditor.tracking.mlflow",
    "torch.utils.tensorboard": "auditor.tracking.tensorboard",
    "tensorboardX": "auditor.tracking.tensorboard",
}
"""Package that a target's class comes from, and who writes to it."""
_NAMES = ("wandb", "mlflow")
_EXPECTED = (
    'log takes "wandb" or "mlflow" (the run that is active), a run of either, (MlflowClient, run id), '
    "a SummaryWriter of TensorBoard, or a list of these"
)


def log(audit: Audit, to: Any, *, step: int | None = None) -> None:
    """Write ``audit`` to a tracker: its metrics (``fusion_audit/unfused_kernels`` …), a table of findings, the report.

    TensorBoard keeps no files: it gets the report as Markdown among its texts.

    Args:
        audit: of a training, of :func:`auditor.record`, of a trace.
        to: ``"wandb"`` or ``"mlflow"`` (the run that is active), a run of either, ``(MlflowClient, run id)``,
            a ``SummaryWriter``, or a list of these.
        step: of the training, where the tracker's curves are drawn by step.

    Raises:
        AuditError: ``to`` is none of these, its library is missing, or no run of it is active.
    """
    for target in _targets(to):
        _writer(target)(audit, target, step)


def _targets(to: Any) -> Iterable[Any]:
    return to if isinstance(to, list) else [to]


def _writer(target: Any) -> Any:
    if isinstance(target, str):
        if target not in _NAMES:
            raise AuditError(f"{_EXPECTED}, not {target!r}")
        return _module(target).write
    kinds = type(target[0] if isinstance(target, tuple) and len(target) == 2 else target).__mro__
    for kind in kinds:
        for package in _MODULES:
            if f"{kind.__module__}.".startswith(f"{package}."):
                return _module(package).write
    raise AuditError(f"{_EXPECTED}, not {type(target).__name__}")


def _module(package: str) -> Any:
    try:
        return import_module(_MODULES[package])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise AuditError(f"{package} is not installed: pip install fusion-auditor[{package}]") from None
