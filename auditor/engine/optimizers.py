"""Optimizers that step parameter by parameter: a few kernels for each tensor, where a few for all of them would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from auditor.engine.device_side import is_on_cpu
from auditor.engine.launch_count import multi_tensor_launches
from auditor.engine.legality import Refusal, Region, check
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, OpGraph
from auditor.graph.ops import kind_of

FUSED_LISTS = {"SGD": 2, "Adam": 4, "AdamW": 4, "Adagrad": 3}
"""Optimizers of ``torch.optim`` that take ``fused=True``, and how many lists of tensors their kernel works on:
parameters, gradients and states (``_fused_adam_`` and the like in ATen's ``native_functions.yaml``), momentum apart.
"""
FOREACH = frozenset({"ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""Those that take ``foreach=True`` only. Of classes that are not PyTorch's it is not known."""
ONE_BY_ONE = frozenset({"LBFGS", "SparseAdam", "Muon"})
"""Those that have neither ``fused`` nor ``foreach``."""
FOR_ALL = ("aten._foreach_", "aten._fused_")
FEWEST_TENSORS = 4
"""A loop over fewer tensors than this repeats nothing that is worth a mention."""


def propose_optimizers(graph: Canonical, rule: Rule, taken: Set[int]) -> Proposals:
    """One site for each step of an optimizer that launches its kernels for every parameter apart."""
    found = Proposals()
    least = (rule.detect or {}).get("min", 8)
    for name, ops in _steps(graph.graph):
        if name in ONE_BY_ONE or any(op.name.startswith(FOR_ALL) for op in ops):
            continue
        for loop in _by_device(_loop([op for op in ops if op.index not in taken])):
            on_cpu = is_on_cpu(graph.graph, loop[0])
            if len(loop) < least or (on_cpu and name not in FUSED_LISTS):  # on a CPU, `foreach` is the same loop
                continue
            region = check(graph, loop, None)
            if isinstance(region, Refusal):
                found.refusals.append(region)
            else:
                found.candidates.append(_candidate(graph, rule, name, region, on_cpu))
    return found


def _candidate(graph: Canonical, rule: Rule, name: str, region: Region, on_cpu: bool) -> Candidate:
    loop, fused = list(region.ops), name in FUSED_LISTS
    sizes = _sizes(loop)
    if not fused:
        region.moves(graph.traffic(op) for op in loop)
    after = _fused(name, loop, sizes, on_cpu) if fused else _foreach(loop, sizes)
    return Candidate(
        rule, region, {"optimizer": name} if name else {}, left=after,
        launches_only=region.bytes_fused >= region.bytes_now,
        instead=_instead(name),
        example=tuple(loop[: max(1, round(len(loop) / len(sizes)))]),
    )  # fmt: skip


def _instead(name: str) -> str:
    if name in FUSED_LISTS:
        return f"{name}(…, fused=True)"
    if name in FOREACH:
        return f"{name}(…, foreach=True)"
    return f"torch._foreach_ ops on lists in {f'{name}.step' if name else 'it'}, or torch.compile around it"


def _steps(graph: OpGraph) -> Iterator[tuple[str, list[Op]]]:
    """The class of an optimizer and the ops of one of its steps. What computes outside of one ends it."""
    running: dict[int, tuple[str, list[Op]]] = {}
    for op in graph.ops:
        scope, _, call = op.scope.rpartition(".")
        is_step = op.phase == "optimizer" and call in ("step", "")
        name, ops = running.get(op.thread, ("", []))
        if ops and (not is_step or name != scope) and op.kernels:
            yield name, ops
            del running[op.thread]
        if is_step:
            running.setdefault(op.thread, (scope, []))[1].append(op)
    yield from running.values()


def _by_device(loop: list[Op]) -> list[list[Op]]:
    """Parameters on several devices, or worked on by several streams, are as many loops."""
    places: dict[tuple[int, int], list[Op]] = {}
    for op in loop:
        places.setdefault((op.kernels[0].device, op.kernels[0].stream), []).append(op)
    return list(places.values())


def _loop(ops: list[Op]) -> list[Op]:
    """The ops that are repeated for each parameter. Counters of steps are numbers, and may be on the host."""
    able = [op for op in ops if op.launches == 1 and _is_update(op)]
    times = Counter(op.name for op in able)
    writes = {name: {_written(op) for op in able if op.name == name} for name in times}
    return [op for op in able if times[op.name] >= FEWEST_TENSORS and len(writes[op.name]) * 3 >= times[op.name]]


def _is_update(op: Op) -> bool:
    if kind_of(op.name) not in ("pointwise", "copy", "movement"):
        return False
    return not op.outputs or bool(op.outputs[0].shape)


def _written(op: Op) -> int:
    """The storage that an op writes; without shapes each op may be of a tensor of its own."""
    return op.outputs[0].storage if op.outputs else -1 - op.index


def _sizes(loop: list[Op]) -> list[int]:
    """Elements of each parameter, 0 where not known: of the ops of a kind that is there once for each of them."""
    times = Counter(op.name for op in loop)
    most = max(times.values())
    once = min((name for name in times if times[name] * 3 >= most), key=times.__getitem__)
    return [op.outputs[0].numel if op.outputs else 0 for op in loop if op.name == once]


def _fused(name: str, loop: list[Op], sizes: list[int], on_cpu: bool) -> int:
    """Launches of ``_fused_…_`` and, of Adam, of the one that counts the steps."""
    counts = name.startswith("Adam")
    if on_cpu:
        return 2 if counts else 1
    lists = FUSED_LISTS[name] + (name == "SGD" and len(loop) >= 2 * len(sizes))
    return multi_tensor_launches(sizes, lists) + counts * multi_tensor_launches([0] * len(sizes), 1)


def _foreach(loop: list[Op], sizes: list[int]) -> int:
    """As many multi-tensor kernels as there are kernels for one parameter."""
    return max(1, round(len(loop) / len(sizes))) * multi_tensor_launches(sizes, 3)
