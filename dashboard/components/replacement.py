"""The code that would take a site's place, with what it loads from and stores to device memory marked.

Files are found without importing them: the library imports torch, which a page has no use for.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dash import html

from auditor.report.format import plural, safe
from dashboard.components.code import code_block, details

_LOADS = {"load", "async_copy", "descriptor_load", "load_tensor_descriptor"}
_STORES = {"store", "descriptor_store", "store_tensor_descriptor"}
_BOTH = {"atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg", "atomic_and", "atomic_or"}


@dataclass(frozen=True)
class Code:
    """A file of the library and its accesses: line number → ``load``, ``store`` or ``both``."""

    path: str
    text: str
    accesses: dict[int, str]
    is_kernel: bool

    @property
    def counted(self) -> str:
        loads = sum(kind != "store" for kind in self.accesses.values())
        stores = sum(kind != "load" for kind in self.accesses.values())
        return f"{plural(loads, 'load')}, {plural(stores, 'store')}"


def replacement_view(name: str | None) -> list[Any]:
    """The code of a replacement, its kernel first."""
    if not name:
        return [html.P("The rule names no replacement yet.", className="dim")]
    found = replacement_code(name)
    if not found:
        return [html.P(["The code of ", html.Code(safe(name)), " is not part of this library."], className="dim")]
    views: list[Any] = [html.P(_about(found))]
    for index, code in enumerate(found):
        summary = [html.Code(code.path), f" · {code.counted}" if code.is_kernel else " · what a model calls"]
        block = code_block(code.text, code.path, marks=code.accesses)
        views.append(details(summary, block, is_open=index == 0 and code.is_kernel))
    return views


def _about(found: tuple[Code, ...]) -> str:
    if any(code.is_kernel for code in found):
        return "Every place that touches device memory is marked; what lies between stays in registers."
    return "It has no kernel of its own: the compiler, or an op of PyTorch's, writes the code that runs."


@lru_cache(maxsize=64)
def replacement_code(name: str) -> tuple[Code, ...]:
    """The files that define the replacement ``name``; empty where the library has none of that name."""
    spec = find_spec("fused_replacements")
    if spec is None or not spec.submodule_search_locations or not name.isidentifier():
        return ()
    root = Path(spec.submodule_search_locations[0])
    kernels = [root / "kernels" / f"{name}.py"]
    homes = sorted(p for p in root.glob(f"*/{name}.py") if p.parent.name != "kernels")
    return tuple(_read(path, root) for path in [*kernels, *homes] if path.is_file())


def _read(path: Path, root: Path) -> Code:
    text = path.read_text(encoding="utf-8")
    is_kernel = path.parent.name == "kernels"
    shown = f"{root.name}/{path.relative_to(root)}"
    return Code(shown, text, accesses(text) if is_kernel else {}, is_kernel)


def accesses(text: str) -> dict[int, str]:
    """Lines of Triton code that touch device memory: number → ``load``, ``store`` or ``both``."""
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        kind = _kind(node.func)
        if kind:
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = kind if found.get(line, kind) == kind else "both"
    return found


def _kind(function: ast.Attribute) -> str:
    if not (isinstance(function.value, ast.Name) and function.value.id == "tl"):
        return ""
    if function.attr in _BOTH:
        return "both"
    return "load" if function.attr in _LOADS else "store" if function.attr in _STORES else ""
