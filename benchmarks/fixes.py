"""What `fix` makes of many models: unfused kernels before and after, and savings predicted against those measured.

    python benchmarks/fixes.py SCRIPT [--models llama,bert] [--args="--dtype bf16 --train"] [--keep-all] [--json FILE]

SCRIPT is run as a user's would be, with a model's name and ``--args``; without ``--models`` it has to have a
``configs()`` whose keys are names. Each is audited and fixed by the command itself, in processes of their own, so that
kernels after are those of a second audit. With ``--keep-all`` every site that is right stays, whether or not it wins.
The predicted time of a fused site (its measured time before, less the share that the audit expected to save) is held
against the measured one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from models import load_script

COMMAND = [sys.executable, "-m", "auditor"]


def fixed(script: Path, name: str, arguments: Sequence[str], options: Sequence[str], cap_s: float) -> dict[str, Any]:
    """One model, audited and fixed: the fix document, with the audit after it under ``left``."""
    with tempfile.TemporaryDirectory(prefix="fixes-") as folder:
        env = {**os.environ, "FUSION_AUDIT_DIR": folder}
        result = Path(folder) / "fix.json"

        def call(*words: str) -> None:
            done = subprocess.run(
                [*COMMAND, *words], env=env, cwd=folder, capture_output=True, text=True, timeout=cap_s
            )
            if done.returncode:
                raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])

        began = time.monotonic()
        call("run", "--stop", str(script), name, *arguments)
        call("fix", *options, "--format", "json", "-o", str(result))
        document: dict[str, Any] = json.loads(result.read_text())
        document["seconds"] = time.monotonic() - began
        document["left"] = []
        if document["after_run"]:
            after = Path(folder) / "after.json"
            call("show", document["after_run"], "--format", "json", "-o", str(after))
            document["left"] = json.loads(after.read_text())["findings"]
        return document


def line_of(name: str, fix: dict[str, Any]) -> str:
    before, after = fix["before"], fix["after"]
    states = Counter(site["state"] for site in fix["sites"])
    kept = [site for site in fix["sites"] if site["state"] == "kept"]
    idle = sum(not site["calls"] for site in kept)
    worst = max((site["error"] / site["eager_error"] for site in kept if site["eager_error"]), default=0.0)
    down = 1 - after["unfused_kernels"] / before["unfused_kernels"] if before["unfused_kernels"] and kept else 0.0
    gain = fix["timing"]["patched_vs_eager"]
    return (
        f"{name:<10}{before['kernels']:>6} → {after['kernels']:<5}{before['unfused_kernels']:>6} → "
        f"{after['unfused_kernels']:<5}{down:>5.0%}  {states['kept']:>3} kept {idle:>2} idle "
        f"{states['refused']:>3} refused {states['failed']:>2} failed  error {worst:.1f} × eager  "
        f"verified {'yes' if fix['verified'] else 'NO'}  step {gain['ratio']:.2f} × "
        f"({gain['low']:.2f}–{gain['high']:.2f})  {fix['seconds']:.0f} s"
    )


def what_stays(fix: dict[str, Any]) -> list[str]:
    """A line for each rule that still finds something, and for each reason why a site was not applied."""
    lines = []
    for finding in fix["left"]:
        places = sorted({place["module"] or "-" for place in finding["places"]})
        names = ", ".join(places[:3]) + (" …" if len(places) > 3 else "")
        ops = ", ".join(op.removeprefix("aten.") for op in finding["ops"][:8])
        lines.append(f"  left: {finding['rule']} {finding['phase']} × {len(finding['places'])} [{ops}] at {names}")
    reasons = Counter((s["state"], s["rule"], s["reason"]) for s in fix["sites"] if s["state"] != "kept")
    lines += [f"  {state}: {rule} × {count}: {reason}" for (state, rule, reason), count in reasons.items()]
    return [*lines, *(f"  note: {line}" for note in fix["notes"] for line in note.splitlines()[:1])]


def prediction_errors(fixes: Sequence[dict[str, Any]]) -> list[float]:
    """Relative errors of the predicted time after, of every site that was predicted and measured."""
    sites = [site for fix in fixes for site in fix["sites"] if site.get("predicted_share") is not None]
    return [abs(s["before_us"] * (1 - s["predicted_share"]) - s["after_us"]) / s["after_us"] for s in sites]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--models", default="", help="names, separated by commas; all of them without")
    parser.add_argument("--args", default="", help="further arguments of the script, in one string")
    parser.add_argument("--keep-all", action="store_true")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    parser.add_argument("--cap", type=float, default=900.0, help="seconds for one command")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    script = options.script.resolve()
    names = options.models.split(",") if options.models else list(load_script(script).configs())
    arguments = shlex.split(options.args)
    flags = [*(["--keep-all"] if options.keep_all else []), *([] if options.compile else ["--no-compile"])]
    done: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            done[name] = fixed(script, name, arguments, flags, options.cap)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{name:<10}{error}", flush=True)
            continue
        print("\n".join([line_of(name, done[name]), *what_stays(done[name])]), flush=True)
    errors = prediction_errors(list(done.values()))
    if errors:
        print(f"predicted time after, {len(errors)} sites: median error {median(errors):.1%}, worst {max(errors):.1%}")
    if options.json:
        options.json.write_text(json.dumps(done, indent=1) + "\n")


if __name__ == "__main__":
    main()
