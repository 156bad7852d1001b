"""The kernels of a run by the ops that launched them: what is the same op in another run, on another device."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from auditor.document import Document
from auditor.engine.per_step import steps_of_ops, steps_of_unlinked
from auditor.gate.measures import steps_of
from auditor.gate.whole_steps import whole_steps
from auditor.graph.model import Kernel, Op, OpGraph
from auditor.graph.ops import portable_name
from auditor.kernels import classify, family_of_op

_SHAPES = 4
"""Shapes of inputs that are told: of a list of tensors the first few."""
_INSTANCE = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of an op. Of a kernel that no op holds ``op`` is empty and ``shapes`` its name."""

    op: str
    phase: str = ""
    module: str = ""
    module_class: str = ""
    shapes: str = ""
    family: str = ""


@dataclass(slots=True)
class Group:
    """Ops of one key over a recording."""

    ops: int = 0
    kernels: int = 0
    device_us: float = 0.0
    names: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """µs by name of the kernel."""

    def take(self, kernels: tuple[Kernel, ...]) -> None:
        self.ops += 1
        for kernel in kernels:
            self.kernels += not kernel.is_transfer
            self.device_us += kernel.dur_us
            self.names[kernel.name] += kernel.dur_us

    def join(self, other: Group) -> None:
        self.ops += other.ops
        self.kernels += other.kernels
        self.device_us += other.device_us
        for name, time_us in other.names.items():
            self.names[name] += time_us


@dataclass(frozen=True, slots=True)
class Side:
    """One run: its groups over ``steps`` whole steps."""

    groups: dict[Key, Group]
    steps: int


def side_of(document: Document, graph: OpGraph) -> Side:
    """The groups of ``graph``, which ``document`` is of."""
    groups: dict[Key, Group] = {}
    for key, kernels in _held(document, graph):
        groups.setdefault(key, Group()).take(kernels)
    return Side(groups, steps_of(document))


def _held(document: Document, graph: OpGraph) -> Iterator[tuple[Key, tuple[Kernel, ...]]]:
    """What the whole steps of a run launched, by op."""
    whole = whole_steps(document)
    of_op = None if whole is None else steps_of_ops(graph)
    of_kernel = None if whole is None else steps_of_unlinked(graph)
    for i, op in enumerate(graph.ops):
        if op.kernels and (whole is None or of_op is None or of_op[i] in whole):
            yield _key(op), op.kernels
    for i, kernel in enumerate(graph.unlinked):
        if whole is None or of_kernel is None or of_kernel[i] in whole:
            yield Key("", shapes=kernel.name, family=family_of("", kernel.name)), (kernel,)


def _key(op: Op) -> Key:
    first = op.kernels[0].name
    shapes = ", ".join(str(list(value.shape)) for value in op.inputs()[:_SHAPES])
    return Key(
        portable_name(op.name),
        op.phase,
        _without_numbers(op.module),
        op.module_class,
        shapes,
        family_of(op.name, first),
    )


def family_of(op: str, kernel: str) -> str:
    """The kind of work, for what has no op of one name in the other run."""
    if classify(kernel).family == "collective":
        return "collective"
    return family_of_op(op) if op else "without an op"


@lru_cache(maxsize=65536)
def _without_numbers(module: str) -> str:
    return _INSTANCE.sub("*", module)
