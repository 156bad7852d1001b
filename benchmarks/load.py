"""What it costs to read a large trace, and to audit it, beside ``json.load`` of the same file and other readers.

``python benchmarks/load.py [--trace FILE] [--copies 13] [--rounds 3]`` replicates the trace in time (ids shifted, so
that each copy stands alone) and reads the result with each reader, one process after the other, in turns. Without
``--trace`` it records one of its own. Printed are wall time, CPU time and peak memory of each (medians), and the CPU
time as a ratio to that of ``json.load`` in the same round: absolute times follow what else the machine does. Imports of
Python modules are not counted, but in the whole import, which is the command as a user calls it.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from replicated import replicate

Read = Callable[[], Any]


@dataclass(frozen=True)
class Reader:
    """One way to read a trace. ``ready`` imports what it needs and returns the call to measure."""

    name: str
    ready: Callable[[Path], Read]
    needs: str = ""
    """The module without which it is left out."""


def _json(path: Path) -> Read:
    return lambda: json.loads(path.read_bytes())


def _orjson(path: Path) -> Read:
    import orjson

    return lambda: orjson.loads(path.read_bytes())


def _orjson_without_gc(path: Path) -> Read:
    gc.disable()
    return _orjson(path)


def _load(path: Path) -> Read:
    from auditor.collect.kineto import load_trace

    return lambda: load_trace(path)


def _load_and_link(path: Path) -> Read:
    from auditor.collect.kernel_links import link_kernels
    from auditor.collect.kineto import load_trace
    from auditor.collect.nesting import nests

    def read() -> None:
        trace = load_trace(path)
        link_kernels(trace, nests(trace.cpu_ops), 0.0)

    return read


def _import(path: Path) -> Read:
    def read() -> None:
        from auditor.cli import main

        with tempfile.TemporaryDirectory() as store:
            if main(["import", str(path), "--db", store, "-o", os.devnull]):
                raise SystemExit("fusion-audit import failed")

    return read


def _hta(path: Path) -> Read:
    from hta.trace_analysis import TraceAnalysis

    return lambda: TraceAnalysis(trace_files={0: str(path)})


def _tracelens(path: Path) -> Read:
    from TraceLens import TreePerfAnalyzer

    return lambda: TreePerfAnalyzer.from_file(str(path))


READERS = (
    Reader("json.load", _json),
    Reader("orjson.loads", _orjson, "orjson"),
    Reader("orjson.loads, gc off", _orjson_without_gc, "orjson"),
    Reader("load", _load),
    Reader("load + link", _load_and_link),
    Reader("fusion-audit import", _import),
    Reader("HTA", _hta, "hta"),
    Reader("TraceLens", _tracelens, "TraceLens"),
)


@dataclass(frozen=True)
class Cost:
    """Of one reading: seconds of wall and of CPU time, and the process's peak resident memory in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="trace to replicate; one is recorded without it")
    parser.add_argument("--copies", type=int, default=13)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", metavar="READER", help="beside json.load; may be given again")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)  # a child: name of the reader, file
    args = parser.parse_args()
    if args.read:
        _measure(*args.read)
        return
    if args.trace is not None and not args.trace.is_file():
        parser.error(f"{args.trace}: no such file; give a trace of torch.profiler, .json or .json.gz")
    readers = [r for r in READERS if not args.only or r.name in ("json.load", *args.only)]
    path = _replicated(args.trace or _recorded(), args.copies)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB, {args.copies} copies")
    _report(_in_turns(_installed(readers), path, args.rounds))


def _installed(readers: list[Reader]) -> list[Reader]:
    missing = [r for r in readers if r.needs and importlib.util.find_spec(r.needs) is None]
    for reader in missing:
        print(f"{reader.name}: left out, because {reader.needs} is not installed.")
    return [r for r in readers if r not in missing]


def _in_turns(readers: list[Reader], path: Path, rounds: int) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {reader.name: [] for reader in readers}
    for _ in range(rounds):
        for reader in readers:
            cost = _in_child(reader.name, path)
            if cost is None and costs.pop(reader.name, None) is not None:
                print(f"{reader.name}: could not read the file; what it said is above.")
            elif cost is not None and reader.name in costs:
                costs[reader.name].append(cost)
    return costs


def _in_child(name: str, path: Path) -> Cost | None:
    command = [sys.executable, __file__, "--read", name, str(path)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return Cost(*json.loads(child.stdout.splitlines()[-1])) if child.returncode == 0 else None


def _measure(name: str, path: str) -> None:
    read = next(r for r in READERS if r.name == name).ready(Path(path))
    wall, cpu = time.perf_counter(), time.process_time()
    kept = read()
    print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, _peak_mb()]), flush=True)
    del kept
    os._exit(0)  # taking apart what was read is no part of reading it


def _peak_mb() -> float:
    """Of this program: what ``getrusage`` says begins with that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _report(costs: dict[str, list[Cost]]) -> None:
    base = costs["json.load"]
    print(f"\n{'':22s}{'wall':>9s}{'CPU':>9s}{'peak':>10s}  CPU time / json.load (lowest–highest of the rounds)")
    for name, measured in costs.items():
        ratios = [one.cpu_s / other.cpu_s for one, other in zip(measured, base, strict=True)]
        wall, cpu, peak = (median(getattr(c, what) for c in measured) for what in ("wall_s", "cpu_s", "peak_mb"))
        spread = f"({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
        print(f"{name:22s}{wall:7.2f} s{cpu:7.2f} s{peak:7.0f} MB  {median(ratios):.2f} × {spread}")


def _replicated(source: Path, copies: int) -> Path:
    """The replicated trace, from the temporary folder where it lies already."""
    state = source.stat()
    key = hashlib.sha256(f"{source.resolve()}{state.st_size}{state.st_mtime_ns}{copies}".encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / "fusion-audit-load"
    folder.mkdir(exist_ok=True)
    target = folder / f"{source.name.partition('.')[0]}-{copies}-{key}.json"
    if not target.exists():
        unfinished = target.with_suffix(f".{os.getpid()}")
        try:
            replicate(source, unfinished, copies)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    return target


def _recorded() -> Path:
    """A trace of three training steps of a small transformer, with shapes and stacks, made once."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    path = Path(tempfile.gettempdir()) / f"fusion-audit-load-recorded-torch{torch.__version__}.json"
    if path.exists():
        return path
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 4)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(2, 16, 64)
    plan = schedule(wait=0, warmup=1, active=3, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True, with_stack=True, with_modules=True,
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(path)),
    ) as profiler:  # fmt: skip
        for _ in range(4):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            profiler.step()
    return path


if __name__ == "__main__":
    main()
