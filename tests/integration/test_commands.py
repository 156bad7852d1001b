"""The command line end to end: real scripts, real traces, one store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditor.graph.ssa import parse
from auditor.store import Store

ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., Any]  # gives (code, out, err)

SCRIPT = """
import sys
import torch

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(64))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Norm(), Norm()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.second(self.linear(self.first(x)))

print("script got", sys.argv[1:], flush=True)
model = Model()
with torch.no_grad():
    for step in range(12):
        model(torch.rand(32, 64))
        if sys.argv[1:2] == ["--fail-at"] and step == int(sys.argv[2]):
            raise RuntimeError("the script's own mistake")
print("script ends", flush=True)
"""


@pytest.fixture
def script(folder: Path) -> Path:
    """A script with two RMS norms, in the current folder."""
    path = folder / "model.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def names(store: Store) -> list[str]:
    return [run.name for run in store.list_runs()]


class TestRun:
    def test_the_report_comes_after_the_scripts_own_output_and_is_stored(
        self, fusion_audit: Cli, script: Path, store: Store
    ) -> None:
        # WHEN a script is audited with options of ours and of its own
        code, out, err = fusion_audit("run", "--name", "mine", script.name, "--name", "its", "--", "-o", "x")

        # THEN it saw its own, the report follows what it printed, and the run is stored with its graph
        assert code == 0
        assert out.startswith("script got ['--name', 'its', '--', '-o', 'x']\nscript ends\n")
        report = out.split("script ends\n")[1]
        assert "FUS201" in report
        assert "model.py:11" in report
        stored = store.load("mine")
        assert err.splitlines()[-1] == f"fusion-audit: stored as {stored.id}"
        norm = next(finding for finding in stored.document.findings if finding.rule == "FUS201")
        assert (norm.sites, norm.module_class, norm.modules) == (2, "Norm", ["first", "second"])
        assert stored.document.run.script[1:] == ["--name", "its", "--", "-o", "x"]
        assert stored.document.overhead.bare_us > 0

        # AND every format can be shown, and questions asked
        assert fusion_audit("show", "mine").out == report
        page = fusion_audit("show", "mine", "--format", "html").out
        assert page.startswith("<!DOCTYPE html>")
        assert "http-equiv" not in page.split("</head>")[0] or "Content-Security-Policy" in page
        assert "| " in fusion_audit("show", "mine", "--format", "markdown").out
        text = fusion_audit("graph", "mine", "--at", "first").out
        assert [op.name for op in parse(text).ops][:2] == ["aten.pow", "aten.mean"]
        assert "FUS201" in fusion_audit("why-not", "mine", "unfused-rms-norm", "--at", "linear").out
        code, out, err = fusion_audit("graph", "mine", "--at", "third")
        assert (code, out) == (2, "")
        assert err.startswith(
            "error: no op was recorded at 'third'; give a module, its class, or file.py:LINE; modules: "
        )

    def test_json_stands_alone_on_stdout(self, fusion_audit: Cli, script: Path) -> None:
        code, out, err = fusion_audit("run", "--format", "json", script)

        assert code == 0
        document = json.loads(out)
        assert document["schema"] == "fusion-audit/1"
        assert document["run"]["name"] == "model"
        assert document["totals"]["kernels"] > 10
        assert "script got []" in err

    def test_settings_of_the_project_and_options(self, fusion_audit: Cli, script: Path, store: Store) -> None:
        # GIVEN a project that raises one rule and leaves one module out
        Path("pyproject.toml").write_text(
            '[tool.fusion-audit]\nname = "project"\nseverity = { FUS201 = "error" }\n'
            '[[tool.fusion-audit.suppress]]\nrule = "FUS201"\nmodules = "sec*"\nreason = "known"\n'
            '[[tool.fusion-audit.suppress]]\nrule = "FUS1"\nmodules = "nowhere"\nreason = "old"\n'
        )

        # WHEN only that rule is selected, and the report goes to a file
        code, out, _ = fusion_audit("run", "--select", "FUS201", "--steps", "2", "--stop", "-o", "report.txt", script)

        # THEN the document says all of it
        assert code == 0
        assert "script ends" not in out  # --stop ended it
        assert "FUS201" in Path("report.txt").read_text(encoding="utf-8")
        document = store.load("project").document
        assert [(f.rule, f.severity, f.modules) for f in document.findings] == [("FUS201", "error", ["first"])]
        assert [(s.rule, s.sites) for s in document.suppressed] == [("FUS201", 1), ("FUS1", 0)]

        # AND why-not goes by the settings of that run, whatever they are now
        Path("pyproject.toml").unlink()
        assert "found: a site" in fusion_audit("why-not", "project", "FUS201", "--at", "first").out
        assert "suppressed: known" in fusion_audit("why-not", "project", "FUS201", "--at", "second").out
        assert "the rule is ignored" in fusion_audit("why-not", "project", "FUS101", "--at", "first").out

    def test_a_script_that_fails_passes_its_code_on_and_is_stored(
        self, fusion_audit: Cli, script: Path, store: Store
    ) -> None:
        code, out, err = fusion_audit("run", script, "--fail-at", "10")

        assert code == 1
        assert "RuntimeError: the script's own mistake" in err
        assert "FUS201" in out
        assert [(run.name, run.exit_code) for run in store.list_runs()] == [("model", 1)]
        assert "model (exit 1)" in fusion_audit("runs").out


BAD_SCRIPTS = {
    "exits before any step": ("import sys\nsys.exit(7)\n", 7, "bad.py"),
    "raises before any step": ("raise ValueError('nothing yet')\n", 1, "bad.py"),
    "calls no model": ("print('hello')\n", 2, "bad.py: the script ended without calling a torch.nn.Module"),
    "is not Python": ("def broken(:\n", 2, "bad.py:1: not a Python script"),
    "profiles itself": (
        "import torch\nwith torch.profiler.profile():\n    torch.nn.Linear(2, 2)(torch.rand(2, 2))\n",
        2,
        "bad.py:2: the script starts a torch profiler of its own",
    ),
}


@pytest.mark.parametrize("what", BAD_SCRIPTS)
def test_a_script_that_cannot_be_audited(fusion_audit: Cli, folder: Path, store: Store, what: str) -> None:
    text, expected, sentence = BAD_SCRIPTS[what]
    (folder / "bad.py").write_text(text)

    code, out, err = fusion_audit("run", "bad.py")

    assert code == expected
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert sentence in errors[0]
    assert "fusion" not in out
    assert names(store) == []


class TestImport:
    @pytest.fixture
    def traces(self, folder: Path) -> tuple[Path, Path]:
        """A Kineto trace and an execution trace of one call, as users record them."""
        import torch
        from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

        scope: dict[str, Any] = {"__name__": "scope"}
        exec(SCRIPT.split("print(")[0], scope)
        model, x = scope["Model"](), torch.rand(32, 64)
        observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
        with torch.no_grad():
            model(x)
            with profile(
                activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer
            ) as profiler:
                model(x)
        profiler.export_chrome_trace(str(folder / "trace.json"))
        return folder / "trace.json", folder / "et.json"

    def test_with_and_without_an_execution_trace(
        self, fusion_audit: Cli, traces: tuple[Path, Path], store: Store
    ) -> None:
        trace, execution_trace = traces

        observed = fusion_audit("import", trace, "--execution-trace", execution_trace, "--name", "both")
        inferred = fusion_audit("import", trace)

        assert (observed.code, inferred.code) == (0, 0), observed.err + inferred.err
        assert names(store) == ["trace", "both"]
        # Without ids the first norm's input, which nothing in the trace wrote, can't be told from its square.
        for name, edges, fewest in (("both", "observed", 2), ("trace", "inferred", 1)):
            document = store.load(name).document
            assert document.run.source == "trace"
            assert document.coverage.edges == edges
            norms = [finding for finding in document.findings if finding.rule == "FUS201"]
            assert {finding.provenance for finding in norms} == {edges}
            assert fewest <= sum(finding.sites for finding in norms) <= 2

    def test_from_python(self, traces: tuple[Path, Path]) -> None:
        import auditor

        trace, execution_trace = traces
        audit = auditor.load(trace, execution_trace=execution_trace)

        assert isinstance(audit, auditor.Audit)
        frame = audit.to_pandas()
        assert frame.loc[frame.rule == "FUS201", "sites"].sum() == 2
        assert len(frame) == len(audit.findings)
        assert "FUS201" in str(audit)
        assert audit._repr_html_().startswith("<")

    @pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8b broken", b"[1, 2"])
    def test_a_file_that_is_no_trace(self, fusion_audit: Cli, folder: Path, store: Store, content: bytes) -> None:
        (folder / "trace.json").write_bytes(content)

        code, out, err = fusion_audit("import", "trace.json")

        assert (code, out) == (2, "")
        assert err.splitlines()[-1].startswith("error: ")
        assert "trace.json" in err.splitlines()[-1]
        assert names(store) == []


def test_recording_in_this_process() -> None:
    import torch

    import auditor

    scope: dict[str, Any] = {"__name__": "scope"}
    exec(SCRIPT.split("print(")[0], scope)
    model = scope["Model"]()
    with auditor.record(steps=2, warmup=1) as rec, torch.no_grad():
        for _ in range(8):
            model(torch.rand(32, 64))

    audit = rec.audit()

    assert sum(finding.sites for finding in audit.findings if finding.rule == "FUS201") == 2
    assert audit.document.run.source == "profile"
    with auditor.step():  # nothing is recorded: it does nothing
        model(torch.rand(32, 64))


def test_recording_nothing_is_a_clear_error() -> None:
    import auditor

    with pytest.raises(auditor.AuditError, match=r"Nothing was recorded"), auditor.record():
        pass


ENDLESS = SCRIPT.replace("range(12)", "iter(int, 1)") + "\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_or_killed_it_stores_nothing_and_keeps_what_was_there(
    fusion_audit: Cli, script: Path, store: Store, number: signal.Signals, code: int
) -> None:
    # GIVEN a stored run, and an audit of a script that never ends
    assert fusion_audit("run", "--name", "earlier", script).code == 0
    script.write_text(ENDLESS)
    process = subprocess.Popen(
        [sys.executable, "-m", "auditor", "run", "--steps", "1000000", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        # A job in the background starts with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    first_line = process.stdout.readline()
    time.sleep(1.0)

    # WHEN the terminal's Ctrl-C, or kill -9, reaches the group
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert first_line.startswith("script got"), err

    # THEN it ends at once without a traceback of ours, and the store is as it was
    assert process.returncode == code
    if number == signal.SIGINT:
        assert err.splitlines()[-1] == "error: interrupted"
    assert names(store) == ["earlier"]
    assert store.load("earlier").tables


def test_a_model_that_runs_no_op_is_told_by_the_name_of_its_script(
    folder: Path, fusion_audit: Callable[..., Any]
) -> None:
    # GIVEN a script whose model computes nothing
    lines = ("import torch", "class M(torch.nn.Module):", "    def forward(self): return None", "M()()")
    (folder / "hollow.py").write_text("\n".join(lines) + "\n")
    # WHEN audited
    ran = fusion_audit("run", "hollow.py")
    # THEN one sentence names the script, not a file of ours
    assert ran.code == 2
    [line] = [line for line in ran.err.splitlines() if line.startswith("error:")]
    assert "hollow.py: the recorded step ran no PyTorch op" in line
