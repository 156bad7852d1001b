"""Recall against truth: what others established by reading models and traces, beside what an audit finds in them.

    python benchmarks/truth.py [--trace NAME …] [--format text|json]

For each trace of ``../shared/traces`` that ``truth.json`` knows: its patterns with the number of true sites, how many
of them one site of ours covers, and what became of the others; the traps that a tool by adjacency falls into; how much
of our findings no list of the truth holds (which is no proof that they are wrong); counts and sums. Everything is
compared by kernels, never by names. It reports, and judges nothing: ``tests/integration/test_truth.py`` does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

from truth_sites import STATES, TRUTH, Held, Pattern, truths
from truth_traps import traps_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", choices=sorted(truths()) if TRUTH.is_file() else None)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    asked = parser.parse_args()
    if not TRUTH.is_file():
        sys.exit(f"truth: no {TRUTH}; the shared traces are needed, which are not part of the repository")
    tables = []
    for name in asked.trace or truths():
        table = table_of(name)
        tables.append(table)
        if asked.format == "text":
            print("\n".join(lines_of(table)), flush=True)
    if asked.format == "json":
        print(json.dumps(tables, indent=1))


def table_of(name: str) -> dict[str, Any]:
    """All that is compared for one trace, as plain data. Times in microseconds."""
    held = Held(name)
    totals, coverage = held.audit.document.totals, held.audit.document.coverage
    link = held.truth["link"]
    return {
        "trace": name,
        "kernels": {"ours": totals.kernels, "truth": held.truth["kernels"]},
        "linked": {"ours": coverage.linked, "truth": link["in_cpu_op"]},
        "patterns": [_pattern(p) for p in held.patterns()],
        "traps": [{"trap": t.name, "places": t.places, "flagged": t.flagged} for t in traps_of(held)],
        "kernels_in_two_sites": sum(len(sites) > 1 for sites in held.holders.values()),
        "savings_beyond_time": sum(f.saving.likely_us > f.device_us for f in held.audit.findings),
        "saving_us": totals.saving.likely_us,
        "sites_us": sum(held.dur_us(ours.kernels) for ours in held.sites),
        "unlisted": _unlisted(held),
    }


def _pattern(pattern: Pattern) -> dict[str, Any]:
    return {
        "pattern": pattern.name, "kind": pattern.kind, "sites": pattern.sites, "recall": round(pattern.recall, 4),
        "states": {s: pattern.states[s] for s in STATES if pattern.states[s]},
        "rules": dict(sorted(pattern.rules.items())), "true_us": pattern.true_us, "ours_us": round(pattern.ours_us, 1),
        "reasons": [reason for reason, _ in pattern.reasons.most_common(3)],
    }  # fmt: skip


def _unlisted(held: Held) -> dict[str, Any]:
    """Kernels of our findings that no pattern of the truth holds, by rule."""
    kernels: Counter[str] = Counter()
    for ours in held.sites:
        kernels[ours.finding.rule] += len(ours.kernels - held.listed)
    return {
        "kernels": {rule: n for rule, n in sorted(kernels.items()) if n},
        "of": sum(len(ours.kernels) for ours in held.sites),
        "in_truth": held.truth.get("unlisted_memory_bound"),
    }


def lines_of(table: dict[str, Any]) -> list[str]:
    """The table of one trace as text."""
    kernels, linked = table["kernels"], table["linked"]
    lines = [
        f"{table['trace']}: {kernels['ours']} kernels (truth {kernels['truth']}), "
        f"{linked['ours']} linked to an op (truth {linked['truth']})",
        f"  {'kind':<15} {'sites':>5} {'recall':>6} {'µs':>8} {'ours':>8}  pattern",
    ]
    lines += [line for pattern in table["patterns"] for line in _pattern_lines(pattern)]
    for trap in table["traps"]:
        lines.append(f"  trap: {trap['flagged']} of {trap['places']} flagged: {trap['trap']}")
    unlisted = table["unlisted"]
    outside = sum(unlisted["kernels"].values())
    by_rule = ", ".join(f"{rule} {n}" for rule, n in unlisted["kernels"].items())
    lines += [
        f"  findings hold {unlisted['of']} kernels, {outside} of them in no list of the truth ({by_rule or 'none'})",
        f"  saving {table['saving_us']:.0f} µs of {table['sites_us']:.0f} µs in our sites; "
        f"{table['kernels_in_two_sites']} kernels in two sites; "
        f"{table['savings_beyond_time']} findings that save more than they take",
        "",
    ]
    return lines


def _pattern_lines(pattern: dict[str, Any]) -> list[str]:
    states = ", ".join(f"{n} {state}" for state, n in pattern["states"].items())
    rules = " ".join(pattern["rules"])
    lines = [
        f"  {pattern['kind']:<15} {pattern['sites']:>5} {pattern['recall']:>6.0%} {pattern['true_us']:>8.0f} "
        f"{pattern['ours_us']:>8.0f}  {pattern['pattern']}",
        f"  {'':<15} {'':<5} {'':<6} {'':<8} {'':<8}    {states or 'kernels are not listed'} {rules}",
    ]
    if pattern["recall"] < 1:
        lines += [f"  {'':<47}    {reason}" for reason in pattern["reasons"]]
    return lines


if __name__ == "__main__":
    main()
