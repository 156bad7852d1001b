"""The kernels of two runs, paired by the op that launched them, as names of kernels differ by device and version.

A kernel that no op holds, as of a graph's replay, is paired with the op that launches one of its name in the other run.
An op is paired with the one of its name, phase, module and shapes; what is left with that of a part of these; then
whole families. So every kernel is in one row, and the rows of a run add up to its total.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Literal

from auditor.gate.kernel_groups import Group, Key, Side
from auditor.gate_document import KernelChange, KernelTable, PairedBy
from auditor.report.format import ratio

By = Literal["op", "kernel"]
_NAMES = 5
"""Names of kernels that a row lists."""
_Level = tuple[PairedBy, Callable[[Key], Hashable]]
_CLOSEST: tuple[_Level, ...] = (
    ("module and shapes", lambda k: (k.op, k.phase, k.module, k.shapes) if k.module else None),
    ("module", lambda k: (k.op, k.phase, k.module) if k.module else None),
    ("class and shapes", lambda k: (k.op, k.phase, k.module_class, k.shapes) if k.module_class else None),
    ("shapes", lambda k: (k.op, k.phase, k.shapes) if k.shapes else None),
    ("class", lambda k: (k.op, k.phase, k.module_class) if k.module_class else None),
)
_OP: _Level = ("op", lambda k: (k.op, k.phase) if k.op else None)
_FAMILY: _Level = ("family", lambda k: (k.family, k.phase) if k.family != "other" else None)
_NAMED_FAMILY: _Level = ("family", lambda k: (k.family, k.phase) if k.family != "other" and k.op else None)
_LEVELS: dict[By, tuple[_Level, ...]] = {"op": (_OP, _FAMILY), "kernel": (*_CLOSEST, _OP, _NAMED_FAMILY)}
_ALONE: dict[By, Callable[[Key], Hashable]] = {
    "op": lambda k: (k.op, k.phase),
    "kernel": lambda k: (k.op, k.phase, k.module, k.shapes),
}


def compare_kernels(before: Side, after: Side, by: By, left_out: tuple[int, int] = (0, 0)) -> KernelTable:
    """The kernels of both a step, by op (all of one name and phase together) or by kernel (by module and shapes)."""
    sides = dict(before.groups), dict(after.groups)
    steps = before.steps, after.steps
    rows = [_row("kernel", (_taken(sides[0], a), _taken(sides[1], b)), steps) for a, b in _of_one_name(sides, by)]
    for paired_by, key_of in _LEVELS[by]:
        a, b = (_buckets(groups, key_of) for groups in sides)
        for bucket in [bucket for bucket in a if bucket in b]:
            rows.append(_row(paired_by, (_taken(sides[0], a[bucket]), _taken(sides[1], b[bucket])), steps))
    for i, groups in enumerate(sides):
        for keys in _buckets(groups, _ALONE[by]).values():
            held = _taken(groups, keys)
            rows.append(_row("", (held, {}) if i == 0 else ({}, held), steps))
    rows.sort(
        key=lambda r: (-abs(r.device_us[1] - r.device_us[0]), -max(r.device_us), r.op, r.phase, r.module, r.shapes)
    )
    everything = (dict(before.groups), dict(after.groups))
    total = _amounts("", "total", everything, steps)
    return KernelTable(by=by, rows=rows, total=total, left_out=left_out)


def _of_one_name(sides: tuple[dict[Key, Group], dict[Key, Group]], by: By) -> list[tuple[list[Key], list[Key]]]:
    """Kernels without an op in one run, and what launches those of their names in the other, where no op is lacking.

    By op, all of the ops of one name together.
    """
    pairs: dict[Hashable, tuple[list[Key], list[Key]]] = {}
    for i in (0, 1):
        loose, others = ({key.shapes: key for key in side if not key.op} for side in (sides[i], sides[1 - i]))
        named: dict[str, list[Key]] = {}
        for key, group in sides[1 - i].items():
            if key.op and len(group.names) == 1 and (name := next(iter(group.names))) in loose and name not in others:
                named.setdefault(name, []).append(key)
        for name, keys in named.items():
            ops = tuple(sorted({(key.op, key.phase) for key in keys}))
            held = pairs.setdefault((i, ops if by == "op" else name), ([], []))
            held[i].append(loose[name])
            held[1 - i].extend(keys)
    return list(pairs.values())


def _buckets(groups: Iterable[Key], key_of: Callable[[Key], Hashable]) -> dict[Hashable, list[Key]]:
    found: dict[Hashable, list[Key]] = {}
    for key in groups:
        bucket = key_of(key)
        if bucket is not None:
            found.setdefault(bucket, []).append(key)
    return found


def _taken(groups: dict[Key, Group], keys: Iterable[Key]) -> dict[Key, Group]:
    return {key: groups.pop(key) for key in keys}


def _row(paired_by: PairedBy, held: tuple[dict[Key, Group], dict[Key, Group]], steps: tuple[int, int]) -> KernelChange:
    """One row of what is paired; of what it has in common it tells what is the same in all of it."""
    every = [*held[0], *held[1]]
    keys = [key for key in every if key.op] or every
    op = _common(key.op for key in keys)
    return _amounts(
        paired_by, op, held, steps, phase=_common(k.phase for k in keys), family=_common(k.family for k in keys),
        module=_common(k.module for k in keys) or _common(k.module_class for k in keys),
        shapes=_common(k.shapes for k in keys) if op else "",
    )  # fmt: skip


def _amounts(
    paired_by: PairedBy, op: str, held: tuple[dict[Key, Group], dict[Key, Group]], steps: tuple[int, int], *,
    phase: str = "", family: str = "", module: str = "", shapes: str = "",
) -> KernelChange:  # fmt: skip
    a, b = (_joined(groups) for groups in held)
    times = a.device_us / steps[0], b.device_us / steps[1]
    return KernelChange(
        paired_by=paired_by,
        op=op,
        phase=phase,
        family=family,
        module=module,
        shapes=shapes,
        ops=(a.ops / steps[0], b.ops / steps[1]),
        kernels=(a.kernels / steps[0], b.kernels / steps[1]),
        device_us=times,
        ratio=ratio(times[1], times[0]) if times[1] > 0 else None,
        names=(_names(a), _names(b)),
    )


def _joined(groups: dict[Key, Group]) -> Group:
    whole = Group()
    for group in groups.values():
        whole.join(group)
    return whole


def _names(group: Group) -> list[str]:
    return [name for name, _ in sorted(group.names.items(), key=lambda held: (-held[1], held[0]))[:_NAMES]]


def _common(texts: Iterable[str]) -> str:
    """The text that all are, else nothing."""
    found = set(texts)
    return found.pop() if len(found) == 1 else ""
