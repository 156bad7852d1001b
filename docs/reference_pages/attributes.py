"""What the source of a class says of its attributes: annotation, default, and the text under each of them."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from reference_pages.text import prose


@dataclass(frozen=True)
class Attribute:
    """One annotated attribute, as it stands in the source."""

    name: str
    annotation: str
    default: str
    """Source of the default; empty: it has to be given."""
    meaning: str


def attributes(kind: type) -> list[Attribute]:
    """The attributes of ``kind`` in order, those of the classes it extends first."""
    found: dict[str, Attribute] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.split(".")[0] in ("auditor", "dashboard"):
            found |= {attribute.name: attribute for attribute in _own(base)}
    return list(found.values())


def _own(kind: type) -> list[Attribute]:
    module = inspect.getmodule(kind)
    assert module is not None
    body = next(n for n in _classes(module) if n.name == kind.__name__).body
    found = []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        default = ast.unparse(node.value) if node.value is not None else ""
        found.append(Attribute(node.target.id, ast.unparse(node.annotation), default, prose(str(text))))
    return found


@lru_cache
def _classes(module: ModuleType) -> list[ast.ClassDef]:
    return [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]
