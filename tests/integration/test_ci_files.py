"""What other programs read: the action, the hooks of pre-commit, and the examples for CI."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from gate_factory import graph, save
from sarif_schema import SCHEMA

from auditor.cli.parser import load, parse
from auditor.store import Store

Cli = Callable[..., Any]  # gives (code, out, err)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "ci"
SCRIPT = """
import sys
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

print("::error::a script's own words", *sys.argv[1:])
model = Model()
with torch.no_grad():
    for step in range(12):
        model(torch.rand(32, 64))
"""
PROJECT = '[tool.fusion-audit]\nscript = "bench.py --tiny"\nmax_unfused_kernels = {}\n'


def read(path: Path) -> Any:
    """YAML, with ``on`` as the word that it is on GitHub."""
    loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool" or first not in "oO"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return loader.get_single_data()


def texts(value: Any) -> list[str]:
    """Every text in nested data."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


@pytest.fixture
def project(folder: Path) -> Path:
    """A project whose script has five kernels that should be one."""
    (folder / "bench.py").write_text(SCRIPT)
    (folder / "pyproject.toml").write_text(PROJECT.format(0))
    subprocess.run(["git", "init", "-q"], check=True)
    return folder


class TestAction:
    action = read(ROOT / "action.yml")
    steps = action["runs"]["steps"]

    def test_it_has_what_an_action_needs(self) -> None:
        assert {"name", "description", "inputs", "outputs", "runs"} <= set(self.action)
        assert self.action["runs"]["using"] == "composite"
        for given in self.action["inputs"].values():
            assert set(given) == {"description", "default"}
            assert isinstance(given["default"], str)
        assert all(set(given) == {"description", "value"} for given in self.action["outputs"].values())

    def test_every_step_is_whole(self) -> None:
        for step in self.steps:
            assert ("run" in step) != ("uses" in step), step["name"]
            assert step.get("shell") == ("bash" if "run" in step else None), step["name"]
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"])

    def test_inputs_that_are_used_are_declared_and_the_other_way_round(self) -> None:
        used = {name for text in texts(self.action["runs"]) for name in re.findall(r"\binputs\.([\w-]+)", text)}
        assert used == set(self.action["inputs"])

    def test_outputs_are_those_that_a_step_writes(self) -> None:
        step = next(step for step in self.steps if step.get("id") == "gate")
        named = {name for text in texts(self.action) for name in re.findall(r"steps\.gate\.outputs\.([\w-]+)", text)}
        assert set(self.action["outputs"]) == named
        counts = {"kernels", "unfused-kernels", "avoidable-kernels", "bytes"}
        assert {name for name in named - counts if f"{name}=" not in step["run"]} == set()

    def test_no_value_is_written_into_a_command(self) -> None:
        # https://docs.github.com/actions/security-for-github-actions: script injection
        assert [step["name"] for step in self.steps if "${{" in step.get("run", "")] == []

    def test_the_shell_of_every_step_parses(self) -> None:
        for step in self.steps:
            if "run" in step:
                subprocess.run(["bash", "-n", "-c", step["run"]], check=True)

    def act(self, folder: Path, **inputs: str) -> tuple[int, dict[str, str], str, str]:
        """The step that audits, as a runner would: exit code, outputs, summary, and what it prints."""
        step = next(step for step in self.steps if step.get("id") == "gate")
        values = {name: given["default"] for name, given in self.action["inputs"].items()}
        values |= {"python": sys.executable} | {name.replace("_", "-"): value for name, value in inputs.items()}
        variables = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)
            for key, text in step["env"].items()
        }
        output, summary, runner = folder / "output.txt", folder / "summary.md", folder / "runner temp"
        runner.mkdir(exist_ok=True)
        for file in (output, summary):
            file.write_text("")
        (folder / "step.sh").write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", folder / "step.sh"],
            cwd=folder / values["working-directory"], capture_output=True, text=True, check=False,
            env={
                **os.environ, **variables, "PYTHONPATH": str(ROOT), "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(runner),
            },
        )  # fmt: skip
        lines = output.read_text().splitlines()
        return done.returncode, dict(line.split("=", 1) for line in lines), summary.read_text(), done.stdout

    @pytest.mark.slow
    def test_it_refuses_a_script_over_budget(self, project: Path) -> None:
        # WHEN a script over its budget is audited, and SARIF asked for
        code, outputs, summary, printed = self.act(
            project, script="bench.py", args="--batch 2 'two words; $(touch pwned)'", sarif="true"
        )

        # THEN the step fails, with annotations, a summary and outputs
        assert code == 1, printed
        assert {**outputs, "run": "", "bytes": "", "report": "", "sarif": ""} == {
            "verdict": "failed", "run": "", "kernels": "5", "unfused-kernels": "5", "avoidable-kernels": "4",
            "bytes": "", "broken": "1", "report": "", "sarif": "",
        }  # fmt: skip
        assert "a script's own words --batch 2 two words; $(touch pwned)" in printed
        assert "::error file=bench.py,line=7," in printed
        assert summary.count("### Fusion gate of `bench") == 1
        assert json.loads(Path(outputs["report"]).read_text())["run"]["id"] == outputs["run"]
        jsonschema.validate(json.loads(Path(outputs["sarif"]).read_text()), SCHEMA, jsonschema.Draft202012Validator)
        assert not (project / "pwned").exists()

    @pytest.mark.slow
    def test_it_runs_what_the_project_names_and_passes_it(self, project: Path) -> None:
        (project / "pyproject.toml").write_text(PROJECT.format(100))

        code, outputs, summary, printed = self.act(project)

        assert (code, outputs["verdict"], outputs["broken"], "sarif" in outputs) == (0, "passed", "0", False), printed
        assert "within budget: 1 limit kept" in summary
        assert "::notice title=fusion gate of bench" in printed

    @pytest.mark.slow
    def test_a_stored_run_and_a_budget_of_its_own(self, project: Path, store: Store) -> None:
        stored = save(store, graph(2))
        (project / "limits.yaml").write_text("max_kernels: 13\n")

        code, outputs, _, printed = self.act(project, run=stored.id, budget="limits.yaml")

        assert (code, outputs["run"], outputs["kernels"]) == (1, stored.id, "14")
        assert "::error" in printed

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "inputs",
        [{"run": "nothing"}, {"script": "gone.py"}, {"script": "bench.py", "run": "x"}, {"script": "x", "args": "'"}],
    )
    def test_bad_input_is_an_error_and_no_verdict(self, project: Path, inputs: dict[str, str]) -> None:
        code, outputs, summary, _ = self.act(project, **inputs)

        assert (code, outputs, summary) == (2, {"verdict": "error"}, "")


class TestHooks:
    hooks = read(ROOT / ".pre-commit-hooks.yaml")

    def test_they_have_the_keys_that_pre_commit_knows(self) -> None:
        known = {
            "id", "name", "description", "entry", "language", "pass_filenames", "always_run", "types",
            "require_serial", "stages", "minimum_pre_commit_version",
        }  # fmt: skip
        for hook in self.hooks:
            assert {"id", "name", "entry", "language"} <= set(hook) <= known
            assert (hook["language"], hook["pass_filenames"]) == ("system", False)
            assert set(hook["stages"]) <= {"pre-commit", "pre-push", "manual"}
        assert len({hook["id"] for hook in self.hooks}) == len(self.hooks) == 2

    def test_the_example_names_hooks_that_there_are(self) -> None:
        (repository,) = read(EXAMPLES / "pre-commit-config.yaml")["repos"]
        assert set(repository) == {"repo", "rev", "hooks"}
        entries = {hook["id"]: hook["entry"] for hook in self.hooks}
        for hook in repository["hooks"]:
            _, *words = shlex.split(entries[hook["id"]])
            parse([*words, *hook["args"]])

    def test_the_stored_run_is_held(self, fusion_audit: Cli, folder: Path, store: Store) -> None:
        _, *words = shlex.split(self.hooks[0]["entry"])
        save(store, graph(1))

        codes = []
        for most in (0, 100):
            (folder / "pyproject.toml").write_text(PROJECT.format(most))
            codes.append(fusion_audit(*words).code)

        assert codes == [1, 0]

    @pytest.mark.slow
    def test_the_projects_script_is_run_from_wherever(
        self, fusion_audit: Cli, project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, *words = shlex.split(self.hooks[1]["entry"])
        (project / "inside").mkdir()
        monkeypatch.chdir(project / "inside")

        done = fusion_audit(*words, "--format", "json")

        assert done.code == 1, done.err
        gate = json.loads(done.out)  # what the script prints is not in it
        assert gate["run"]["id"] == store.load().id
        assert "a script's own words --tiny" in done.err


@pytest.mark.parametrize(
    ("settings", "words", "sentence"),
    [
        ("", [], "pyproject.toml: tool.fusion-audit names no script to record"),
        ('script = " "', [], "names no script to record"),
        ('script = "\'"', [], "can't be read as a command (No closing quotation)"),
        ("script = 1", [], "pyproject.toml:2: tool.fusion-audit.script: expected text, got a number"),
        ('script = "gone.py"\nmax_kernels = 1', [], "gone.py"),
        ('script = "gone.py"', ["latest"], "--record makes a run of its own; leave out 'latest', or --record"),
    ],
)
def test_what_can_not_be_recorded_is_told_in_a_sentence(
    fusion_audit: Cli, folder: Path, settings: str, words: list[str], sentence: str
) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.fusion-audit]\n{settings}\n")

    done = fusion_audit("gate", "--record", *words)

    assert (done.code, done.out) == (2, "")
    assert sentence in done.err


@pytest.mark.slow
def test_a_script_that_fails_is_not_judged(fusion_audit: Cli, project: Path) -> None:
    (project / "bench.py").write_text(f"{SCRIPT}\nraise SystemExit(3)\n")
    (project / "pyproject.toml").write_text('[tool.fusion-audit]\nscript = "bench.py"\nmax_kernels = 100\n')

    done = fusion_audit("gate", "--record")

    assert (done.code, done.out) == (2, "")
    assert "bench.py ended with code 3, so that its run" in done.err


class TestExamples:
    def test_the_workflow_of_github(self) -> None:
        # https://docs.github.com/actions/reference/workflows-and-actions/workflow-syntax
        workflow = read(EXAMPLES / "github.yml")
        assert set(workflow) == {"name", "on", "permissions", "jobs"}
        (job,) = workflow["jobs"].values()
        assert {"runs-on", "steps"} <= set(job)
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])
        step = next(step for step in job["steps"] if "/fusion-auditor@" in step.get("uses", ""))
        assert set(step["with"]) <= set(TestAction.action["inputs"])
        outputs = {name for text in texts(job) for name in re.findall(r"steps\.fusions\.outputs\.([\w-]+)", text)}
        assert outputs <= set(TestAction.action["outputs"])
        assert workflow["permissions"] == {"contents": "read", "security-events": "write"}

    def test_the_job_of_gitlab(self) -> None:
        # https://docs.gitlab.com/ci/yaml/
        (job,) = read(EXAMPLES / "gitlab.yml").values()
        assert {"stage", "image", "script", "artifacts", "rules"} <= set(job)
        assert set(job) <= {"stage", "image", "variables", "cache", "before_script", "script", "artifacts", "rules"}
        reports = job["artifacts"]["reports"]
        assert job["artifacts"]["when"] == "always"
        written = {}
        for line in job["script"]:
            verb, *words = shlex.split(line.split(" || ")[0])[1:]
            _, args = parse([verb, *words])
            assert load(verb) is not None
            if verb == "gate" and args.output:
                written[args.format] = str(args.output)
        assert written == {"gitlab": reports["codequality"], "junit": reports["junit"]}
        assert " || " not in job["script"][-1]  # the last one says whether the job fails

    def test_their_text_says_where_they_belong(self) -> None:
        for file in EXAMPLES.iterdir():
            assert re.match(r"# .*copy it", file.read_text(encoding="utf-8").replace("\n", " ")), file.name
