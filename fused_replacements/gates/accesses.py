"""The loads and stores of a kernel as Triton's GPU dialect (TTGIR) has them: tensor, tile, and each thread's share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from fused_replacements.gates.ir import Module, Operation

_TENSOR: Final = re.compile(r"((?:\d+x)*)(?:!tt\.ptr<(\w+)>|(\w+))(?:, (#.*))?$")
_SCALAR: Final = re.compile(r"!tt\.ptr<(\w+)>")
_BUFFER: Final = re.compile(r"(%[\w$.#-]+)\[")
_THROUGH: Final = frozenset(
    {
        "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast",
        "ttg.convert_layout", "carried", "arith.select", "amdg.update_tensor",
    }
)  # fmt: skip

LOADS: Final = frozenset({"tt.load", "amdg.buffer_load", "ttg.async_copy_global_to_local", "amdg.buffer_load_to_local"})
STORES: Final = frozenset({"tt.store", "amdg.buffer_store"})
ATOMICS: Final = frozenset({"tt.atomic_rmw", "tt.atomic_cas", "amdg.buffer_atomic_rmw"})


@dataclass(frozen=True)
class Access:
    """One load or store of a tile. An atomic is both, and gives two of these."""

    direction: Literal["load", "store"]
    argument: str
    """The kernel's parameter that the address starts from."""
    shape: tuple[int, ...]
    """Of the tile, edges included; () for a single element."""
    element_bytes: int
    thread_elements: int | None
    """Elements that each thread holds, copies of other threads' included; None for a layout that is not understood."""
    inner: int
    """Elements of the tile along the dimension that its layout walks first."""

    @property
    def bytes(self) -> int:
        """Bytes of the tile, each element once."""
        return prod(self.shape) * self.element_bytes

    @property
    def thread_bytes(self) -> int | None:
        return None if self.thread_elements is None else self.thread_elements * self.element_bytes

    def widest(self, threads: int) -> int:
        """Bytes that one thread can move at once, at most 16: its share of the tile, within one run of the tile."""
        share = max(1, prod(self.shape) // threads)
        return min(16, share * self.element_bytes, max(1, self.inner) * self.element_bytes)


def accesses(module: Module) -> list[Access]:
    """Every access to device memory in ``module``, once for each place in the code (a loop body counts once)."""
    found = []
    for operation in module.operations:
        if operation.name in LOADS | ATOMICS:
            found.append(_access(module, operation, "load"))
        if operation.name in STORES | ATOMICS:
            found.append(_access(module, operation, "store"))
    return found


def address(operation: Operation) -> str:
    """The value that ``operation``, a load or store, takes its address from."""
    buffer = _BUFFER.search(operation.text) if operation.name.startswith("amdg.") else None
    return buffer[1] if buffer else operation.operands[0]


def origin(module: Module, value: str) -> str:
    """The kernel's parameter that the address ``value`` starts from; ``?`` where it can't be followed."""
    seen = set()
    while value not in seen:
        seen.add(value)
        operation = module.maker(value)
        if operation.name == "argument":
            return value[1:]
        if operation.name not in _THROUGH or not operation.operands:
            break
        value = operation.operands[1 if operation.name == "arith.select" else 0]
    return "?"


def element_bytes(kind: str) -> int:
    """Bytes in memory of an MLIR scalar type: ``bf16``, ``f32``, ``i1`` (a byte), ``f8E4M3FN``."""
    digits = re.search(r"\d+", kind)
    return max(1, int(digits[0]) // 8) if digits else 1


def _tensor_types(text: str) -> list[str]:
    """What stands in each ``tensor<…>`` of ``text``, nested brackets and all."""
    found = []
    for start in re.finditer(r"tensor<", text):
        depth, end = 1, start.end()
        while depth and end < len(text):
            depth += {"<": 1, ">": -1}.get(text[end], 0)
            end += 1
        found.append(text[start.end() : end - 1])
    return found


def _access(module: Module, operation: Operation, direction: Literal["load", "store"]) -> Access:
    argument = origin(module, address(operation))
    tensors = [match for text in _tensor_types(operation.text) if (match := _TENSOR.match(text))]
    pointers = [match for match in tensors if match[2]]
    if not tensors:
        scalar = _SCALAR.search(operation.text)
        return Access(direction, argument, (), element_bytes(scalar[1] if scalar else ""), 1, 1)
    tile = pointers[0] if pointers else tensors[-1]
    shape = tuple(int(size) for size in tile[1].split("x") if size)
    layout = module.layouts.get(tile[4] or "", tile[4] or "")
    elements, first = _share(module, layout, shape)
    return Access(direction, argument, shape, element_bytes(tile[2] or tile[3]), elements, shape[first])


def _share(module: Module, layout: str, shape: tuple[int, ...]) -> tuple[int | None, int]:
    """Elements of a tile of ``shape`` that a thread holds, and the dimension that the layout walks first."""
    if layout.startswith("#ttg.linear"):
        return _linear_share(layout, shape), len(shape) - 1
    tiles, order = _tiles(module, layout)
    if len(tiles) != len(shape):
        return None, len(shape) - 1
    pairs = zip(tiles, shape, strict=True)
    held = (min(own, size) if size < tile else own * -(-size // tile) for (own, tile), size in pairs)
    return prod(held), order[0]


def _tiles(module: Module, layout: str) -> tuple[list[tuple[int, int]], list[int]]:
    """For each dimension the elements that a thread has in a row and that all threads cover at once; the order."""
    if layout.startswith("#ttg.slice"):
        dim, parent = re.search(r"dim = (\d+)", layout), re.search(r"parent = (#.*)}>$", layout)
        if dim is None or parent is None:
            return [], [0]
        tiles, order = _tiles(module, module.layouts.get(parent[1], parent[1]))
        gone = int(dim[1])
        return [tile for i, tile in enumerate(tiles) if i != gone], [i - (i > gone) for i in order if i != gone]
    if not layout.startswith("#ttg.blocked"):
        return [], [0]
    own, lanes, warps = (_numbers(layout, name) for name in ("sizePerThread", "threadsPerWarp", "warpsPerCTA"))
    return [(a, a * b * c) for a, b, c in zip(own, lanes, warps, strict=True)], _numbers(layout, "order")


def _numbers(layout: str, name: str) -> list[int]:
    found = re.search(rf"{name} = \[([^\]]*)\]", layout)
    return [int(number) for number in found[1].split(",")] if found else []


def _linear_share(layout: str, shape: tuple[int, ...]) -> int | None:
    """Bases that are not zero double what a thread holds; what all bases cover may lie several times in the tile."""
    bases = {}
    for name in ("register", "lane", "warp"):
        found = re.search(rf"{name} = \[(\[.*?\])?\]", layout)
        if found is None:
            return None
        bases[name] = [base for base in re.findall(r"\[([\d, ]+)\]", found[1] or "") if base.strip("0, ")]
    covered = 1 << sum(len(found) for found in bases.values())
    return (1 << len(bases["register"])) * max(1, prod(shape) // covered)
