"""A device's description to start from: what a trace knows is filled in, the rest is asked for."""

from __future__ import annotations

import glob
from pathlib import Path

import yaml

from auditor.devices.match import gib
from auditor.errors import AuditError
from auditor.graph.model import DeviceProperties

TEMPLATE = """\
{origin}
name: {name}
kind: {kind}                     # cuda hip xpu
match: [{match}]
{arch}
{multiprocessors}
{warp_size}
{memory_bytes}
# Fill in from the data sheet, with its source below. What is left out is taken from each trace itself.
# peak_gbps: 1000              # memory bandwidth in GB/s (1e9 bytes per second)
# achievable: 0.88             # fraction of it that a good streaming kernel reaches{achieved}
# cache_bytes: 52428800        # last-level cache
# launch_us: 5.0               # host time of one launch
# min_kernel_us: 1.5           # duration of a kernel that does next to nothing
# tflops: {{f32: 60, tf32: 400, bf16: 800, f16: 800, f8: 1600, i8: 1600}}   # dense: sheets often say "with sparsity"
sources:
  match: {source}
# peak_gbps: "title and address of the data sheet"
"""


def skeleton(
    name: str, kind: str, properties: DeviceProperties | None = None, *, source: str = "", achieved: str = ""
) -> str:
    """A valid description with what is known; ``source`` is the trace's name, ``achieved`` its best bandwidth."""
    known = properties or DeviceProperties()
    compute = ".".join(map(str, known.compute or ()))
    sm = f"sm_{compute.replace('.', '')}" if kind == "cuda" and compute else None
    return TEMPLATE.format(
        origin=f"# From what {_one_line(source)} says of its device." if source else "# A device of your own.",
        name=_scalar(name or "my device"),
        kind=kind,
        match=_scalar(glob.escape(name)) if name else "",
        arch=_figure("arch", sm, f"gfx name; the trace says {compute}" if compute else "sm_90, gfx942"),
        multiprocessors=_figure("multiprocessors", known.multiprocessors, "SMs or CUs that the runtime shows"),
        warp_size=_figure("warp_size", known.warp_size, "32, or 64 on AMD Instinct"),
        memory_bytes=_figure(
            "memory_bytes", known.memory_bytes, gib(known.memory_bytes) if known.memory_bytes else "85899345920: 80 GiB"
        ),
        achieved=f"; the trace's own: {_one_line(achieved)}" if achieved else "",
        source=_scalar(f"deviceProperties of {source}" if source else "where the name is from"),
    )


def new_device(path: Path, text: str) -> None:
    """Write ``text`` to ``path``. Raises AuditError for a file that exists, can't be written or is no ``.yaml``."""
    if path.suffix != ".yaml":
        raise AuditError(f"{path}: a description is a .yaml file; name it {path.stem or 'my_device'}.yaml")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise AuditError(f"{path}: exists already; choose another name or remove it first") from None
    except OSError as error:
        raise AuditError(f"{path}: can't be written ({error.strerror or error})") from None


def _figure(name: str, value: object, remark: str) -> str:
    return f"{name}: {value}" if value else f"# {name}:  # {remark}"


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _scalar(text: str) -> str:
    """``text`` as a quoted YAML scalar on one line: names of devices are the work of others."""
    shown = text.encode("utf-8", errors="replace").decode("utf-8")
    dumped: str = yaml.safe_dump(shown, default_style='"', allow_unicode=True, width=float("inf"))
    return dumped.strip()
