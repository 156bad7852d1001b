"""The plugin as a project uses it: its tests run in a pytest of their own, alone and in two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from auditor.store import Store

pytest_plugins = "pytester"

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
import pytest
import torch

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(64))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.linear = Norm(), Norm(), torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.second(self.linear(self.first(x)))

X = torch.rand(4, 64)
"""
COUNTS = "12 unfused, 10 avoidable of 13 kernels"


def run_pytest(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """Pytest on the files of ``pytester``, with the plugin of this checkout, whether or not it is installed."""
    installed = any(each.value == "auditor.testing.plugin" for each in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "auditor.testing.plugin"]
    return pytester.runpytest_subprocess(*plugin, "-p", "no:dash", "-p", "no:cacheprovider", "--strict-markers", *words)


@pytest.fixture
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project without settings; the auditor is that of this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.delenv("CI", raising=False)  # pytest cuts no explanation there
    pytester.makeini("[pytest]\n")
    return pytester


def test_the_entry_point_is_the_plugin() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"fusion_audit": "auditor.testing.plugin"}
    assert not [each for each in project["dependencies"] if each.startswith("pytest")]


def test_the_plugin_costs_no_torch() -> None:
    code = "import sys, auditor.testing.plugin; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)

    heavy = {"torch", "numpy", "pandas", "pyarrow", "yaml", "sqlalchemy", "jsonschema"}
    assert heavy & set(done.stdout.split()) == set()


def test_nothing_is_different_where_nobody_asks(here: pytest.Pytester) -> None:
    here.makepyfile("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n    assert 1 <= 1\n")

    done = run_pytest(here)

    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*fusion audits*")


def test_assertions_markers_and_the_summary(here: pytest.Pytester) -> None:
    # GIVEN tests that hold, and tests that don't
    here.makepyfile(
        MODEL
        + """
def test_few(fusion_audit):
    audit = fusion_audit(Net(), X)
    assert audit.unfused_kernels == 12
    assert audit.avoidable_kernels == 10
    assert (audit.kernels, audit.document.totals.kernels) == (13, 13)

def test_many(fusion_audit):
    audit = fusion_audit(Net(), (X,), name="serving")
    assert audit.unfused_kernels <= 3

@pytest.mark.parametrize("how", ["same", "fresh", "named"])
def test_inputs(fusion_audit, how):
    inputs = {"same": [X], "fresh": [lambda: (torch.rand(4, 64),)], "named": [{"x": X}]}[how]
    assert fusion_audit(Net(), *inputs).kernels == 13

def test_training(fusion_audit):
    net = Net()
    audit = fusion_audit(net, X, train=True)
    assert audit.kernels > 26
    assert {finding.phase for finding in audit.findings} == {"forward", "backward"}
    assert net.linear.weight.grad is None

def test_of_a_function(fusion_audit):
    net, step = Net(), []
    def serve(x):
        step.append(1)
        with torch.no_grad():
            return net(x)
    assert fusion_audit(serve, X, name="a\\x1b[31m\\u202e").unfused_kernels == 12

@pytest.mark.fusion_budget(max_unfused_kernels=12, max_bytes="1 GB")
def test_kept(fusion_audit):
    fusion_audit(Net(), X)

@pytest.mark.fusion_budget(max_unfused_kernels=1)
class TestAll:
    def test_broken(self, fusion_audit):
        fusion_audit(Net(), X)

    @pytest.mark.fusion_budget(max_unfused_kernels=100, max_kernels=100)
    def test_the_closest_key_counts(self, fusion_audit):
        fusion_audit(Net(), X)

    @pytest.mark.xfail(strict=True)
    def test_known(self, fusion_audit):
        fusion_audit(Net(), X)

@pytest.mark.fusion_budget(budgets=[{"rule": "FUS201", "modules": "second", "max_unfused_kernels": 5}])
def test_parts(fusion_audit):
    fusion_audit(Net(), X)

@pytest.mark.fusion_budget(require=({"kernel": "aten.addmm"}, {"rule": "FUS201", "at_least": 1}))
def test_live(fusion_audit):
    fusion_audit(Net(), X)

@pytest.mark.fusion_budget(max_kernels=1)
def test_no_audit():
    pass
"""
    )

    # WHEN they run
    done = run_pytest(here)

    # THEN an assertion names the findings, their places and the next command, uncut
    done.assert_outcomes(passed=8, failed=5, xfailed=1)
    done.stdout.fnmatch_lines(
        [
            "E       assert 12 unfused kernels <= 3 in serving",
            "E         FUS201 unfused-rms-norm: 2 sites, 12 kernels, 10 avoidable, at test_*.py:10 in forward · first",
            "E         next: pytest --fusion-store test_*.py::test_many; fusion-audit show latest",
        ],
        consecutive=True,
    )
    # AND a budget says what broke it, by how much, where it stands
    done.stdout.fnmatch_lines(
        [
            "Net: unfused kernels: 12, 11 more than the 1 allowed",
            "finding: FUS201 unfused-rms-norm, 2 sites, 12 kernels, 10 avoidable",
            "at: test_*.py:10 in forward · first",
            "limit: max_unfused_kernels, test_*.py:*",
            "next: pytest --fusion-store test_*.py::TestAll::test_broken; fusion-audit show latest",
            "Net: unfused kernels of FUS201 in second: 6, 1 more than the 5 allowed",
            "Net: the fusion of FUS201 is live: no kernel of it ran, at least 1 must; what ran instead: *",
            "fusion_budget: the test made no audit; let it take the fixture and call it: fusion_audit(model, inputs)",
        ]
    )
    # AND the summary has a line for each audit, whatever became of its test
    done.stdout.fnmatch_lines(
        [
            "*= fusion audits =*",
            f"*::TestAll::test_broken · Net: {COUNTS}, * kB; over budget: 1 of 1 limit broken",
            f"*::TestAll::test_known · Net: {COUNTS}, * kB; over budget: 1 of 1 limit broken",
            f"*::TestAll::test_the_closest_key_counts · Net: {COUNTS}, * kB; within budget: 2 limits kept",
            f"*::test_few · Net: {COUNTS}, * kB; no budget",
            "*::test_inputs[[]fresh[]] · Net: *",
            f"*::test_kept · Net: {COUNTS}, * kB; within budget: 2 limits kept",
            "*::test_live · Net: *; over budget: 1 of 2 limits broken",
            "*::test_many · serving: *",
            r"*::test_of_a_function · a\x1b[[]31m\u202e: *",
            "*::test_parts · *",
            "*::test_training · *",
        ]
    )


def test_a_mistake_in_a_marker_is_told_before_the_test_runs(here: pytest.Pytester) -> None:
    here.makepyfile(
        """
import pytest

@pytest.mark.fusion_budget(max_unfused=12)
def test_unknown(fusion_audit): print("ran")

@pytest.mark.fusion_budget(12)
def test_positional(fusion_audit): print("ran")

@pytest.mark.fusion_budget()
def test_empty(fusion_audit): print("ran")

@pytest.mark.fusion_budget(max_kernels=-1)
def test_negative(fusion_audit): print("ran")

@pytest.mark.fusion_budget(max_kernels=[1])
def test_kind(fusion_audit): print("ran")

@pytest.mark.fusion_budget(max_increase={"kernels": 0})
def test_increase(fusion_audit): print("ran")

@pytest.mark.fusion_budget(budgets=[{"rule": "FUS999", "max_kernels": 1}])
def test_rule(fusion_audit): print("ran")

@pytest.mark.skip
@pytest.mark.fusion_budget(max_unfused=12)
def test_skipped(fusion_audit): print("ran")

def test_no_budget(fusion_audit):
    fusion_audit(None, budget=True)
"""
    )

    done = run_pytest(here, "-s")

    done.assert_outcomes(errors=7, failed=1, skipped=1)
    done.stdout.no_fnmatch_line("ran")
    done.stdout.no_fnmatch_line("*During handling*")
    done.stdout.fnmatch_lines(
        [
            "*test_*.py:3: fusion_budget has no key 'max_unfused'; did you mean 'max_unfused_kernels'?",
            "*: fusion_budget takes keys only, such as max_unfused_kernels=12",
            "*: fusion_budget sets no limit; write one such as max_unfused_kernels=12",
            "*: fusion_budget.max_kernels: must not be negative, not -1",
            "*: fusion_budget.max_kernels: expected a number or text, got a list",
            "*: fusion_budget has no max_increase: a test has no baseline; use max_…",
            "*: fusion_budget.budgets[[]1[]].rule: no rule 'FUS999'; see: fusion-audit rules list",
            "*AuditError: budget=True, and there is no budget: there is no pyproject.toml at *",
        ]
    )


def test_the_projects_settings_and_budget_and_the_store(here: pytest.Pytester) -> None:
    # GIVEN a project with a budget, whose tests run from another folder
    (here.path / "pytest.ini").unlink(missing_ok=True)
    (here.path / "tox.ini").unlink(missing_ok=True)
    here.makepyprojecttoml(
        """
        [tool.pytest.ini_options]

        [tool.fusion-audit]
        ignore = ["FUS3"]
        max_unfused_kernels = 3

        [[tool.fusion-audit.budgets]]
        model = "other*"
        max_kernels = 1
        """
    )
    here.makepyfile(
        MODEL
        + """
def test_held(fusion_audit):
    fusion_audit(Net(), X, budget=True)

def test_not_held(fusion_audit):
    assert fusion_audit(Net(), X).document.run.ignore == ["FUS3"]
"""
    )

    # WHEN they run, and audits are kept
    done = run_pytest(here, "--fusion-store")

    # THEN the budget counts where the test asks for it
    done.assert_outcomes(passed=1, failed=1)
    with Store.open() as store:
        runs = store.list_runs()
    assert [run.name for run in runs] == ["Net", "Net"]
    held = runs[-1].id
    done.stdout.fnmatch_lines(
        [
            "Net: unfused kernels: 12, 9 more than the 3 allowed",
            "limit: max_unfused_kernels, pyproject.toml:5",
            f"next: fusion-audit show {held}",
            f"*::test_held · Net: {COUNTS}, * kB; over budget: 1 of 1 limit broken; stored as {held}",
            f"*::test_not_held · Net: {COUNTS}, * kB; no budget; stored as {runs[0].id}",
        ]
    )


def test_the_example_of_the_docs_passes(here: pytest.Pytester) -> None:
    page = (ROOT / "docs" / "how-to" / "gate-in-pytest.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```python")]
    (code,) = (block for block in blocks if "fusion_budget" in block)
    here.makepyfile(code)

    done = run_pytest(here)

    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*; within budget: 2 limits kept"])


@pytest.mark.slow
def test_two_workers_say_what_one_process_says(here: pytest.Pytester) -> None:
    # GIVEN tests of which each worker gets some
    pytest.importorskip("xdist")
    here.makepyfile(
        MODEL
        + """
@pytest.mark.parametrize("i", range(4))
@pytest.mark.fusion_budget(max_unfused_kernels=11)
def test_it(fusion_audit, i):
    fusion_audit(Net(), X)
"""
    )

    # WHEN
    outputs = [run_pytest(here, *words) for words in ((), ("-n", "2", "--dist", "each"), ("-n", "2"))]

    # THEN the controller has the lines of both, the same as without workers
    lines = [[line for line in done.outlines if " · Net: " in line] for done in outputs]
    assert len(lines[0]) == 4
    assert lines[0] == lines[2] == lines[1]
    assert "over budget: 1 of 1 limit broken" in lines[2][0]


@pytest.mark.slow
def test_counts_are_the_same_in_every_process(here: pytest.Pytester) -> None:
    here.makepyfile(
        MODEL
        + """
import json

def test_it(fusion_audit, tmp_path_factory):
    audits = [fusion_audit(Net(), X, train=train) for train in (False, True, False, True)]
    keys = ("kernels", "unfused_kernels", "avoidable_kernels", "bytes", "peak_bytes")
    totals = [[getattr(audit, key) for key in keys] for audit in audits]
    print("TOTALS", json.dumps(totals))
"""
    )

    seen = {line for _ in range(2) for line in run_pytest(here, "-s").outlines if "TOTALS" in line}

    assert len(seen) == 1
    totals = json.loads(seen.pop().split("TOTALS ")[1].splitlines()[0])
    assert totals[:2] == totals[2:]
