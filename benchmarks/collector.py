"""What recording costs: a step with nothing attached, watched, under the plain profiler, and in each pass.

``python benchmarks/collector.py [--rounds 30]`` prints the median wall time of a step and its ratio to the
bare step, for a two-layer MLP (launch-bound: the worst case) and a two-layer Llama. All kinds of step are
interleaved in one process, in a new order every round, because absolute times drift.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from auditor.collect.passes import ProfilerOwner
from auditor.collect.recorder import Recorder
from auditor.collect.schedule import Pass, Schedule
from auditor.collect.signature import CallSignature, StepSignature
from auditor.collect.stderr import quiet

KINDS = ("bare", "watched", "bare pass", "plain profiler", "timing pass", "graph pass")


class Chosen(Schedule):
    """Gives the next step the pass that the benchmark wants."""

    choice: Pass | None = None

    def begin(self, first: CallSignature | None) -> Pass | None:  # noqa: ARG002
        return self.choice

    def end(self, done: Pass | None, signature: StepSignature) -> bool:  # noqa: ARG002
        return done is not None


class Bench:
    """One model, and a recorder that can be put in and out."""

    def __init__(self, call: Callable[[], Any], folder: Path) -> None:
        self.call = call
        self.recorder = Recorder(folder, steps=10**6)
        self.schedule = self.recorder._schedule = Chosen()
        self.recorder.start()
        for _ in range(5):
            call()

    def measure(self, kind: str) -> float:
        """Wall time of one step in microseconds, as the step itself saw it."""
        facts, events = self.recorder.recording, self.recorder._events
        if kind == "bare pass":
            self._record("bare")
            return facts.bare_us.pop()
        if kind == "timing pass":
            self._record("timing")
            return facts.timing_us.pop()
        if kind == "graph pass":
            self._record("graph")
            return facts.graph_us
        if kind == "watched":
            return self._clock()
        events.remove()
        try:
            return self._clock() if kind == "bare" else self._profiled()
        finally:
            events.install()

    def _record(self, choice: Pass) -> None:
        self.schedule.choice = choice
        self.call()
        self.schedule.choice = None

    def _clock(self) -> float:
        began = time.perf_counter()
        self.call()
        return (time.perf_counter() - began) * 1e6

    def _profiled(self) -> float:
        ProfilerOwner.ours = True
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        with quiet():
            profile.start()
        us = self._clock()
        with quiet():
            profile.stop()
        ProfilerOwner.ours = False
        return us


def mlp() -> Callable[[], Any]:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    x = torch.randn(8, 64)
    return lambda: model(x)


def llama() -> Callable[[], Any]:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=1000, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 1000, (2, 64))
    return lambda: model(input_ids=ids)


def run(name: str, make: Callable[[], Callable[[], Any]], rounds: int) -> None:
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        bench = Bench(make(), Path(folder))
        for _ in range(rounds):
            for kind in random.sample(KINDS, len(KINDS)):
                bench.call()
                times[kind].append(bench.measure(kind))
        bench.recorder.finish()
    bare = median(times["bare"])
    for kind in KINDS:
        print(f"{name:8} {kind:16} {median(times[kind]):10.0f} us {median(times[kind]) / bare:7.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch; with more, their wake-up is what is measured")
    options = parser.parse_args()
    random.seed(options.seed)
    torch.set_num_threads(options.threads)
    run("mlp", mlp, options.rounds)
    try:
        run("llama", llama, options.rounds)
    except ImportError:
        print("llama    skipped: transformers is not installed", file=sys.stderr)


if __name__ == "__main__":
    main()
