"""Sentences about a recording that a reader of its audit must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def first_step_only(graph_is_first_step: bool, timing: int, dropped: bool) -> list[str]:
    """What it means that there is no graph, or no timing, of a step after warm-up."""
    notes = []
    if graph_is_first_step:
        notes.append("The graph is that of the first step, which includes warm-up: no later step took its place.")
    if dropped:
        notes.append("Later steps had other input shapes than the recorded one: their times were left out.")
    if timing == 0:
        notes.append("Times come from the graph pass, which slows small ops down: no other step was alike.")
    return notes


def not_recorded(calls: Mapping[str, int], recorded: Sequence[str]) -> list[str]:
    """Outermost modules that are not part of the recorded step."""
    missed = [f"{name} ({n} call{'s' if n > 1 else ''})" for name, n in calls.items() if name not in recorded]
    if not missed:
        return []
    return [f"Called outside the recorded step ({' → '.join(recorded)}) and not recorded: {', '.join(missed)}."]


def other_threads() -> str:
    return "Modules were also called on other threads; one thread was recorded."


def compiled() -> str:
    return "Part of the step is compiled by torch.compile: module paths and source lines end there."


def patched() -> str:
    """In place of :func:`compiled` where a plan was applied: its patch leads calls through compiled code, too."""
    return "Part of the step is traced to apply the plan: module paths and source lines end there."
