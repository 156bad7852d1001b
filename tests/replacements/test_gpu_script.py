"""benchmarks/gpu.py as it runs without a GPU: Triton's interpreter, toy sizes, and whatever can go wrong."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fused_replacements import Replacement, cpu_path, find
from fused_replacements._registry import HOME

ROOT = Path(__file__).resolve().parents[2]
WITH_NUMBERS = {name for name, family in HOME.items() if family != "optimizer"}  # its step is PyTorch's own


def gpu(out: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and table of the script, where nobody has chosen the interpreter for it."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "benchmarks/gpu.py", "--out", str(out), *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert (out / "replacements-gpu.json").exists(), done.stderr
    document = json.loads((out / "replacements-gpu.json").read_text(encoding="utf-8"))
    return done.returncode, document, (out / "replacements-gpu.md").read_text(encoding="utf-8")


def test_one_variant_of_every_replacement(tmp_path: Path) -> None:
    code, document, table = gpu(tmp_path, "--variants", "1", "--budget", "600")

    wrong = [row for row in (*document["checks"], *document["times"]) if row.get("error") or row.get("problems")]
    assert wrong == []
    assert (code, document["faults"], document["not_run"]) == (0, 0, [])
    assert document["interpreted"]
    assert {row["name"] for row in document["checks"]} == WITH_NUMBERS
    assert {row["name"] for row in document["times"]} == set(HOME)
    assert {row["dtype"] for row in document["checks"]} == {"fp16", "fp32"}
    for row in document["times"]:
        assert row["us"]["fused"]["us"] > 0
        assert row["bytes_moved"] > 0 or row["name"] not in WITH_NUMBERS
        assert math.isclose(row["against"]["eager"], row["us"]["eager"]["us"] / row["us"]["fused"]["us"])
    assert all(f"| {name} |" in table for name in HOME)
    assert [row["name"] for row in document["times"] if row["unfused"]] == []


@pytest.mark.thorough
def test_every_variant_of_every_replacement(tmp_path: Path) -> None:
    code, document, _ = gpu(tmp_path, "--budget", "3000")
    assert [row for row in document["checks"] if row.get("error") or row.get("problems")] == []
    assert (code, document["not_run"]) == (0, [])
    cpu = torch.device("cpu")
    wanted = {(name, sample.label) for name in WITH_NUMBERS for sample in find(name).samples(4, 64, torch.float32, cpu)}
    assert {(row["name"], row["variant"]) for row in document["checks"]} == wanted


def test_what_fails_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    code, document, table = gpu(tmp_path, "--only", "no_such_op", "--only", "relu_squared", "--variants", "1")
    assert code == 1
    assert document["faults"] == 1
    broken, *others = document["checks"]
    assert broken["name"] == "no_such_op"
    assert broken["error"].startswith("KeyError")
    assert {row["name"] for row in others} == {"relu_squared"}
    assert "| no_such_op | 0 |" in table
    assert "KeyError" in table


def test_without_time_nothing_runs_and_that_is_said(tmp_path: Path) -> None:
    code, document, table = gpu(tmp_path, "--only", "relu_squared", "--variants", "1", "--budget", "0")
    assert code == 0
    assert (document["checks"], document["times"]) == ([], [])
    assert [what.split()[:2] for what in document["not_run"]] == [["check", "relu_squared"], ["time", "relu_squared"]]
    assert "Out of time, not run: check relu_squared" in table


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def accuracy(benchmarks: None) -> Iterator[ModuleType]:  # noqa: ARG001
    import replacement_accuracy

    with cpu_path("reference"):
        yield replacement_accuracy


def problems(accuracy: ModuleType, changed: Replacement, dtype: torch.dtype = torch.float32) -> list[str]:
    from replacement_calls import Size

    found: list[str] = accuracy.accuracy(changed, "llama", Size(6, 48, dtype, torch.device("cpu"))).problems
    return found


def test_a_right_replacement_passes_the_numeric_check(accuracy: ModuleType) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert problems(accuracy, find("rms_norm"), dtype) == []


class HalvesWeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradient / 2


def in_place(x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(1.5)
    return find("rms_norm").reference(x, *rest, **options)  # type: ignore[no-any-return]


REFERENCE = find("rms_norm").reference


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x, w, eps: REFERENCE(x, w, eps) * 1.001, "output 0 is off by"),
        (lambda x, w, eps: REFERENCE(x, w, eps + 1e-3), "output 0 is off by"),
        (lambda x, w, eps: REFERENCE(x, HalvesWeightGradient.apply(w), eps), "gradient 1 is off by"),
        (lambda x, w, eps: REFERENCE(x, w.detach(), eps), "gradient 1 is missing"),
        (lambda x, w, eps: REFERENCE(x, w, eps) * torch.where(x > 0, 1.0, float("nan")), "output 0 has NaN elsewhere"),
        (in_place, "an input was written to"),
    ],
    ids=["a factor", "another eps", "half a gradient", "no gradient", "NaN", "in place"],
)
def test_a_wrong_replacement_is_found(accuracy: ModuleType, function: Any, says: str) -> None:
    found = problems(accuracy, replace(find("rms_norm"), function=function))
    assert any(problem.startswith(says) for problem in found), found


class Event:
    """A device event on a device that is the host."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


@pytest.mark.usefixtures("benchmarks")
def test_the_device_clock_writes_over_the_cache_before_each_call_and_takes_only_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import gpu_clock

    # GIVEN a device whose cache is larger than what is written at the least
    properties = SimpleNamespace(L2_cache_size=3 * 2**20)
    monkeypatch.setattr(gpu_clock, "FLUSH_BYTES", 2**20)
    monkeypatch.setattr(torch.cpu, "get_device_properties", lambda _: properties, raising=False)
    monkeypatch.setattr(torch.cpu, "Event", Event, raising=False)
    clock = gpu_clock.DeviceClock(torch.device("cpu"))
    assert clock._flush.nbytes == 6 * 2**20

    # WHEN a call of 5 ms is timed, which finds out whether the cache was written over since it last ran
    fresh: list[bool] = []

    def call() -> None:
        fresh.append(not bool(clock._flush[0]))
        clock._flush[0] = 1
        time.sleep(0.005)

    times = clock.times(call, 4)

    # THEN each was, but for the one that was not timed, and the writing is no part of the time
    assert fresh[1:] == [True] * 4
    assert len(times) == 4
    assert all(5_000 <= us < 5_000 + gpu_clock.MOST_FLUSHES * clock._flush_us + 100_000 for us in times)
    assert clock.host_us(call) >= 5_000


@pytest.mark.usefixtures("benchmarks")
def test_rounds_take_every_run_and_the_quartiles_are_in_order() -> None:
    import gpu_clock

    calls: list[str] = []
    runs = {"slow": lambda: (calls.append("slow"), time.sleep(0.004)), "fast": lambda: calls.append("fast")}
    taken = gpu_clock.interleaved(runs, gpu_clock.HostClock(), rounds=4, round_us=2_000)
    assert taken["slow"].us >= 4_000 > taken["fast"].us
    assert all(each.low <= each.us <= each.high for each in taken.values())
    assert calls.count("slow") == 2 + 4  # to see how long it takes, and once a round
    assert calls.count("fast") == 2 + 4 * 20


CHILD = """
import os, sys, time
sys.path.insert(0, {benchmarks!r})
from child_processes import answer_tasks

sick = []

def answer(task):
    print("noise on stdout")
    if task["do"] == "die":
        os._exit(9)
    if task["do"] == "raise":
        raise ValueError("no")
    if task["do"] == "hang":
        time.sleep(600)
    if task["do"] == "break":
        sick.append(task)
    return {{"pid": os.getpid(), "do": task["do"]}}

answer_tasks(answer, lambda: not sick)
"""


def children(*tasks: str, seconds: float = 60, limit_s: float = 60, count: int = 1) -> tuple[list[Any], list[str]]:
    import child_processes

    command = [sys.executable, "-c", CHILD.format(benchmarks=str(ROOT / "benchmarks"))]
    done, left = child_processes.run(
        [{"do": task} for task in tasks],
        command,
        children=count,
        deadline=time.monotonic() + seconds,
        task_limit_s=limit_s,
        say=lambda *_: None,
    )
    assert [task["do"] for task, _ in done] + [task["do"] for task in left] == list(tasks) or left
    return [answer for _, answer in done], [task["do"] for task in left]


@pytest.mark.usefixtures("benchmarks")
def test_a_child_that_dies_costs_only_its_own_task() -> None:
    (before, died, after), left = children("ok", "die", "ok")
    assert died == {"error": "the process died with exit code 9"}
    assert before["pid"] != after["pid"]
    assert left == []


@pytest.mark.usefixtures("benchmarks")
def test_an_exception_is_an_answer_and_the_child_stays() -> None:
    (before, raised, after), _ = children("ok", "raise", "ok")
    assert raised == {"error": "ValueError: no"}
    assert before["pid"] == after["pid"]


@pytest.mark.usefixtures("benchmarks")
def test_a_child_whose_device_is_broken_is_replaced() -> None:
    (broken, after), _ = children("break", "ok")
    assert broken["do"] == "break"
    assert broken["pid"] != after["pid"]


@pytest.mark.usefixtures("benchmarks")
def test_a_task_that_hangs_is_ended() -> None:
    (hung, after), left = children("hang", "ok", limit_s=3)
    assert hung == {"error": "it took over 3 s"}
    assert after["do"] == "ok"
    assert left == []


@pytest.mark.usefixtures("benchmarks")
def test_what_has_no_time_is_left_and_is_no_error() -> None:
    done, left = children("ok", "hang", "ok", seconds=5)
    assert [answer["do"] for answer in done] == ["ok"]
    assert left == ["hang", "ok"]


@pytest.mark.usefixtures("benchmarks")
def test_several_children_share_the_tasks() -> None:
    done, left = children(*["ok"] * 8, count=3)
    assert (len(done), left) == (8, [])
