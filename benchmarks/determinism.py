"""Whether the same script gives the same counts: every run in a process of its own, none like the one before.

``python benchmarks/determinism.py [--runs 20] [SCRIPT [ARGS…]]`` audits three scripts of ``examples/`` (or the one that
is named) so many times, with one and two threads in turns and another seed for Python's hashes each time, and prints
what was counted how often. Exit code 1 where two runs differ.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from auditor.gate.measures import KINDS
from auditor.gate.snapshot import snapshot_of
from auditor.gate_document import Snapshot
from auditor.store import Store

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = (
    ("llama_block.py", "--layers=2", "--hidden=128", "--length=64"),
    ("custom_architecture.py",),
    ("training_loop.py",),
)
THREADS = (1, 2)
COUNTED = tuple(kind.key for kind in KINDS.values() if kind.counted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("script", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    scripts = [tuple(args.script)] if args.script else [(str(EXAMPLES / name), *words) for name, *words in SCRIPTS]
    same = [same_in_all(script, args.runs) for script in scripts]
    sys.exit(0 if all(same) else 1)


def same_in_all(script: tuple[str, ...], runs: int) -> bool:
    """Audit ``script`` so many times; prints a table, and whether all were the same."""
    counts = Counter(counted(audited(script, number)) for number in range(runs))
    print(f"\n{' '.join((Path(script[0]).name, *script[1:]))}: {max(counts.values())} of {runs} runs are the same")
    print(f"  {'runs':>4}", *(f"{key:>18}" for key in COUNTED), f"{'findings':>9}")
    for (figures, findings), times in counts.most_common():
        print(f"  {times:>4}", *(f"{value:>18,.0f}" for value in figures), f"{len(findings):>9}", flush=True)
    if len(counts) > 1:
        common = set.intersection(*(set(findings) for _, findings in counts))
        for _, findings in counts:
            print("  not in all:", *(set(findings) - common), sep="\n    ")
    return len(counts) == 1


def audited(script: tuple[str, ...], number: int) -> Snapshot:
    """One run in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        own = {
            "OMP_NUM_THREADS": str(THREADS[number % len(THREADS)]), "PYTHONHASHSEED": str(number),
            "FUSION_AUDIT_DIR": folder,
        }  # fmt: skip
        command = [sys.executable, "-m", "auditor", "run", "--stop", "--steps=1", "-o", os.devnull, *script]
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr}")
        with Store.open(str(Path(folder) / "audits.db"), create=False) as store:
            return snapshot_of(store.load().document)


def counted(snapshot: Snapshot) -> tuple[tuple[float, ...], tuple[tuple[object, ...], ...]]:
    """What has to be equal: the counted figures, and of each finding everything but times."""
    figures = tuple(getattr(snapshot.figures, key) for key in COUNTED)
    findings = (
        (
            f.fingerprint,
            f.rule,
            f.module_class,
            f.phase,
            f.source,
            tuple(f.modules),
            f.sites,
            f.kernels,
            f.avoidable,
            f.bytes,
        )
        for f in snapshot.findings
    )
    return figures, tuple(findings)


if __name__ == "__main__":
    main()
