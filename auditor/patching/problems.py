"""What keeps replacements of a patched model from running, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import TYPE_CHECKING

from torch._dynamo import config

if TYPE_CHECKING:
    from auditor.patching.live import Patched


def problems(patched: Patched) -> list[str]:
    """Applied and never called, failed when it ran, graph breaks, too many graphs, graphs that could not be read."""
    return [*_of_plan(patched), *_of_sites(patched), *_of_graphs(patched)]


def _of_plan(patched: Patched) -> Iterator[str]:
    """Planned sites that no graph had, once there are graphs."""
    if not patched.sites and not patched.compiles:
        return
    applied = {astuple(site.key) for site in patched.sites if site.chosen is not None}
    reasons = {astuple(site.key): site.reason for site in patched.sites}
    for site in patched.planned:
        if site.key not in applied:
            why = reasons.get(site.key) or "it was not found in the model"
            yield f"{site.rule} at {site.module or 'the model itself'}, which the plan keeps, is not applied: {why}."


def _of_sites(patched: Patched) -> Iterator[str]:
    for site in patched.sites:
        name = f"{site.key.rule} at {site.key.module or 'the model itself'}"
        if site.failure:
            yield f"{name}: {site.failure}; the separate ops ran in its place."
        elif site.chosen is not None and not site.calls:
            yield f"{name} was applied and never called."
    for module in patched.bound:
        if module.reason:
            yield f"{module.path or 'the model itself'} keeps its own forward: {module.reason}."


def _of_graphs(patched: Patched) -> Iterator[str]:
    for failure in dict.fromkeys(frame.failure for frame in patched.rewriter.frames if frame.failure):
        yield f"A graph could not be looked at: {failure}."
    for reason in patched.graph_breaks:
        yield f"The model falls into several graphs, and no site spans two: {reason.splitlines()[0]}"
    if patched.compiles >= config.recompile_limit:  # calls unlike all these graphs run the model as it is
        yield (
            f"The model was traced {patched.compiles} times: something in it changes from call to call, and each "
            "change is traced anew."
        )
    if patched.unpatched_calls:
        calls = "1 call" if patched.unpatched_calls == 1 else f"{patched.unpatched_calls} calls"
        yield f"{calls} ran without replacements: Dynamo traces no more of this model."
