"""A callback for Lightning, imported as ``pytorch_lightning``.

::

    from pytorch_lightning import Trainer
    from auditor.integrations.pytorch_lightning import FusionAuditCallback

    Trainer(callbacks=[FusionAuditCallback(step=10)])

A training with the package ``lightning`` takes the callback of ``auditor.integrations.lightning``.
"""

from __future__ import annotations

from auditor.integrations.lightning_hooks import FusionAuditHooks

try:
    from pytorch_lightning.callbacks import Callback
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "pytorch_lightning":
        raise
    raise ModuleNotFoundError(
        "auditor.integrations.pytorch_lightning needs pytorch-lightning: pip install pytorch-lightning",
        name="pytorch_lightning",
    ) from None

__all__ = ["FusionAuditCallback"]


class FusionAuditCallback(FusionAuditHooks, Callback):
    """Audits one optimizer step of ``Trainer.fit``; see :class:`~auditor.integrations.training.StepAudit`."""
