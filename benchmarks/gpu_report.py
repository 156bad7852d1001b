"""The document of ``gpu.py`` as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def markdown(document: dict[str, Any]) -> str:
    machine = document["machine"]
    parts = [
        f"{machine['device']}, torch {machine['torch']}, triton {machine['triton']}. "
        + (
            "Triton's interpreter: the times mean nothing."
            if document["interpreted"]
            else "Times with a cold L2 cache."
        ),
        "## Numerics",
        "The largest error of outputs and gradients as a share of what is allowed: twice the error of eager against "
        "fp64, plus rounding. Over 1 is wrong.",
        "\n".join(_numerics(document)),
        "## Speed",
        "× is how often faster than that implementation; *of copy* is the bytes that a perfect kernel moves over the "
        "time it took, as a share of the bandwidth of a copy of as many bytes; *host* is what the CPU spends on a "
        "call, from eager to fused; *peak* what a call allocates, by way of compile.",
        "\n".join(_speed(document)),
    ]
    if document["not_run"]:
        parts.append(f"Out of time, not run: {', '.join(document['not_run'])}.")
    return "\n\n".join([*parts, _end(document)]) + "\n"


def _numerics(document: dict[str, Any]) -> Iterator[str]:
    dtypes = list(dict.fromkeys(row["dtype"] for row in document["checks"] if "dtype" in row))
    yield f"| replacement | variants | {' | '.join(dtypes)} | what is wrong |"
    yield f"|---|---:|{'---:|' * len(dtypes)}---|"
    for name in dict.fromkeys(row["name"] for row in document["checks"]):
        mine = [row for row in document["checks"] if row["name"] == name]
        cells = []
        for dtype in dtypes:
            shares = [row["worst"] for row in mine if row.get("dtype") == dtype and "worst" in row]
            cells.append(f"{max(shares):.2f}" if shares else "-")
        variants = len({row["variant"] for row in mine if "variant" in row})
        yield f"| {name} | {variants} | {' | '.join(cells)} | {_cell('; '.join(dict.fromkeys(map(_wrong, mine))))} |"


def _wrong(row: dict[str, Any]) -> str:
    found = (
        [row["error"]] if row.get("error") else row.get("problems") or [row["unfused"]] if row.get("unfused") else []
    )
    where = ", ".join(str(row[key]) for key in ("variant", "dtype") if key in row)
    return f"{where}: {'; '.join(found)}" if found else ""


def _speed(document: dict[str, Any]) -> Iterator[str]:
    head = (
        "replacement",
        "variant",
        "pass",
        "fused µs",
        "GB/s",
        "of copy",
        "× eager",
        "× compile",
        "× others",
        "host µs",
    )
    yield f"| {' | '.join((*head, 'peak MB', 'remarks'))} |"
    yield f"|---|---|---|{'---:|' * 5}---|---:|---:|---|"
    for row in document["times"]:
        start = f"| {row['name']} | {_cell(row.get('variant', ''))} | {row.get('pass', '')} |"
        if row.get("error"):
            yield f"{start}{' |' * 8} {_cell(row['error'])} |"
            continue
        against = row["against"]
        others = ", ".join(f"{name} {ratio:.2f}" for name, ratio in against.items() if name not in ("eager", "compile"))
        compiler = f"{against['compile']:.2f}" if "compile" in against else "-"
        peak = [row["peak_bytes"].get(name, 0) for name in ("eager", "compile", "fused")]
        memory = " → ".join(f"{size / 2**20:.0f}" for size in peak if size)
        host = " → ".join(f"{row['host_us'][name]:.0f}" for name in ("eager", "fused"))
        remarks = "; ".join([*(f"{name} can't: {why}" for name, why in row["failures"].items()), row["unfused"] or ""])
        yield (
            f"{start} {row['us']['fused']['us']:.1f} | {row['gb_per_s']:.0f} | {row['of_copy']:.0%} | "
            f"{against['eager']:.2f} | {compiler} | {others} | {host} | {memory} | {_cell(remarks)} |"
        )


def _cell(text: str) -> str:
    """Text that can't end its cell."""
    return " ".join(text.replace("|", "/").strip("; ").split())


def _end(document: dict[str, Any]) -> str:
    checks, times = len(document["checks"]), len(document["times"])
    return f"{checks} checks, {times} times, {document['faults']} faults, {document['seconds']:.0f} s."
