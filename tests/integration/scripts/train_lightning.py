"""A training with Lightning: gradients accumulated over some batches, evaluations in between, dropout."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Norm(), torch.nn.Linear(32, 32), Norm(), torch.nn.Dropout(0.1))


def module(package: Any) -> Any:
    """A LightningModule of ``package``, which has two names."""

    class Model(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
            self.log("loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return Model()


def fit(
    package: Any, callbacks: list[Any], *, model: Any = None, ckpt_path: str | None = None, **arguments: Any
) -> Any:
    """The trained module, and the trainer."""
    torch.manual_seed(0)
    model = model or module(package)
    data = TensorDataset(torch.rand(160, 32), torch.rand(160, 32))
    settings = {
        "accelerator": "cpu", "max_epochs": 1, "accumulate_grad_batches": 2, "val_check_interval": 6, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = package.Trainer(callbacks=callbacks, **{**settings, **arguments})
    trainer.fit(model, DataLoader(data, batch_size=4), DataLoader(data, batch_size=80), ckpt_path=ckpt_path)
    return model, trainer


if __name__ == "__main__":
    import lightning.pytorch

    fit(lightning.pytorch, [], precision=sys.argv[1], accumulate_grad_batches=int(sys.argv[2]))
