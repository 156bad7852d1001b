"""The whole story in a browser, with the real service, worker and compiler: a run, its finding, the fix, the gate."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from browsed import Seen, Site
from playwright.sync_api import Browser, expect
from served import serving

SCRIPT = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(512)
        self.out = nn.Linear(512, 8)

    def forward(self, x):
        return self.out(self.norm(x))


torch.manual_seed(0)
model = Model()
with torch.no_grad():
    for _ in range(40):
        model(torch.randn(2048, 512))
"""
MINUTES_MS = 8 * 60_000


@pytest.mark.slow
def test_from_a_run_to_the_gate(chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "norms.py").write_text(SCRIPT)
    (tmp_path / "pyproject.toml").write_text("[tool.fusion-audit]\nmax_unfused_kernels = 0\n")
    place = str(tmp_path / "store")
    code = "import sys; from auditor.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "run", "--steps", "3", "--db", place, "norms.py"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300, capture_output=True)

    with serving(place, cwd=tmp_path) as served:
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
        page = context.new_page()
        page.set_default_timeout(60_000)
        seen = Seen(page, served.url)

        page.goto(f"{served.url}/login?token={served.token}")
        page.get_by_role("link", name="Gate").click()
        expect(page.locator(".callout")).to_contain_text("Over budget: 1 of 1 limit broken.")
        page.get_by_role("link", name="unfused-rms-norm").click()
        expect(page.locator("#finding-measured")).to_contain_text("Not measured yet.")
        page.locator("#finding-apply").click()
        status = page.locator("#finding-job .job-panel [role=status]")
        expect(status).to_contain_text(re.compile("running|done"), timeout=60_000)
        expect(status).to_contain_text(re.compile("done|failed"), timeout=MINUTES_MS)
        expect(status).to_contain_text("Applied and measured.")

        measured = page.locator("#finding-measured")
        expect(measured).to_contain_text(re.compile(r"kept|rolled back"))
        expect(measured).to_contain_text("torch.compile")
        if measured.get_by_role("link", name="Gate").count():
            with page.expect_download() as downloaded:
                page.locator("#finding-plan").click()
            assert "schema: fusion-plan/1" in Path(downloaded.value.path()).read_text()
            measured.get_by_role("link", name="Gate").click()
            expect(page.locator(".callout")).to_contain_text("Within budget: 6 limits kept.")
        assert seen.wrong == []
        context.close()


def test_a_browser_without_the_token_only_looks(chromium: Browser, site: Site, tmp_path: Path) -> None:
    with serving(str(Path(site.store.location.file or "").parent), "--no-worker", cwd=tmp_path) as served:
        context = chromium.new_context(viewport={"width": 390, "height": 800})
        page = context.new_page()
        page.set_default_timeout(60_000)
        seen = Seen(page, served.url)

        page.goto(f"{served.url}/run/{site.run}/finding/{site.finding}")

        expect(page.locator("#finding-apply")).to_be_disabled()
        expect(page.locator(".session")).to_have_text("Read only")
        assert seen.wrong == []
        context.close()
