"""Every replacement on this CPU: against eager, against torch.compile, peak memory, and what a call costs.

    python benchmarks/replacements.py                     all, forward and with backward; prints a Markdown table
    python benchmarks/replacements.py --json FILE         and keeps the figures in FILE, the table beside it (.md)
    python benchmarks/replacements.py --only rms_norm     one replacement (may be repeated)
    python benchmarks/replacements.py --quick             the first variant of each, few rounds

Each variant runs as its definition op by op (eager), as torch.compile(dynamic=False) of the same definition, as the
replacement, and as PyTorch's own fused op where there is one. A ratio is that of the medians over rounds, with its
95 % bootstrap interval; above 1 the replacement is faster. Peak memory is what one call allocates, inputs left out.
The overhead is the time of a call at 4 × 64 elements less that of the eager one.

Verdicts, of which a patcher reads the first word:
  target met   faster than eager, at least 0.95 × torch.compile, at least the anchor against eager where there is one
               (on a CPU, forward, fp32), and at most 5 µs over eager at tiny shapes
  wins         faster than eager, and the column says which target is missed
  noise        the interval of the ratio to eager spans more than a factor of 1.5: measure again, on a quiet machine
  even         the interval of the ratio to eager holds 1
  loses        slower than eager
  unfused      the replacement would run its definition, and says why
  error        it raised
First variants come first; what does not fit in --minutes is left out, and said.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from savings import ALLOCATOR, with_allocator  # noqa: E402

DTYPES: Final = ("fp32", "bf16", "fp16")
TINY: Final = (4, 64)
COMPILER_SHARE: Final = 0.95
OVERHEAD_US: Final = 5.0
NOISE: Final = 1.5
"""An interval from one end to the other this wide says nothing of the ratio in it."""


class Anchor(NamedTuple):
    """What compiled code reached against eager on a CPU, in fp32, forward."""

    name: str
    labels: str
    """A pattern for the variants that it is about."""
    ratio: float


ANCHORS: Final = (
    Anchor("elementwise_chain", "", 2.6),
    Anchor("rms_norm", "^llama$", 3.15),
    Anchor("add_rms_norm", "^llama$", 1.9),
    Anchor("act_mul", "^silu", 1.65),
    Anchor("bias_act", "^gelu$", 2.0),
    Anchor("softmax", "scale, padding mask", 1.75),
    Anchor("rope", "^half-split", 1.9),
)


def anchor(name: str, label: str, which: str, dtype: str) -> float | None:
    """The ratio to eager that is wanted, or None where only the compiler is the measure."""
    if which != "forward" or dtype != "fp32":
        return None
    return next((a.ratio for a in ANCHORS if a.name == name and re.search(a.labels, label)), None)


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` with its verdict, and each missed target as ``{target, wanted, found}``."""
    if row.get("error"):
        return row | {"verdict": "error", "missed": []}
    if row["unfused"]:
        return row | {"verdict": "unfused", "missed": []}
    missed = list(_missed(row))
    eager = row["against"]["eager"]
    if eager["high"] > NOISE * eager["low"]:
        word = "noise"
    elif eager["high"] < 1:
        word = "loses"
    elif eager["low"] <= 1:
        word = "even"
    else:
        word = "wins" if missed else "target met"
    return row | {"verdict": word, "missed": missed}


def _missed(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    wanted = anchor(row["name"], row["variant"], row["pass"], row["dtype"])
    if wanted is not None and row["against"]["eager"]["ratio"] < wanted:
        yield {"target": "eager", "wanted": wanted, "found": row["against"]["eager"]["ratio"]}
    compiler = row["against"].get("compile")
    if compiler is not None and compiler["ratio"] < COMPILER_SHARE:
        yield {"target": "compile", "wanted": COMPILER_SHARE, "found": compiler["ratio"]}
    if row["overhead_us"] > OVERHEAD_US:
        yield {"target": "overhead_us", "wanted": OVERHEAD_US, "found": row["overhead_us"]}


COLUMNS: Final = (
    ("replacement", "---"), ("variant", "---"), ("pass", "---"), ("eager µs", "---:"), ("fused µs", "---:"),
    ("× eager", "---:"), ("× compile", "---:"), ("others", "---"), ("peak MB", "---:"), ("overhead µs", "---:"),
    ("verdict", "---"),
)  # fmt: skip


def table(document: dict[str, Any]) -> str:
    """The document as Markdown."""
    machine = document["machine"]
    lines = [
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, {document['dtype']}, "
        f"{document['rows']} × {document['width']} elements where no other number of rows is given.",
        "",
        "| " + " | ".join(name for name, _ in COLUMNS) + " |",
        "|" + "|".join(rule for _, rule in COLUMNS) + "|",
        *(_line(row, document["rows"]) for row in document["results"]),
        "",
        _counts(document),
    ]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any], rows: int) -> str:
    where = row["variant"] + (f" ({row['rows']} rows)" if row.get("rows", rows) != rows else "")
    start = f"| {row['name']} | {where.replace('|', '/')} | {row['pass']} |"
    if row["verdict"] == "error":
        return f"{start} | | | | | | | error: {row['error']} |"
    against, peak = row["against"], row["peak_bytes"]
    others = ", ".join(f"{name} {_times(r)}" for name, r in against.items() if name not in ("eager", "compile"))
    memory = " → ".join(f"{peak[name] / 2**20:.1f}" for name in ("eager", "compile", "fused") if name in peak)
    compiler = _times(against["compile"]) if "compile" in against else "can't compile"
    return (
        f"{start} {row['us']['eager']:.0f} | {row['us']['fused']:.0f} | {_times(against['eager'])} | {compiler} | "
        f"{others} | {memory} | {row['overhead_us']:+.1f} | {_verdict(row)} |"
    )


def _times(ratio: dict[str, float]) -> str:
    return f"{ratio['ratio']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"


def _verdict(row: dict[str, Any]) -> str:
    if row["verdict"] == "unfused":
        return f"unfused: {row['unfused']}"
    texts = {"eager": "{:.2f} × eager", "compile": "{:.2f} × compile", "overhead_us": "{:.0f} µs a call"}
    missed = [f"{texts[m['target']].format(m['wanted'])}" for m in row["missed"]]
    joint = ", but misses" if row["verdict"] == "wins" else "; also misses"
    return row["verdict"] + (f"{joint} {', '.join(missed)}" if missed else "")


def _counts(document: dict[str, Any]) -> str:
    verdicts = [row["verdict"] for row in document["results"]]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(sorted(verdicts)))
    left_out = f" Out of time, not measured: {', '.join(document['left_out'])}." if document["left_out"] else ""
    return f"{len(verdicts)} measured: {counts}.{left_out}"


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The document: machine, sizes, one result for each replacement, variant and pass."""
    import torch
    import triton
    from optimizer_steps import measurable
    from replacement_calls import Size, fitting_rows, labels
    from replacement_measure import LARGE_CALL_BYTES, Effort, peak_bytes

    from fused_replacements import find, replacements

    torch.set_num_threads(options.threads or torch.get_num_threads())
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options.dtype]
    size = Size(options.rows, options.width, dtype, torch.device("cpu"))
    effort = Effort(7, 0.7, 5, 40) if options.quick else Effort()
    chosen = list(map(measurable, map(find, options.only) if options.only else replacements()))
    deadline = time.monotonic() + 60 * options.minutes
    results: list[dict[str, Any]] = []
    left_out: list[str] = []
    rows: dict[str, int] = {}
    depth = 1 if options.quick else max(len(labels(r)) for r in chosen)
    for place in range(depth):
        for replacement in chosen:
            if place >= len(labels(replacement)):
                continue
            label = labels(replacement)[place]
            if time.monotonic() > deadline:
                left_out.append(f"{replacement.name} ({label})")
                continue
            name = replacement.name
            if name not in rows:
                rows[name] = fitting_rows(replacement, size, LARGE_CALL_BYTES, peak_bytes)
            results += one(replacement, label, size._replace(rows=rows[name]), options.dtype, effort)
    order = [r.name for r in chosen]
    results.sort(key=lambda row: order.index(row["name"]))
    return {
        "version": 1,
        "machine": {
            "processor": processor(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
            "allocator": "default" if options.default_malloc else ALLOCATOR,
        },
        "dtype": options.dtype,
        "rows": options.rows,
        "width": options.width,
        "results": results,
        "left_out": left_out,
    }


def one(replacement: Any, label: str, size: Any, dtype: str, effort: Any) -> Iterator[dict[str, Any]]:
    """The results of one variant, one for each pass. What raises becomes an error, and the run goes on."""
    from replacement_calls import Call, passes, sample_of
    from replacement_measure import measure

    for which in passes(replacement):
        print(f"  {replacement.name}: {label}, {which}", file=sys.stderr, flush=True)
        row = {
            "name": replacement.name, "family": replacement.family, "variant": label, "pass": which,
            "dtype": dtype, "rows": size.rows, "width": size.width,
        }  # fmt: skip
        try:
            call = Call.of(replacement, sample_of(replacement, label, size))
            tiny = Call.of(replacement, sample_of(replacement, label, size._replace(rows=TINY[0], width=TINY[1])))
            figures = measure(call, tiny, which, effort)
            figures["against"] = {name: dataclasses.asdict(ratio) for name, ratio in figures["against"].items()}
            yield judged(row | figures)
        except Exception as error:
            yield judged(row | {"error": f"{type(error).__name__}: {str(error)[:300]}"})


def processor() -> str:
    """The CPU's model as the kernel names it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def _unknown(names: Sequence[str]) -> str | None:
    """That some of ``names`` are no replacements, or None."""
    from fused_replacements._registry import HOME

    wrong = [name for name in names if name not in HOME]
    return f"no replacement is called {', '.join(map(repr, wrong))}; there are {', '.join(HOME)}" if wrong else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this replacement only; may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, and the table beside it")
    parser.add_argument("--quick", action="store_true", help="the first variant of each, few rounds")
    parser.add_argument("--minutes", type=float, default=12.0, help="start no further variant after so long")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; all by default")
    parser.add_argument("--default-malloc", action="store_true", help="leave the allocator as it is")
    options = parser.parse_args()
    unknown = _unknown(options.only or [])
    if unknown:
        print(unknown, file=sys.stderr)
        return 2
    with_allocator(options)
    document = measured(options)
    text = table(document)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
        options.json.with_suffix(".md").write_text(text, encoding="utf-8")
    return 1 if any(row["verdict"] == "error" for row in document["results"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
