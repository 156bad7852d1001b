"""Products of few rows with a packed weight on a CPU: one compiled reduction that reads the packed form only.

A dequantised weight costs a write and a read of 2 to 4 bytes an element, whatever the number of rows. A reduction
dequantises in registers, once for each row: the better way for a generating model, the worse for a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from fused_replacements._compiled import Argument, CompiledKernels, Definition, leaves
from fused_replacements._dispatched import Op


class FewRows:
    """``definition``, compiled apart, for calls of at most ``limit`` rows; the op's own compiled definition above."""

    def __init__(self, definition: Definition, limit: int, arguments: int, misfit: Callable[..., str | None]) -> None:
        self.limit = limit
        self._compiled = CompiledKernels(definition, arguments, misfit=misfit)

    def run(self, op: Op, arguments: Sequence[Argument], rows: int) -> Tensor:
        """The result of ``op``. Where this definition can't be compiled the op's own way tells why."""
        kernel = None
        if 0 < rows <= self.limit:
            try:
                kernel = self._compiled.find(arguments)
            except Exception:  # the compiler raises many kinds; run_compiled meets the same, and says it
                kernel = None
        if kernel is None:
            result: Tensor = op.run_compiled(arguments)
            return result
        return kernel(leaves(arguments))[0]
