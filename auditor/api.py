"""From what was recorded, or from a trace file, to an audit: for Python and for the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from auditor.config import Config, load_config
from auditor.document import DeviceInfo, Overhead, Run

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.collect.recording import Recording
    from auditor.devices.describe import Device
    from auditor.engine.rules import Rule
    from auditor.graph.model import OpGraph


def load(
    trace: str | Path,
    execution_trace: str | Path | None = None,
    *,
    device: str | Path | None = None,
    config: Config | None = None,
    salvage: bool = False,
) -> Audit:
    """Audit a Kineto trace file.

    Args:
        trace: Chrome trace of ``torch.profiler``, ``.json`` or ``.json.gz``.
        execution_trace: of the same run; without it edges are inferred from shapes and order.
        device: YAML description of the device, or the name of a known one; else the trace tells which it is.
        config: settings instead of those of the nearest ``pyproject.toml``.
        salvage: of a file that is cut off or damaged audit what is whole; ``document.coverage.partial`` tells.

    Raises:
        AuditError: a file can't be used, or the two are not of one run.
    """
    from auditor.devices.describe import device_called

    return audit_trace(
        trace,
        execution_trace,
        device=device_called(device) if device else None,
        config=config,
        name=run_name(Config(), trace),
        salvage=salvage,
    )


def audit_recording(
    folder: str | Path,
    recording: Recording,
    *,
    rules: Sequence[Rule] | None = None,
    device: Device | None = None,
    config: Config | None = None,
    name: str = "",
    on_progress: Callable[[str], None] | None = None,
) -> Audit:
    """Audit what :func:`auditor.collect.launch.record_script` or :func:`record` left in ``folder``."""
    from auditor.collect.ingest import graph_from_recording

    graph = graph_from_recording(Path(folder))
    run = Run(
        name=name, source="profile", script=recording.script, torch=recording.torch,
        exit_code=recording.exit_code, notes=list(recording.notes), plan_sites=recording.plan_sites,
        plan_applied=recording.plan_applied,
    )  # fmt: skip
    overhead = Overhead(
        bare_us=_median(recording.bare_us), timing_us=_median(recording.timing_us), graph_us=recording.graph_us
    )
    device = device or _recorded_on(graph, on_progress)
    return _audit(graph, run, rules, device, config, overhead)


def audit_trace(
    trace: str | Path,
    execution_trace: str | Path | None = None,
    *,
    rules: Sequence[Rule] | None = None,
    device: Device | None = None,
    config: Config | None = None,
    name: str = "",
    max_bytes: int = 0,
    salvage: bool = False,
) -> Audit:
    """Audit a trace file; the device is looked up by what the trace says of it.

    ``max_bytes`` is the largest file to read, unpacked (0: 8 GB, and no gzip bomb); ``salvage`` as in :func:`load`.
    """
    from auditor.collect.ingest import graph_from_trace
    from auditor.devices.describe import find_device

    graph = graph_from_trace(
        Path(trace), Path(execution_trace) if execution_trace else None, max_bytes=max_bytes, salvage=salvage
    )
    device = device or find_device(graph.device_name, graph.device_kind, graph.device_properties)
    return _audit(graph, Run(name=name, source="trace"), rules, device, config, Overhead())


def run_name(config: Config, path: str | Path) -> str:
    """What a stored run is called: as the user said, else as its script or trace."""
    return config.name or re.sub(r"\.(py|json|json\.gz|gz)$", "", Path(path).name)


def _audit(
    graph: OpGraph,
    run: Run,
    rules: Sequence[Rule] | None,
    device: Device | None,
    config: Config | None,
    overhead: Overhead,
) -> Audit:
    from auditor.audit import audit_graph

    config = load_config() if config is None else config
    if rules is None:
        rules = rules_of(config)
    described_as = ""
    if device is None:
        device = _undescribed(graph)
        run.notes.append(_unknown_device(graph))
    else:
        described_as = device.name
    run.device = DeviceInfo(
        name=graph.device_name or device.name, kind=graph.device_kind or device.kind,
        peak_gbps=device.peak_gbps or 0.0, described_as=described_as,
    )  # fmt: skip
    return audit_graph(graph, rules=rules, device=device, config=config, run=run, overhead=overhead)


def _undescribed(graph: OpGraph) -> Device:
    """A device of which only name and kind are known: the savings model falls back on the trace itself."""
    from auditor.devices.describe import KINDS, Device

    kind = graph.device_kind if graph.device_kind in KINDS else "cpu"
    return Device(name=graph.device_name or kind, kind=kind)  # type: ignore[arg-type]


def _unknown_device(graph: OpGraph) -> str:
    """That nobody described the device, with the bandwidth that the graph's own kernels show."""
    from auditor.devices.describe import unknown_device_note
    from auditor.engine.achieved import achieved_bandwidth

    if graph.device_kind == "cpu":  # its curve is measured on the machine at hand, and this is another
        return unknown_device_note(graph.device_name, graph.device_kind)
    best = achieved_bandwidth(graph)
    return unknown_device_note(
        graph.device_name, graph.device_kind, graph.device_properties, achieved=str(best) if best else ""
    )


def rules_of(config: Config) -> list[Rule]:
    """Every rule that is there for a project, selected or not.

    Raises:
        AuditError: a rule file is wrong, or a selector of ``config`` names no rule.
    """
    from auditor.engine.rules import load_rules

    rules = load_rules([Path(folder) for folder in config.rules])
    config.check_selectors([(rule.id, rule.name) for rule in rules])
    return rules


def _recorded_on(graph: OpGraph, on_progress: Callable[[str], None] | None) -> Device | None:
    """The device of a run on this machine: a CPU is measured (once), an accelerator looked up."""
    from auditor.devices.calibrate import this_machine
    from auditor.devices.describe import find_device

    if graph.device_kind in ("", "cpu"):
        return this_machine(on_progress=on_progress)
    return find_device(graph.device_name, graph.device_kind, graph.device_properties)


def _median(times_us: list[float]) -> float:
    return median(times_us) if times_us else 0.0
