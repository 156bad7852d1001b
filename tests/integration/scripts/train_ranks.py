"""One rank of trainings under torchrun, each given as ``<trainer>[,word…]``; what they end with, as JSON in a file.

``grows``: rank 1 sees another length in every batch, so that its steps are never alike. ``leader``: only rank 0 has the
callback; ``without``: none has. ``over``: the budget ends the training.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

RANK = int(os.environ["RANK"])
WORDS: dict[str, str] = {}


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(Norm(), torch.nn.Linear(32, 32), Norm())
        self.calls = 0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if RANK == 1 and "grows" in WORDS:
            x, y = (each.repeat(self.calls, 1) for each in (x, y))
        return {"loss": torch.nn.functional.mse_loss(self.net(x), y)}


def callbacks(kind: Any) -> list[Any]:
    if "without" in WORDS or (RANK and "leader" in WORDS):
        return []
    over = {"budget": {"max_kernels": 1}, "over_budget": "raise"} if "over" in WORDS else {}
    return [kind(step=int(WORDS.get("step", 2)), steps=1, name=WORDS["name"], **over)]


def with_transformers(data: list[Any]) -> tuple[torch.nn.Module, list[Any]]:
    from transformers import Trainer, TrainingArguments

    from auditor.integrations.transformers import FusionAuditCallback

    model, made = Model(), callbacks(FusionAuditCallback)
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            folder, use_cpu=True, per_device_train_batch_size=4, max_steps=int(WORDS.get("steps", 10)), report_to=[],
            save_strategy="no", disable_tqdm=True, ddp_backend="gloo", ddp_find_unused_parameters=False,
            dataloader_drop_last=True,
        )  # fmt: skip
        Trainer(model=model, args=training, train_dataset=data, callbacks=made).train()
    return model, made


def with_lightning(data: list[Any]) -> tuple[torch.nn.Module, list[Any]]:
    import lightning.pytorch as pl

    from auditor.integrations.lightning import FusionAuditCallback

    class Lit(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    module, made = Lit(), callbacks(FusionAuditCallback)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=int(WORDS.get("steps", 10)), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=made,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module.model, made


def with_profiler(_: list[Any]) -> tuple[torch.nn.Module, list[Any]]:
    import auditor

    model, handler = Model(), auditor.trace_handler(name=WORDS["name"])
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    profiler = torch.profiler
    with profiler.profile(
        schedule=profiler.schedule(wait=1, warmup=1, active=1, repeat=1), on_trace_ready=handler, record_shapes=True,
        with_stack=True,
    ) as profile:  # fmt: skip
        for _step in range(5):
            parallel(torch.rand(4, 32), torch.rand(4, 32))["loss"].backward()
            profile.step()
    return model, [type("Made", (), {"audit": audit}) for audit in handler.audits]


def trained(words: str) -> dict[str, Any]:
    """What one training left."""
    trainer, *rest = words.split(",")
    WORDS.clear()
    WORDS.update(word.partition("=")[::2] for word in rest)
    WORDS["name"] = words
    torch.manual_seed(0)
    data = [{"x": x, "y": y} for x, y in zip(torch.rand(320, 32), torch.rand(320, 32), strict=True)]
    with_ = {"transformers": with_transformers, "lightning": with_lightning, "profiler": with_profiler}[trainer]
    model, made = with_(data)
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    audit = made[0].audit if made else None
    ranks = len(audit.document.ranks) if audit else 0
    return {"weights": hashlib.sha256(weights).hexdigest(), "audit": audit is not None, "ranks": ranks}


if __name__ == "__main__":
    Path(f"rank-{RANK}.json").write_text(json.dumps([trained(words) for words in sys.argv[1:]]))
    torch.distributed.destroy_process_group()
