"""What a compiled kernel takes for granted about sizes and strides, as conditions that later inputs are held to.

A definition is traced with symbols for sizes. Where it asks about them (``if a == b``, a broadcast, a mask that may
fit), the compiler goes the way that the sizes at hand say and notes a guard; and it writes a stride as a product of
sizes where it is one. Compiled code looks at neither, so they are looked at before it is called with new shapes.

The conditions are written out once as Python source, as Dynamo does with its guards: a loop that generates text meets
a new length with every token, and sympy would take up to 2 ms for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import SymInt, Tensor


class Conditions:
    """The conditions under which a kernel that was traced with symbolic ``fakes`` is right."""

    def __init__(self, shape_env: Any, fakes: Sequence[Tensor]) -> None:
        expressions = [_expression(number) for fake in fakes for number in _numbers(fake)]
        self._hold = condition(expressions, [guard.expr for guard in shape_env.guards])

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the kernel may be called with ``tensors``, which are of the class that it was built for."""
        return self._hold(*[number for tensor in tensors for number in _numbers(tensor)])


def condition(expressions: Sequence[Any], guards: Sequence[Any]) -> Callable[..., bool]:
    """A function of as many integers as there are sympy ``expressions``: they are those, and the guards are true.

    An expression that is a symbol names its integer. A symbol that nothing names can't be known, and holds for none.
    """
    from torch.utils._sympy.printers import PythonPrinter

    names, tests = _named(expressions)
    for guard in [*tests, *guards]:
        if not guard.free_symbols <= set(names):
            return lambda *_: False
    written = PythonPrinter().doprint
    source = " and ".join(f"({written(test)})" for test in [*tests, *guards]) or "True"
    parameters = ", ".join(map(str, names.values()))
    function: Callable[..., bool] = eval(f"lambda {parameters}: {source}", {"math": math})  # of numbers and symbols
    return function


def _named(expressions: Sequence[Any]) -> tuple[dict[Any, Any], list[Any]]:
    """The parameter for each expression, by the symbol that it stands for, and what must be true of the others."""
    import sympy

    names: dict[Any, Any] = {}
    tests = []
    for place, expression in enumerate(expressions):
        if isinstance(expression, sympy.Symbol) and expression not in names:
            names[expression] = expression
            continue
        parameter = sympy.Symbol(f"number_{place}", integer=True)
        names[parameter] = parameter
        tests.append(sympy.Eq(parameter, expression, evaluate=False))
    return names, tests


def _numbers(tensor: Tensor) -> list[Any]:
    return [*tensor.shape, *tensor.stride()]


def _expression(number: Any) -> Any:
    import sympy

    # as it was before the compiler found it equal to another: guards speak of both
    return number.node._expr if isinstance(number, SymInt) else sympy.Integer(number)
