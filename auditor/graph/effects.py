"""What an op does to storage, by its name: new tensor, view, or new version. Reading and printing SSA text share it."""

from __future__ import annotations

from dataclasses import dataclass

from auditor.graph.infer import TensorType, infer, version_of
from auditor.graph.model import Arg, Value
from auditor.graph.ops import base_name, kind_of

TEXT_KEYWORDS = ("kernels", "mutates")
"""Keywords of the text itself: how many kernels an op launched, and what it overwrites beyond its name."""


@dataclass(frozen=True, slots=True)
class Result:
    """One result to be: its type, whose storage it lies in (``None``: its own), and what it is a view of."""

    type: TensorType
    storage_of: Value | None = None
    base: Value | None = None


def expected_results(name: str, args: tuple[Arg, ...], mutates: tuple[Value, ...]) -> list[Result] | None:
    """Results of ``name(*args)`` as its name tells; ``None`` where it does not.

    :raises ValueError: where the arguments do not fit the op.
    """
    if base_name(name) != name:
        return [Result(version_of(v), v) for v in mutates]
    known = infer(name, args)
    if known is None:
        return None
    base = args[0] if known.aliases and isinstance(args[0], Value) else None
    return [Result(t, base, base) for t in known.types]


def default_kernels(name: str, aliases: bool) -> int:
    """None for a view, an allocation or a read by the host; one for everything else."""
    return 0 if aliases or kind_of(name) in ("allocation", "sync") else 1
