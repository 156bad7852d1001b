"""``fusion-audit fix`` and the script's process: whatever happens there, the store and the plan are whole.

The scripts import a torch of three lines and are watched by a stub, so that each takes a moment only.
"""

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

from auditor.config import Config
from auditor.document import Document, Finding, Run, Saving, Site, Totals, TotalSaving
from auditor.errors import AuditError
from auditor.fix import run as fix_run
from auditor.graph.model import OpGraph
from auditor.graph.tables import to_tables
from auditor.store import Store

ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., Any]  # gives (code, out, err)

STUB = """
import json, os, sys, time
from pathlib import Path

def attach(folder, options):
    return Watcher(folder, options)

class Watcher:
    def __init__(self, folder, options):
        self.folder, self.options = Path(folder), options

    def start(self):
        Path("options.json").write_text(json.dumps(self.options))

    def write(self, state):
        site = {"rule": "FUS201", "module": "norm", "state": state, "tier": 2, "replacement": "rms_norm",
                "before_us": 10.0, "after_us": 4.0}
        scratch = self.folder / ".fix.json.part"
        scratch.write_text(json.dumps({"schema": "fusion-fix/1", "model": "Model", "sites": [site]}))
        os.replace(scratch, self.folder / "fix.json")

    def finish(self):
        how = os.environ.get("STUB", "")
        if how == "finish":
            self.write("rolled_back")
        if how == "garbage":
            (self.folder / "fix.json").write_text("{")
"""

SCRIPTS = {
    "quiet": "import torch",
    "fails": "import torch\nraise ValueError('its own mistake')",
    "exits": "import torch, sys\nsys.exit(7)",
    "hangs": "import torch, time\ntime.sleep(60)",
    "killed": "import torch, os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "out_of_memory": "import torch\nraise MemoryError('too much')",
}


@pytest.fixture
def scene(folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a stored run of one of :data:`SCRIPTS` in the current folder; its id."""
    monkeypatch.setattr(fix_run, "WATCHER", "stub:attach")
    (folder / "torch.py").write_text("")
    (folder / "stub.py").write_text(STUB)

    def make(name: str) -> str:
        (folder / "script.py").write_text(SCRIPTS[name])
        place = Site(ops=[], module="norm", device_us=20.0, saving=Saving(likely_us=10.0, step_us=8.0))
        finding = Finding(rule="FUS201", name="n", family="f", sites=1, places=[place])
        document = Document(
            run=Run(name="m", script=["script.py", "--flag"], created="2199-01-01T00:00:00+00:00"),
            totals=Totals(kernels=9, saving=TotalSaving(amdahl_cap=1.5)), findings=[finding],
        )  # fmt: skip
        return store.save(document, to_tables(OpGraph()))

    return make


def test_what_the_watcher_found_is_completed_stored_and_shown(
    fusion_audit: Cli, scene: Callable[[str], str], store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a script whose sites do not win
    run = scene("quiet")
    monkeypatch.setenv("STUB", "finish")

    # WHEN it is fixed with options
    done = fusion_audit(
        "fix", "--select", "FUS2", "--min-gain", "5%", "--limit", "3", "--no-compile", "--format", "json"
    )

    # THEN the watcher got them, and the document has what the audit knows
    assert done.code == 0, done.err
    options = json.loads((folder / "options.json").read_text())
    assert {rule[:4] for rule in options["select"]} == {"FUS2"}
    assert (options["min_gain"], options["limit"], options["compile"], options["dry"]) == (0.05, 3, False, False)
    fix = json.loads(done.out)
    assert (fix["run"], fix["amdahl_cap"], fix["before"]["kernels"], fix["plan"]) == (run, 1.5, 9, "")
    assert fix["predictions"][0] | {"rule": "", "sites": 0} == {
        "rule": "", "sites": 0, "predicted_us": 10.0, "measured_us": 6.0, "predicted_share": 0.5, "measured_share": 0.6,
        "before_us": 10.0, "after_us": 4.0, "after_predicted_us": 5.0,
    }  # fmt: skip
    # AND it is stored, without a plan or a second audit
    assert store.load_fix(run).sites[0].state == "rolled_back"
    assert [r.id for r in store.list_runs()] == [run]
    assert not (folder / "fusion-plan.yaml").exists()
    assert fix["notes"] == ["No plan was written."]
    assert "Not worth it here: nothing was kept of 1 site." in fusion_audit("show", "--fix").out


def test_options_that_a_diff_makes_no_use_of_are_named(
    fusion_audit: Cli, scene: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene("quiet")
    monkeypatch.setenv("STUB", "finish")
    told = "fusion-audit: without effect with --diff, which measures nothing: "

    done = fusion_audit("fix", "--diff", "--min-gain", "1%", "--keep-all", "--plan", "nowhere/p.yaml", "--limit", "1")

    assert done.code == 0, done.err
    assert f"{told}--min-gain, --keep-all, --plan\n" in done.err
    assert told not in fusion_audit("fix", "--diff", "--limit", "1").err


ENDS = [
    ("quiet", "", 2, "script.py: the script ended before a step could be tried; it needs two steps or more."),
    ("quiet", "garbage", 2, "fix.json: the result of the fix can't be read"),
    ("fails", "", 1, "script.py: the script failed: ValueError: its own mistake."),
    ("exits", "", 7, "script.py: the script failed: exit code 7."),
    ("killed", "", 2, "script.py: the script was killed by SIGKILL (out of memory?) before all was measured."),
    ("out_of_memory", "", 1, "MemoryError: too much (out of memory: try a smaller batch)."),
    ("hangs", "", 2, "the script was ended: it still ran after 1 s, the time cap. No plan was written and nothing was"),
]


@pytest.mark.parametrize(("name", "stub", "code", "sentence"), ENDS, ids=[f"{e[0]}-{e[1]}" for e in ENDS])
def test_whatever_ends_the_script_nothing_is_written_and_it_is_said(
    fusion_audit: Cli, scene: Callable[[str], str], store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, stub: str, code: int, sentence: str,
) -> None:  # fmt: skip
    run = scene(name)
    monkeypatch.setenv("STUB", stub)

    done = fusion_audit("fix", "--time-cap", "1s" if name == "hangs" else "1m")

    assert done.code == code
    assert sentence in done.err.splitlines()[-1]
    assert [r.id for r in store.list_runs()] == [run]
    assert not list(folder.glob("*.yaml*"))
    with pytest.raises(AuditError, match="no fix of run"):
        store.load_fix(run)


def test_a_script_that_goes_on_when_all_is_there_is_ended(
    fusion_audit: Cli, scene: Callable[[str], str], folder: Path
) -> None:
    scene("hangs")
    stub = (folder / "stub.py").read_text()
    (folder / "stub.py").write_text(stub.replace("def start(self):", "def start(self):\n        self.write('refused')"))

    began = time.monotonic()
    done = fusion_audit("fix")

    assert done.code == 0, done.err
    assert time.monotonic() - began < 30


def test_the_stage_of_the_watcher_reaches_who_waits(scene: Callable[[str], str], store: Store, folder: Path) -> None:
    # GIVEN a watcher that tries a site for a while
    run = scene("quiet")
    start = ["def start(self):", "(self.folder / 'stage.txt').write_text('trying sites: 1 of 2')", "time.sleep(1)"]
    stub = (folder / "stub.py").read_text()
    (folder / "stub.py").write_text(stub.replace(start[0], "\n        ".join([*start, "self.write('refused')"])))

    said: list[str] = []
    fix_run.Fixing(store.load(run), fix_run.FixOptions(), [], Config(), on_progress=said.append).run()

    assert said[0].startswith("trying sites: 1 of 2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_interrupted_or_killed_the_store_is_as_before(
    scene: Callable[[str], str], store: Store, folder: Path, number: int
) -> None:
    # GIVEN a fix under way, its script included, in a process group of its own
    run = scene("hangs")
    code = (
        "import auditor.fix.run as r\nr.WATCHER = 'stub:attach'\n"
        "from auditor.cli import main\nraise SystemExit(main(['fix']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stderr=subprocess.PIPE, start_new_session=True,
        # a shell's background job, as CI may be, ignores Ctrl-C, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (folder / "options.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    # WHEN the terminal's Ctrl-C, or kill -9, reaches the group
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=30)

    # THEN nothing was written, and Ctrl-C is told
    assert [r.id for r in store.list_runs()] == [run]
    assert not list(folder.glob("*.yaml*"))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert err.endswith("fusion-audit: no plan was written and nothing was stored\nerror: interrupted\n")


class TestBadInput:
    @pytest.mark.parametrize(
        ("source", "what"), [("trace", "an imported trace"), ("simulation", "a simulation")], ids=str
    )
    def test_only_the_run_of_a_script_can_be_fixed(
        self, fusion_audit: Cli, store: Store, source: str, what: str
    ) -> None:
        run = store.save(Document(run=Run(name="m", source=source)), {})
        done = fusion_audit("fix")
        assert done == (
            2, "",
            f"error: run {run} is {what}: there is no script to run again; make a run with: "
            "fusion-audit run script.py\n",
        )  # fmt: skip

    @pytest.mark.usefixtures("folder")
    def test_a_script_that_is_gone_says_where_to_go(self, fusion_audit: Cli, store: Store) -> None:
        run = store.save(Document(run=Run(name="m", script=["src/m.py", "a b"])), {})
        assert fusion_audit("fix", run) == (
            2, "",
            f"error: src/m.py: the script of run {run} is not here (any more); change to the folder where "
            "`fusion-audit run src/m.py 'a b'` was called\n",
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["--write"], "--write writes the changes that --diff suggests; give both"),
            (["--min-gain", "lots"], "argument --min-gain: must be a share such as 1% or 0.01, not 'lots'"),
            (["--time-cap", "0"], "argument --time-cap: must be a time such as 90s, 30m or 2h, not '0'"),
            (["--limit", "-1"], "argument --limit: must not be negative, not -1"),
            (["--ignore", "FUS"], "--select and --ignore leave no rule; see: fusion-audit rules list"),
            (["--plan", "nowhere/plan.yaml"], "nowhere/plan.yaml can't be written: there is no folder nowhere"),
            (["--format", "html"], "argument --format: invalid choice: 'html'"),
        ],
    )
    @pytest.mark.usefixtures("folder")
    def test_a_mistake_is_told_before_the_script_runs(
        self, fusion_audit: Cli, store: Store, words: list[str], sentence: str
    ) -> None:
        store.save(Document(run=Run(name="m", script=["m.py"])), {})
        done = fusion_audit("fix", *words)
        assert done.code == 2
        assert sentence in done.err

    @pytest.mark.usefixtures("folder")
    def test_a_bad_plan_is_told_before_the_script_runs(self, fusion_audit: Cli, folder: Path) -> None:
        (folder / "plan.yaml").write_text("schema: fusion-plan/9\n")
        done = fusion_audit("run", "--patch", "plan.yaml", "m.py")
        assert done.code == 2
        assert "plan.yaml: is of schema 'fusion-plan/9'" in done.err
