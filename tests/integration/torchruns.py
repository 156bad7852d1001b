"""Starting ranks in tests."""

from __future__ import annotations

import os
import subprocess
import sys


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    """Two ranks on this machine, on a port that the system gives."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
