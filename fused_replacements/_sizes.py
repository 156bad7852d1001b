"""What a compiled kernel takes for granted about sizes and strides, as conditions that later inputs are held to.

A definition is traced with symbols for sizes. Where it asks about them (``if a == b``, a broadcast, a mask that may
fit), the compiler goes the way that the sizes at hand say and notes a guard; and it writes a stride as a product of
sizes where it is one. Compiled code looks at neither, so they are looked at before it is called with new shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import SymInt, Tensor


class Conditions:
    """The conditions under which a kernel that was traced with symbolic ``fakes`` is right."""

    def __init__(self, shape_env: Any, fakes: Sequence[Tensor]) -> None:
        self._layouts = [[_expression(number) for number in _numbers(fake)] for fake in fakes]
        self._guards = [guard.expr for guard in shape_env.guards]

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the kernel may be called with ``tensors``, which are of the class that it was built for."""
        import sympy

        values: dict[Any, Any] = {}
        derived: list[tuple[Any, int]] = []
        for expressions, tensor in zip(self._layouts, tensors, strict=True):
            for expression, number in zip(expressions, _numbers(tensor), strict=True):
                if isinstance(expression, sympy.Symbol):
                    if values.setdefault(expression, sympy.Integer(number)) != number:
                        return False
                else:
                    derived.append((expression, int(number)))
        if any(_value(expression, values) != number for expression, number in derived):
            return False
        return all(_value(guard, values) is sympy.true for guard in self._guards)


def _numbers(tensor: Tensor) -> list[Any]:
    return [*tensor.shape, *tensor.stride()]


def _expression(number: Any) -> Any:
    import sympy

    # as it was before the compiler found it equal to another: guards speak of both
    return number.node._expr if isinstance(number, SymInt) else sympy.Integer(number)


def _value(expression: Any, values: dict[Any, Any]) -> Any:
    return expression.xreplace(values)
