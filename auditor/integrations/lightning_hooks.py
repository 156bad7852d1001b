"""What Lightning calls, whichever of its two packages it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.integrations.settings import Budget, OverBudget
from auditor.integrations.training import StepAudit

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.gate_document import GateDocument


class FusionAuditHooks:
    """Audits one optimizer step of ``Trainer.fit`` and takes nothing afterwards.

    A step is from the start of its first batch to the end of its last one, accumulated batches included, and whatever
    callbacks compute in it. The arguments are those of :class:`~auditor.integrations.training.StepAudit`.
    """

    def __init__(
        self, *, step: int = 10, steps: int = 5, name: str = "", db: str | Path | None = None, budget: Budget = None,
        over_budget: OverBudget = "warn", log: Any = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self._steps = StepAudit(
            step=step, steps=steps, name=name, db=db, budget=budget, over_budget=over_budget, log=log
        )  # fmt: skip
        self._optimizer_steps = 0

    @property
    def audit(self) -> Audit | None:
        """The audit, once there is one."""
        return self._steps.audit

    @property
    def verdict(self) -> GateDocument | None:
        """What the gate says of it, where a budget was given."""
        return self._steps.verdict

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._steps.training_begins()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._optimizer_steps = trainer.global_step
        self._steps.step_begins()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int  # noqa: ARG002
    ) -> None:  # fmt: skip
        if trainer.global_step != self._optimizer_steps:  # else more batches are accumulated
            self._steps.step_ends(partial(_loggers, trainer), trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._steps.step_is_lost(ended=True)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._steps.step_is_lost(ended=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._steps.training_ends(partial(_loggers, trainer), trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._steps.training_failed()


def _loggers(trainer: Any) -> Sequence[Callable[[Audit], None]]:
    return [partial(_write, logger, trainer.global_step) for logger in trainer.loggers]


def _write(logger: Any, step: int, audit: Audit) -> None:
    """Whole audits to the trackers that are known, metrics to any other logger."""
    from auditor.tracking import log
    from auditor.tracking.metrics import metrics

    kind = {each.__name__ for each in type(logger).__mro__}
    if "MLFlowLogger" in kind:
        log(audit, (logger.experiment, logger.run_id), step=step)
    elif kind & {"TensorBoardLogger", "WandbLogger"}:
        log(audit, logger.experiment, step=step)
    else:
        logger.log_metrics(metrics(audit), step=step)
