"""Whether row offsets are computed in 64 bits, told from Triton's first dialect (TTIR).

A tensor of 2³¹ elements or more (32 k rows of 65,536 are enough) needs element offsets of 64 bits. Triton types a
Python integer below 2³¹ as 32 bits, a program's index always is, and a product of the two wraps around silently.

So the address of every load and store is followed back. A multiplication in 32 bits is a finding where its product is
part of the offset itself and grows with the number of rows:

* an index (of a program, a loop, a range, or one that was loaded) times an argument of the kernel: a stride;
* an index of a program times a constant, unless the address has a product in 64 bits too (then the 32-bit one counts
  columns within a row), or the parameter is a vector along the width, which ``KernelCase.vectors`` names.

An index that is multiplied in 32 bits and then by a stride in 64 is fine: rows are fewer than 2³¹.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fused_replacements.gates.accesses import ATOMICS, LOADS, STORES, address, origin
from fused_replacements.gates.ir import Module, Operation

_SOURCES: Final = {
    "tt.get_program_id": "program",
    "loop index": "loop",
    "tt.make_range": "range",
    "tt.load": "program",
    "argument": "argument",
}
"""Where a number comes from. A loaded index may be any row, as the index of a program may."""
_SUMS: Final = frozenset(
    {
        "arith.addi", "arith.subi", "arith.extsi", "arith.extui", "arith.trunci", "arith.select", "arith.minsi",
        "arith.maxsi", "arith.index_cast", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans",
        "carried",
    }
)  # fmt: skip
"""Operations that hand on an offset: what is part of their operands is part of their result."""
_PRODUCTS: Final = frozenset({"arith.muli", "arith.shli"})


def narrow_offsets(module: Module, vectors: Iterable[str] = ()) -> list[str]:
    """One sentence for each row offset that is computed in 32 bits; none for a kernel that is safe."""
    short = frozenset(vectors)
    found: dict[str, None] = {}
    for operation in module.operations:
        if operation.name not in LOADS | STORES | ATOMICS:
            continue
        pointer = address(operation)
        products = list(_products(module, pointer, set()))
        wide = any(_is_wide(product) for product in products)
        name = origin(module, pointer)
        for product in products:
            if not _is_wide(product) and (why := _grows(module, product, wide or name in short)):
                found[f"{name}: {why} is computed in 32 bits"] = None
    return list(found)


def _is_wide(product: Operation) -> bool:
    return "i64" in product.text.rpartition(" : ")[2]


def _grows(module: Module, product: Operation, in_a_row: bool) -> str | None:
    """How the 32-bit ``product`` grows with the rows, or None where it is bounded by the width."""
    left, right = (_sources(module, value, set()) for value in product.operands[:2])
    for index, factor in ((left, right), (right, left)):
        if index & {"program", "loop", "range"} and factor == {"argument"}:
            return "index × stride"
        if "program" in index and not factor and not in_a_row:
            return "program × constant"
    return None


def _sources(module: Module, value: str, seen: set[str]) -> set[str]:
    """What ``value`` depends on: some of ``program``, ``loop``, ``range``, ``argument``. Nothing for a constant."""
    if value in seen:
        return set()
    seen.add(value)
    operation = module.maker(value)
    found = {_SOURCES[operation.name]} if operation.name in _SOURCES else set()
    if operation.name == "tt.load":
        return found
    for operand in operation.operands:
        found |= _sources(module, operand, seen)
    if operation.name == "loop index":
        found -= {"argument"}
    return found


def _products(module: Module, value: str, seen: set[str]) -> Iterator[Operation]:
    """The multiplications whose product is part of the address or offset ``value``."""
    if value in seen:
        return
    seen.add(value)
    operation = module.maker(value)
    if operation.name in _PRODUCTS:
        yield operation
    elif operation.name in _SUMS or operation.name in ("tt.addptr", "tt.bitcast"):
        for operand in operation.operands:
            yield from _products(module, operand, seen)
