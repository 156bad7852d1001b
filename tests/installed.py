"""Checks of an installed fusion-auditor, in an environment that holds it, what it declares to need, and nothing else.

``python installed.py`` from an empty folder, by the interpreter of that environment. ``.ci/run`` does so with the wheel
before it installs anything for development; the last line says how long ``import auditor`` takes.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib import metadata
from pathlib import Path

PREFIX = Path(sys.prefix).resolve()
COMMAND = PREFIX / "bin" / "fusion-audit"
WITHIN_S = 60.0
SCRIPT = """
import torch
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

model = Norm()
for _ in range(8):
    model(torch.rand(8, 64))
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="elsewhere-") as folder:
        os.chdir(folder)
        os.environ["FUSION_AUDIT_DIR"] = str(Path(folder) / "store")
        for check in (
            packages_are_installed,
            dependencies_fit,
            script_is_audited,
            rules_are_there,
            dashboard_is_served,
        ):
            check()
            print(f"{check.__name__.replace('_', ' ')}: yes", flush=True)
        print(f"import auditor: {import_s():.3f} s, without torch")


def packages_are_installed() -> None:
    """From this environment, and not from a checkout that lies around."""
    code = "import auditor, dashboard, fused_replacements as f; print(auditor.__file__, dashboard.__file__, f.__file__)"
    places = run(sys.executable, "-c", code).split()
    assert all(PREFIX in Path(place).resolve().parents for place in places), places
    assert {"fusion-audit", "fusion_audit"} == {
        entry.name for entry in metadata.distribution("fusion-auditor").entry_points
    }


def dependencies_fit() -> None:
    assert run(sys.executable, "-m", "pip", "check").strip() == "No broken requirements found."


def script_is_audited() -> None:
    """A script elsewhere, with the rules of the package, and held to a budget."""
    Path("model.py").write_text(SCRIPT)
    audit = json.loads(run(COMMAND, "run", "--stop", "--format", "json", "model.py"))
    assert [finding["rule"] for finding in audit["findings"]] == ["FUS201"], audit["findings"]
    Path("budget.yaml").write_text("max_unfused_kernels: 5\n")
    run(COMMAND, "gate", "--budget", "budget.yaml")


def rules_are_there() -> None:
    assert "FUS601" in run(COMMAND, "rules", "list")
    place = run(COMMAND, "rules", "show", "FUS201")
    assert str(PREFIX) in place, place


def dashboard_is_served() -> None:
    """Its API, a page, and every file that the page asks for."""
    service = subprocess.Popen([COMMAND, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        address = _address(service)
        assert json.loads(fetched(f"{address}/api/v1/health"))
        page = fetched(address).decode()
        assets = re.findall(r'(?:src|href)="(/assets/[^"]+)"', page)
        assert assets, page
        assert all(fetched(address + asset) for asset in assets)
    finally:
        service.terminate()
        service.wait(WITHIN_S)


def _address(service: subprocess.Popen[str]) -> str:
    assert service.stderr is not None
    said = ""
    for line in service.stderr:  # ends where the service does
        said += line
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError(f"the service did not start: {said}")


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
        body: bytes = answer.read()
    return body


def import_s() -> float:
    """Median of nine processes, less what a process needs without the import."""
    code = "import sys, auditor; sys.exit('torch' in sys.modules)"
    return statistics.median(_wall_s(code) - _wall_s("import sys") for _ in range(9))


def _wall_s(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10 * WITHIN_S)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


CHECKS = (packages_are_installed, dependencies_fit, script_is_audited, rules_are_there, dashboard_is_served)

if __name__ == "__main__":
    main()
