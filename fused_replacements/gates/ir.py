"""MLIR text of Triton (TTIR, TTGIR) as a graph: which operation made a value, and from which other values.

Only what address arithmetic needs is understood: operations on one line, loops and branches with their carried
values. Anything else is a value without a definition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_VALUE: Final = re.compile(r"%[\w$.-]+(?:#\d+)?")
_LINE: Final = re.compile(r'(?:(%[\w$.-]+)(?::(\d+))? = )?"?([a-z_]+\.[\w.]+)"?(.*)')
_LOC: Final = re.compile(r"\s*loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_ARGUMENT: Final = re.compile(r"(%[\w$.-]+): (!tt\.ptr<[^>]+>|[\w.]+)")
_CARRIED: Final = re.compile(r"(%[\w$.-]+) = (%[\w$.#-]+)")
_ALIAS: Final = re.compile(r"^(#[\w$.-]+) = (#ttg\..*)$")


@dataclass(frozen=True)
class Operation:
    name: str
    """``arith.muli``; ``argument``, ``loop index`` and ``carried`` for values that no operation makes."""
    operands: tuple[str, ...] = ()
    text: str = ""
    """What follows the name, types included."""


@dataclass
class Module:
    """The operations of one kernel in order, and for each value the one that made it."""

    operations: list[Operation] = field(default_factory=list)
    made_by: dict[str, Operation] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    """Parameter (without the ``%``) to type (``!tt.ptr<bf16>``, ``i32``)."""
    layouts: dict[str, str] = field(default_factory=dict)
    """Alias (``#blocked1``) to the layout that it stands for."""

    def maker(self, value: str) -> Operation:
        return self.made_by.get(value, Operation("unknown"))


@dataclass
class _Region:
    """An operation with a body that yields: what each of its results may be."""

    name: str
    results: list[str]
    carried: list[str] = field(default_factory=list)


def parse(text: str) -> Module:
    """The graph of the kernel in ``text``, as ``CompiledKernel.asm["ttir"]`` or ``["ttgir"]`` gives it."""
    module, open_regions = Module(), list[_Region]()
    for raw in text.splitlines():
        line = _LOC.sub("", raw).strip()
        if alias := _ALIAS.match(line):
            module.layouts[alias[1]] = alias[2]
        elif line.startswith("tt.func"):
            _read_arguments(module, line)
        else:
            _read(module, line, open_regions)
    return module


def _read_arguments(module: Module, line: str) -> None:
    for name, kind in _ARGUMENT.findall(line):
        module.arguments[name[1:]] = kind
        module.made_by[name] = Operation("argument", (), kind)


def _read(module: Module, line: str, open_regions: list[_Region]) -> None:
    if line.startswith("}") and open_regions and not line.endswith("{"):
        open_regions.pop()
    match = _LINE.match(line)
    if match is None:
        if line.endswith("{") and not line.startswith("}"):
            open_regions.append(_Region("", []))
        return
    result, count, name, rest = match.groups()
    operation = Operation(name, tuple(_VALUE.findall(rest)), rest)
    results = [] if result is None else [result] if count is None else [f"{result}#{i}" for i in range(int(count))]
    module.operations.append(operation)
    if name in ("scf.yield", "scf.condition") and open_regions:
        _yield(module, open_regions[-1], operation)
    for value in results:
        module.made_by[value] = operation
    if rest.endswith(("{", "({")):
        open_regions.append(_open(module, operation, results))


def _open(module: Module, operation: Operation, results: list[str]) -> _Region:
    """Enter the body of a loop or branch: its index and the values that it carries from trip to trip."""
    region = _Region(operation.name, results)
    if not operation.name.startswith("scf."):
        return region
    for value in results:
        module.made_by[value] = Operation("carried")
    head, _, carried = operation.text.partition("iter_args")
    if operation.name == "scf.for":
        index, *bounds = _VALUE.findall(head)
        module.made_by[index] = Operation("loop index", tuple(bounds))
    for value, start in _CARRIED.findall(carried if operation.name == "scf.for" else operation.text):
        module.made_by[value] = Operation("carried", (start,))
        region.carried.append(value)
    return region


def _yield(module: Module, region: _Region, operation: Operation) -> None:
    values = operation.operands[1:] if operation.name == "scf.condition" else operation.operands
    for targets in (region.results, region.carried):
        for target, value in zip(targets, values, strict=False):
            before = module.maker(target)
            module.made_by[target] = Operation("carried", (*before.operands, value))
