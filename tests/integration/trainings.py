"""What the tests of callbacks have in common."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from auditor.collect.recorder import Recorder
from auditor.document import Document

SCRIPTS = Path(__file__).parent / "scripts"
_ENGINE = torch.autograd._engine_run_backward
_ZERO_GRAD = torch.optim.Optimizer.zero_grad


def script(name: str) -> Any:
    """A module of ``scripts/``, not run as a script."""
    spec = spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    sys.modules[name] = loaded  # as an import would
    spec.loader.exec_module(loaded)
    return loaded


def counts(document: Document) -> dict[str, int]:
    """All that is the same in every run of one program."""
    totals = document.totals
    return {
        "kernels": totals.kernels, "memory_bound": totals.memory_bound_kernels, "unfused": totals.unfused_kernels,
        "avoidable": totals.avoidable_kernels, "already_fused": totals.already_fused_kernels, "bytes": totals.bytes,
        "peak_bytes": totals.peak_bytes, "findings": len(document.findings),
    }  # fmt: skip


def assert_nothing_is_left() -> None:
    """No hook, no patch and no profiler of ours, so that the training runs at full speed."""
    assert Recorder.active is None
    assert not nn_module._global_forward_pre_hooks
    assert not nn_module._global_forward_hooks
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    assert torch.autograd._engine_run_backward is _ENGINE
    assert torch.optim.Optimizer.zero_grad is _ZERO_GRAD
    assert not torch.autograd.profiler._is_profiler_enabled


def assert_equal_weights(a: torch.nn.Module, b: torch.nn.Module) -> None:
    """Bit for bit."""
    one, other = a.state_dict(), b.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
