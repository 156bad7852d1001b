"""A training with the Trainer of Transformers: gradients accumulated over two batches, evaluations in between."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def trained(callbacks: list[Any], folder: Path, *, model: Any = None, resume: Any = None, **arguments: Any) -> Any:
    """The trained model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, attention_dropout=0.1,
    )  # fmt: skip
    model = model or LlamaForCausalLM(config)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (160, 16))]
    settings = {
        "output_dir": str(folder), "use_cpu": True, "per_device_train_batch_size": 4, "max_steps": 16, "report_to": [],
        "gradient_accumulation_steps": 2, "save_strategy": "no", "logging_steps": 4, "disable_tqdm": True,
        "eval_strategy": "steps", "eval_steps": 3, "seed": 1,
    }  # fmt: skip
    training = TrainingArguments(**{**settings, **arguments})
    trainer = Trainer(model=model, args=training, train_dataset=data, eval_dataset=data[:8], callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return model


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        trained([], Path(scratch), bf16="--bf16" in sys.argv)
