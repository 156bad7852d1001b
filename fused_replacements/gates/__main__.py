"""``python -m fused_replacements.gates``: compile the kernels, print the table, exit with 1 where a gate fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fused_replacements.gates.report import as_json, markdown, text
from fused_replacements.gates.run import DTYPES, WIDTHS, kernel_modules, representative, run, tasks
from fused_replacements.gates.targets import TARGETS, named


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every gate passes, 1 where one fails, 2 for a question that makes no sense."""
    options = _parser().parse_args(arguments)
    modules = [name for name in kernel_modules() if not options.kernel or name.rpartition(".")[2] in options.kernel]
    if not modules:
        names = ", ".join(name.rpartition(".")[2] for name in kernel_modules())
        print(f"no kernels of that name; there are {names}", file=sys.stderr)
        return 2
    targets = [target.name for target in options.target or TARGETS]
    if options.width or options.dtype:
        todo = tasks(modules, options.width or WIDTHS, options.dtype or DTYPES, targets)
    else:
        todo = representative(modules, targets)
    results = []
    for result in run(todo, options.jobs):
        results.append(result)
        if sys.stderr.isatty():
            print(f"\r{len(results)} kernels compiled", end="\r", file=sys.stderr)
    print(markdown(results) if options.markdown else text(results))
    if options.json:
        options.json.write_text(as_json(results))
    return int(any(result.failed for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fused_replacements.gates",
        description="Compile every Triton kernel ahead of time, no GPU needed, and judge its code. --target, --kernel, "
        "--width and --dtype may be given several times. Without --width and --dtype, representative pairs of them are "
        "compiled; with either, all pairs.",
    )
    parser.add_argument("--target", action="append", type=named, help="sm_80, sm_90, sm_100 or gfx942 (all)")
    parser.add_argument("--kernel", action="append", help="a module of fused_replacements.kernels (all)")
    parser.add_argument("--width", action="append", type=int, help="elements of a row")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--jobs", type=int, help="processes that compile (one for each processor)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result to FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
