"""Steps of a trace in which nothing marks them: the whole sequence of ops repeats exactly, or that of graph launches.

A window may open and close in mid-step, so the sequence is one whose every op is the same as that one period before.
Layers repeat as well, within one step: they are told from steps by the activation that each takes from the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from auditor.collect.closures import is_backward_node
from auditor.collect.kineto import Event, Trace, by_thread, decode_launch, decode_op
from auditor.collect.recorded_inputs import TensorSpec, decode_inputs, raw_inputs, tensors_in

_NEAR = 50
"""Ops on either side of a boundary that are looked at."""
_FEWEST = 2
"""Whole periods that a sequence has to hold."""
_FEEDS = ("aten::embedding", "aten::item", "aten::_local_scalar_dense", "aten::nll_loss", "aten::argmax", "aten::topk")
"""What a step does and its layers do not: look up its input, read out its result."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """``pieces`` are begin, end and whether it is whole; ``unit`` is what repeats.

    ``at_ops``: the first begins where the window does, so that each begins where a step does.
    """

    pieces: tuple[tuple[float, float, bool], ...]
    unit: str
    at_ops: bool


def repetition(trace: Trace, ops: Sequence[Event]) -> Repetition | None:
    """The steps of ``trace`` by what repeats in it: ``ops``, or else the kernels of graph replays."""
    return (_of_ops(trace, ops) if ops else None) or _of_replays(trace)


def _of_ops(trace: Trace, ops: Sequence[Event]) -> Repetition | None:
    outer = main_ops(ops)
    period = smallest_period([event.name for event in outer])
    backward = starts_of_backward(trace)
    if not period or not _is_step(outer[-period:], training=bool(backward)):
        return None
    at = _rotation(waits_before(outer, backward), period)
    starts = [event.start for event in outer[at::period]]
    return Repetition(_pieces(starts, len(outer), at, period), f"{period} ops", at_ops=len(outer) % period == 0)


def main_ops(ops: Sequence[Event]) -> list[Event]:
    """Outermost ops of the thread that calls the model, by start: the one with the most that are no backward nodes."""
    threads = [_outermost(held) for held in by_thread(ops).values()]
    return max(threads, key=lambda held: sum(not is_backward_node(event.name) for event in held), default=[])


def smallest_period(symbols: Sequence[str]) -> int:
    """The smallest ``p`` with ``symbols[i] == symbols[i + p]`` for all of them, 0 where it does not hold two of these.

    By the prefix function of Knuth, Morris and Pratt: the period is the length less that of the longest border.
    """
    border = [0] * len(symbols)
    for i in range(1, len(symbols)):
        length = border[i - 1]
        while length and symbols[i] != symbols[length]:
            length = border[length - 1]
        border[i] = length + (symbols[i] == symbols[length])
    period = len(symbols) - border[-1] if symbols else 0
    return period if period and len(symbols) >= _FEWEST * period else 0


def _outermost(events: Sequence[Event]) -> list[Event]:
    """Ops that no other op of the thread calls."""
    found: list[Event] = []
    end = -inf
    for event in events:
        if event.start >= end:
            found.append(event)
            end = event.end
    return found


def _is_step(unit: Sequence[Event], *, training: bool) -> bool:
    """Whether a period is a step and no layer: it trains, takes in or reads out something, or is fed from outside."""
    return training or any(event.name.startswith(_FEEDS) for event in unit) or is_fed_from_outside(unit)


def is_fed_from_outside(unit: Sequence[Event]) -> bool:
    """Whether what ``unit`` first reads is not what another one like it has made; no where there are no shapes."""
    specs = [_floats(event) for event in unit]
    first = next((i for i, held in enumerate(specs) if held), -1)
    if first < 0:
        return False  # no shapes: nothing tells
    activation = specs[first][0]
    return all(activation not in held for held in specs[first + 1 :]) and not _is_made(activation, unit[-1])


def takes_over(before: Sequence[Event], after: Sequence[Event]) -> bool:
    """Whether what the last op of ``before`` made looks like the activation that ``after`` first reads.

    Ops of one thread by start, each after those that call it.
    """
    held = next((held for event in after[:_NEAR] if (held := _floats(event))), None)
    end = before[-1].end
    outer = next(event for event in before[-_NEAR:] if event.end >= end)
    return held is not None and _is_made(held[0], outer)


def _floats(event: Event) -> list[TensorSpec]:
    recorded = decode_inputs(*raw_inputs(decode_op(event)))
    return [
        spec for _, spec in tensors_in(recorded.values) if spec.shape and spec.dtype in ("f16", "bf16", "f32", "f64")
    ]


def _is_made(spec: TensorSpec, op: Event) -> bool:
    """Whether ``op`` returns what looks like ``spec``."""
    from auditor.collect.propagate import effect_of

    made = effect_of(op.name, decode_inputs(*raw_inputs(decode_op(op))))
    return not made.known or any((s.shape, s.dtype) == (spec.shape, spec.dtype) for s in made.outputs)


def _rotation(waits: Sequence[float], period: int) -> int:
    """The first op that begins a step: the window's first where it holds whole periods, else after the longest wait."""
    if len(waits) % period == 0:
        return 0
    return max(range(period), key=lambda i: (sum(waits[i::period]) / len(waits[i::period]), -i))


def starts_of_backward(trace: Trace) -> list[float]:
    """When backward nodes start, in order."""
    return sorted(event.start for event in trace.cpu_ops if is_backward_node(event.name))


def waits_before(ops: Sequence[Event], backward: Sequence[float]) -> list[float]:
    """How long the thread did nothing before each of ``ops``; while autograd's thread runs it waits within a step."""
    waits = [0.0]
    for before, op in pairwise(ops):
        i = bisect_left(backward, before.end)
        within = i < len(backward) and backward[i] < op.start
        waits.append(0.0 if within else max(op.start - before.end, 0.0))
    return waits


def _pieces(
    starts: Sequence[float], length: int, at: int, period: int
) -> tuple[tuple[float, float, bool], ...]:  # fmt: skip
    edges = [*starts, inf]
    whole_last = (length - at) % period == 0
    made = [(a, b, True) for a, b in pairwise(edges)]
    if not whole_last:
        made[-1] = (made[-1][0], inf, False)
    return ((-inf, starts[0], False), *made) if at else tuple(made)


def _of_replays(trace: Trace) -> Repetition | None:
    """Replays of a graph are the same kernels again, and one of them is never taken apart: its layers repeat too."""
    launches = {decode_launch(e).correlation: e.start for e in trace.launches}
    groups: dict[int, list[Event]] = {}
    for kernel in sorted(trace.kernels, key=lambda k: k.start):
        groups.setdefault(decode_launch(kernel).correlation, []).append(kernel)
    replays = {c: held for c, held in groups.items() if len(held) > 1 and c in launches}
    if sum(map(len, replays.values())) * 2 < len(trace.kernels):
        return None
    items = sorted(replays.items(), key=lambda held: launches[held[0]])
    period = smallest_period(["\n".join(kernel.name for kernel in held) for _, held in items])
    if not period:
        return None
    starts = [launches[correlation] for correlation, _ in items[::period]]
    kernels = sum(len(held) for _, held in items[:period])
    return Repetition(_pieces(starts, len(items), 0, period), f"{kernels} kernels", at_ops=False)
