"""A callback for Lightning, imported as ``lightning.pytorch``.

::

    from lightning.pytorch import Trainer
    from auditor.integrations.lightning import FusionAuditCallback

    Trainer(callbacks=[FusionAuditCallback(step=10)])

A training with the package ``pytorch_lightning`` takes the callback of ``auditor.integrations.pytorch_lightning``.
"""

from __future__ import annotations

from auditor.integrations.lightning_hooks import FusionAuditHooks

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "lightning":
        raise
    raise ModuleNotFoundError(
        "auditor.integrations.lightning needs lightning: pip install fusion-auditor[lightning]",
        name="lightning",
    ) from None

__all__ = ["FusionAuditCallback"]


class FusionAuditCallback(FusionAuditHooks, Callback):
    """Audits one optimizer step of ``Trainer.fit``; see :class:`~auditor.integrations.training.StepAudit`."""
