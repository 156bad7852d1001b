"""The op graph: ops, the values between them, and the kernels that they launched.

Everything after collection reads this one structure. It is built from a recorded step
(:mod:`auditor.collect`), from a trace file, or parsed from SSA text (:mod:`auditor.graph.ssa`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

Phase = Literal["forward", "backward", "optimizer"]
Provenance = Literal["observed", "traced", "simulated", "inferred"]

ITEMSIZE = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "bool": 1, "c64": 8, "c128": 16, "c32": 4,
}  # fmt: skip
"""Bytes of one element, by the short dtype names that the SSA text uses. Unknown dtypes count as 4."""


ACCUMULATE = "AccumulateGrad"
"""The autograd node that adds a gradient to what its parameter has already; the scope of ops in it."""


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements, of a dense tensor of ``shape``."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(slots=True, frozen=True)
class Source:
    """A place in the user's code. ``line`` is the line that made the call, 1-based."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def is_transfer(kernel: str) -> bool:
    """Whether a kernel's name is a profiler's for a copy or fill by the copy engine."""
    return kernel[:3] == "Mem" and kernel.startswith(("Memcpy", "Memset"))


@dataclass(slots=True)
class Kernel:
    """One launch on a device, or one dispatched op of a CPU-only run. Times in microseconds."""

    name: str
    start_us: float
    dur_us: float
    stream: int = 0
    device: int = 0
    launched_us: float | None = None
    """When the host launched it, where no op holds it and the launch was recorded."""

    @property
    def is_transfer(self) -> bool:
        """A copy or fill by the copy engine: kept because it may be a sync, not counted as a kernel."""
        return is_transfer(self.name)


class HostCall(NamedTuple):
    """When the host called an op, on the clock of the kernels, and how long the call took. Microseconds."""

    start_us: float
    dur_us: float


@dataclass(slots=True, eq=False)
class Value:
    """One version of one tensor. An in-place op makes a new version of the same storage.

    ``shape``, ``strides`` and ``offset`` are in elements. ``storage`` is unique within a graph
    (an address that was freed and given out again is another storage). ``base`` is the value that
    this one is a view of, ``None`` where it owns its content.
    """

    id: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    storage: int = -1
    device: str = "cpu"
    name: str = ""
    producer: Op | None = None
    output_index: int = 0
    base: Value | None = None
    consumers: list[Op] = field(default_factory=list)
    escapes: bool = False
    """Read by something outside the recorded window: a result of the step."""
    _extent: int = field(default=-1, init=False, repr=False)
    _nbytes: int = field(default=-1, init=False, repr=False)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE.get(self.dtype, 4)

    @property
    def extent(self) -> int:
        """Distinct elements: an expanded (stride 0) dimension counts once."""
        if self._extent < 0:
            if 0 in self.strides:
                self._extent = prod(n for n, s in zip(self.shape, self.strides, strict=True) if s != 0 or n == 0)
            else:
                self._extent = prod(self.shape)
        return self._extent

    @property
    def nbytes(self) -> int:
        """Bytes that reading or writing this value moves through memory once."""
        if self._nbytes < 0:
            self._nbytes = self.extent * self.itemsize
        return self._nbytes

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size == 1:
                continue
            if stride != expected:
                return False
            expected *= size
        return True

    def __repr__(self) -> str:
        return f"<{self.name or f'v{self.id}'}: {self.dtype}{list(self.shape)}>"


def owner_of(value: Value) -> Value:
    """The value that owns the content that ``value`` is a view of."""
    while value.base is not None:
        value = value.base
    return value


Constant = int | float | bool | str | complex | None
Arg = Value | Constant | tuple["Arg", ...]


@dataclass(slots=True, eq=False)
class Op:
    """One op as the dispatcher called it below autograd (``aten.add``), with its kernels.

    ``args`` are in schema order; trailing defaults may be present or absent. ``mutates`` lists the
    input values whose storage the op overwrites; the new version is among ``outputs``.
    """

    index: int
    name: str
    args: tuple[Arg, ...]
    outputs: tuple[Value, ...]
    overload: str = ""
    kernels: tuple[Kernel, ...] = ()
    mutates: tuple[Value, ...] = ()
    module: str = ""
    module_class: str = ""
    source: Source | None = None
    phase: Phase = "forward"
    thread: int = 0
    sequence: int = -1
    inferred: bool = False
    """At least one input edge is known from shapes and order only."""
    host: HostCall | None = None
    """Where a device runs the kernels: the call on the host. On a CPU-only run the kernel is the call."""
    scope: str = ""
    """What it runs in beside modules: ``SGD.step``, ``SGD.zero_grad``, or ``AccumulateGrad`` in the backward."""

    def inputs(self) -> list[Value]:
        """Every tensor read, in order, lists opened, duplicates kept."""
        found: list[Value] = []
        _collect(self.args, found)
        return found

    @property
    def dur_us(self) -> float:
        return self.kernels[0].dur_us if len(self.kernels) == 1 else sum(k.dur_us for k in self.kernels)

    @property
    def launches(self) -> int:
        """Kernels of this op, transfers left out."""
        return sum([not k.is_transfer for k in self.kernels]) if self.kernels else 0

    def __repr__(self) -> str:
        return f"<{self.index}: {self.name}>"


def _collect(args: tuple[Arg, ...], found: list[Value]) -> None:
    for arg in args:
        if type(arg) is Value:
            found.append(arg)
        elif type(arg) is tuple:
            _collect(arg, found)


@dataclass(slots=True)
class Coverage:
    """How much of a trace could be read. Counts of kernels."""

    kernels: int = 0
    linked: int = 0
    before_window: int = 0
    graph_replayed: int = 0
    outside_ops: int = 0
    unattributed: int = 0
    partial: bool = False
    steps: int = 1
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One step of a trace, on the host's clock; infinite where the window opened or closed in it. Microseconds."""

    name: str
    start_us: float
    end_us: float
    complete: bool = True


@dataclass(frozen=True, slots=True)
class StepSpans:
    """The steps that a trace holds, in order; none where nothing tells them.

    ``by`` is what told them: ``profiler``, ``annotation``, ``optimizer``, ``data loader``, ``modules``,
    ``repetition`` or ``likeness`` (that is nearly one); ``marker`` is its name in the trace.
    """

    by: str = ""
    marker: str = ""
    spans: tuple[StepSpan, ...] = ()

    @property
    def complete(self) -> int:
        return sum(span.complete for span in self.spans)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a runtime says of a device beside its name; 0 and ``None`` where it does not."""

    memory_bytes: int = 0
    multiprocessors: int = 0
    """SMs or CUs."""
    warp_size: int = 0
    compute: tuple[int, int] | None = None
    """Compute capability; the first two numbers of a gfx name."""

    @property
    def is_complete(self) -> bool:
        return bool(self.memory_bytes and self.multiprocessors and self.warp_size and self.compute)


@dataclass(slots=True)
class OpGraph:
    """Ops in execution order, and the values between them.

    ``unlinked`` holds kernels that no op claims (launched before the window, graph replays).
    ``step_us`` is the wall time of one step, 0 where unknown.
    """

    ops: list[Op] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    provenance: Provenance = "observed"
    unlinked: list[Kernel] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    step_us: float = 0.0
    device_kind: str = "cpu"
    device_name: str = ""
    device_properties: DeviceProperties = DeviceProperties()
    steps: StepSpans = StepSpans()
    """Of a trace, on the clock of :class:`HostCall`; a recorded run is one step."""

    def value(
        self, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, *,
        offset: int = 0, storage: int = -1, device: str = "cpu", name: str = "", base: Value | None = None,
    ) -> Value:  # fmt: skip
        """Make a value that belongs to this graph; a new storage unless one is given."""
        made = Value(
            len(self.values), dtype, shape, contiguous_strides(shape) if strides is None else strides,
            offset, storage, device, name, base=base,
        )  # fmt: skip
        if storage < 0:
            made.storage = base.storage if base is not None else -2 - made.id
        self.values.append(made)
        return made

    def add(self, op: Op) -> Op:
        """Append ``op``; links its outputs to it and registers it with the values it reads."""
        op.index = len(self.ops)
        self.ops.append(op)
        for i, out in enumerate(op.outputs):
            out.producer, out.output_index = op, i
        read = op.inputs()
        for value in read if len(read) < 2 else dict.fromkeys(read):
            value.consumers.append(op)
        return op

    @property
    def kernels(self) -> int:
        """Kernels in all, linked or not; transfers are none."""
        return sum(op.launches for op in self.ops) + sum(not k.is_transfer for k in self.unlinked)

    def dismantle(self) -> None:
        """Take the graph apart, where it is needed no more: ops and values refer to each other.

        So they go at once. The garbage collector would walk millions of objects to find that out.
        """
        for op in self.ops:
            op.args = op.outputs = op.mutates = ()
        for value in self.values:
            value.producer, value.base, value.consumers = None, None, []
        self.ops, self.values = [], []
