"""A callback for the ``Trainer`` of Hugging Face Transformers.

::

    from transformers import Trainer
    from auditor.integrations.transformers import FusionAuditCallback

    Trainer(..., callbacks=[FusionAuditCallback(step=10)])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.errors import AuditError
from auditor.integrations.settings import Budget, OverBudget
from auditor.integrations.training import StepAudit

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import CallbackHandler
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "transformers":
        raise
    raise ModuleNotFoundError(
        "auditor.integrations.transformers needs transformers: pip install fusion-auditor[transformers]",
        name="transformers",
    ) from None

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.gate_document import GateDocument

__all__ = ["FusionAuditCallback"]


class FusionAuditCallback(TrainerCallback):
    """Audits one optimizer step of ``Trainer.train`` and takes nothing afterwards.

    A step is what the trainer calls one: forward and backward of each batch that it accumulates, clipping, optimizer.
    The arguments are those of :class:`~auditor.integrations.training.StepAudit`.
    """

    def __init__(
        self, *, step: int = 10, steps: int = 5, name: str = "", db: str | Path | None = None, budget: Budget = None,
        over_budget: OverBudget = "warn", log: Any = True,
    ) -> None:  # fmt: skip
        self._steps = StepAudit(
            step=step, steps=steps, name=name, db=db, budget=budget, over_budget=over_budget, log=log
        )  # fmt: skip

    @property
    def audit(self) -> Audit | None:
        """The audit, once there is one."""
        return self._steps.audit

    @property
    def verdict(self) -> GateDocument | None:
        """What the gate says of it, where a budget was given."""
        return self._steps.verdict

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._steps.training_begins()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._steps.step_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._steps.step_ends(partial(_loggers, args, state, _callbacks()), state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._steps.step_is_lost(ended=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._steps.training_ends(partial(_loggers, args, state, _callbacks()), state.global_step)


def _callbacks() -> list[Any]:
    """The trainer's other callbacks. It gives them to nobody, but it is who calls."""
    frame = sys._getframe(1)
    for _ in range(4):
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler):
            return list(handler.callbacks)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return []


def _loggers(args: Any, state: Any, callbacks: list[Any]) -> Sequence[Callable[[Audit], None]]:
    """Those of ``report_to`` that hold audits; of TensorBoard the writer that its callback has made."""
    wanted = [name for name in args.report_to if name in ("wandb", "mlflow", "tensorboard")]
    return [partial(_write, name, callbacks, state.global_step) for name in wanted]


def _write(name: str, callbacks: list[Any], step: int, audit: Audit) -> None:
    from auditor.tracking import log

    if name != "tensorboard":
        log(audit, name, step=step)
        return
    writers = [writer for each in callbacks if (writer := getattr(each, "tb_writer", None)) is not None]
    if not writers:
        raise AuditError("the trainer has no writer of TensorBoard; give the callback one: log=SummaryWriter(…)")
    for writer in writers:
        log(audit, writer, step=step)
