"""``fusion-audit devices``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from auditor.cli.output import remark, visible
from auditor.cli.parser import Command

if TYPE_CHECKING:
    from auditor.devices.describe import Device


class DevicesCommand(Command):
    """List, explain, match or start descriptions of devices.

    fusion-audit devices list            every described device, your own first
    fusion-audit devices show NAME       its figures, each with its source (a name of the list, or a file)
    fusion-audit devices match TRACE     what a trace says of its device, and whose figures its audit uses
    fusion-audit devices new FILE.yaml   write a description to start from, with --from TRACE what that knows

    Your own descriptions are used by --device FILE, or always when they lie in the folder that list names.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|match|new")
        adders = {"list": None, "show": _add_device, "match": _add_trace, "new": _add_new}
        for action, add in adders.items():
            sub = actions.add_parser(action, prog=f"fusion-audit devices {action}", allow_abbrev=False)
            if add is not None:
                add(sub)

    def run(self, args: argparse.Namespace) -> int:
        return {"list": _list, "show": _show, "match": _match, "new": _new}[args.action](args)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="NAME", help="name of the device or of its file, or a path")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE.json[.gz]", type=Path, help="Chrome trace of torch.profiler")


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.yaml", type=Path, help="file to write")
    parser.add_argument("--from", dest="trace", metavar="TRACE", type=Path, help="trace recorded on the device")


def _list(_args: argparse.Namespace) -> int:
    from auditor.devices.describe import BUILT_IN, described, user_folder

    own = list(described(user_folder()))
    for stem, device in (*own, *described(BUILT_IN)):
        peak = f"{device.peak_gbps:,.0f} GB/s" if device.peak_gbps else "-"
        memory = f"{device.memory_bytes / 2**30:.0f} GB" if device.memory_bytes else "-"
        print(visible(f"{stem:<16}{device.kind:<6}{device.arch or '-':<8}{memory:>7}{peak:>12}  {device.name}"))
    remark(f"your own descriptions: {len(own)} in {user_folder()}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from auditor.devices.describe import device_called

    device = device_called(args.device)
    print(visible(f"{device.name} ({device.kind})"))
    for figure, value in _figures(device):
        print(visible(f"  {figure:<18}{value}"))
        if source := device.sources.get(figure):
            print(visible(f"  {'':<18}from: {source}"))
    return 0


def _figures(device: Device) -> list[tuple[str, str]]:
    """Every figure that is known, in the order of a description."""
    found = []
    for field in msgspec.structs.fields(type(device)):
        figure, value = field.name, getattr(device, field.name)
        if figure in ("name", "kind", "sources") or value in (field.default, (), {}):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{dtype} {rate:g}" for dtype, rate in value.items())
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        found.append((figure, f"{value:,}" if isinstance(value, int) and value is not True else str(value)))
    return found


def _match(args: argparse.Namespace) -> int:
    from auditor.collect.kineto import load_trace
    from auditor.devices.describe import find_device, unknown_device_note

    trace = load_trace(args.trace)
    name, kind, properties = trace.device_name, trace.device_kind, trace.device.properties
    compute = ".".join(map(str, properties.compute or ())) or "-"
    print(visible(f"name              {name or '-'}"))
    print(f"kind              {kind}")
    print(f"multiprocessors   {properties.multiprocessors or '-'}")
    print(f"warp size         {properties.warp_size or '-'}")
    print(f"memory            {f'{properties.memory_bytes:,} bytes' if properties.memory_bytes else '-'}")
    print(f"compute           {compute}")
    device = find_device(name, kind, properties)
    print(visible(f"described as      {device.name if device else '-'}"))
    if device is None and kind != "cpu":
        remark(unknown_device_note(name, kind, properties))
    return 0


def _new(args: argparse.Namespace) -> int:
    from auditor.devices.skeleton import new_device, skeleton

    new_device(args.file, _known(args.trace) if args.trace else skeleton("", "cuda"))
    print(visible(str(args.file)))
    return 0


def _known(path: Path) -> str:
    """A description with what a trace says of its device, and the bandwidth that its kernels reached."""
    from auditor.collect.ingest import graph_from_trace
    from auditor.devices.skeleton import skeleton
    from auditor.engine.achieved import achieved_bandwidth
    from auditor.errors import AuditError

    graph = graph_from_trace(path)
    if graph.device_kind == "cpu":
        raise AuditError(f"{path}: no kernel of an accelerator in it; give a trace that was recorded on the device")
    best = achieved_bandwidth(graph)
    return skeleton(
        graph.device_name, graph.device_kind, graph.device_properties,
        source=path.name, achieved=str(best) if best else "",
    )  # fmt: skip


COMMAND = DevicesCommand()
