"""The code that would take a site's place, with what it loads from and stores to device memory marked.

Files are found without importing them: the library imports torch, which a page has no use for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dash import html

from auditor.report.format import plural, safe
from dashboard.components.code import code_block, details

_LIBRARY = "fused_replacements"
_LOADS = {"load", "async_copy", "descriptor_load", "load_tensor_descriptor"}
_STORES = {"store", "descriptor_store", "store_tensor_descriptor"}
_BOTH = {"atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg", "atomic_and", "atomic_or"}


@dataclass(frozen=True)
class Code:
    """A function of the library and its accesses: line number → ``load``, ``store`` or ``both``."""

    path: str
    name: str
    first: int
    text: str
    accesses: dict[int, str]

    @property
    def counted(self) -> str:
        loads = sum(kind != "store" for kind in self.accesses.values())
        stores = sum(kind != "load" for kind in self.accesses.values())
        return f"{plural(loads, 'load')}, {plural(stores, 'store')}" if self.accesses else "in registers"


def replacement_view(name: str | None, instead: str = "") -> list[Any]:
    """The code of a replacement: its kernels, and the function that a model calls; or what to write ``instead``."""
    if instead:
        return [html.P(["In the script: ", html.Code(safe(instead))])]
    if not name:
        return [html.P("The rule names no replacement yet.", className="dim")]
    home = _definition(name)
    if home is None:
        return [html.P(["The code of ", html.Code(safe(name)), " is not part of this library."], className="dim")]
    kernels = kernel_code(name)
    views: list[Any] = [html.P(_about(kernels))]
    for index, code in enumerate(kernels):
        summary = [html.Code(code.name), f" · {code.counted} · ", html.Code(code.path)]
        block = code_block(code.text, f"{code.name} in {code.path}", first=code.first, marks=code.accesses)
        views.append(details(summary, block, is_open=index == 0))
    path, text = home
    views.append(details(["What a model calls · ", html.Code(path)], code_block(text, path)))
    return views


def _about(kernels: tuple[Code, ...]) -> str:
    if kernels:
        return "The lines that load from device memory or store to it are marked; what lies between stays in registers."
    return "It has no kernel of its own: the compiler, or an op of PyTorch's, writes the code that runs."


@lru_cache(maxsize=64)
def _definition(name: str) -> tuple[str, str] | None:
    """Path and text of the module that defines the replacement ``name``."""
    root = _root()
    if root is None or not name.isidentifier() or name.startswith("_"):
        return None
    found = sorted(p for p in root.glob(f"*/{name}.py") if p.parent.name not in ("kernels", "gates"))
    return (_shown(found[0]), found[0].read_text(encoding="utf-8")) if found else None


@lru_cache(maxsize=64)
def kernel_code(name: str) -> tuple[Code, ...]:
    """The Triton functions that the replacement ``name`` runs, those that touch device memory first."""
    root = _root()
    if root is None or not name.isidentifier() or not (root / "kernels" / f"{name}.py").is_file():
        return ()
    return tuple(sorted(_reached(root / "kernels" / f"{name}.py"), key=lambda code: not code.accesses))


def _reached(path: Path) -> Iterator[Code]:
    """The jitted functions of a file, and those of other files of the folder that they call."""
    queue = [(path, function) for function in _jitted(path)] + _imported(path, _tree(path))
    seen = set()
    while queue:
        file, function = queue.pop(0)
        if (file, function.name) in seen:
            continue
        seen.add((file, function.name))
        yield _code(file, function)
        called = _names(function)
        queue += [(file, f) for f in _jitted(file) if f.name in called] + _imported(file, function)


def _imported(path: Path, tree: ast.AST) -> list[tuple[Path, ast.FunctionDef]]:
    """Jitted functions of other files that ``tree``, a part of the file ``path``, names."""
    called = _names(tree)
    return [(other, f) for other, names in _imports(path) for f in _jitted(other) if f.name in called & names]


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _code(path: Path, function: ast.FunctionDef) -> Code:
    lines = path.read_text(encoding="utf-8").splitlines()
    first, last = function.decorator_list[0].lineno, function.end_lineno or function.lineno
    return Code(_shown(path), function.name, first, "\n".join(lines[first - 1 : last]), accesses(function))


@lru_cache(maxsize=128)
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _jitted(path: Path) -> list[ast.FunctionDef]:
    return [n for n in _tree(path).body if isinstance(n, ast.FunctionDef) and any(map(_is_jit, n.decorator_list))]


def _is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "jit"


def _imports(path: Path) -> Iterator[tuple[Path, set[str]]]:
    """Other files of the kernels' folder, with the names that are taken from each."""
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_LIBRARY}.kernels."):
            other = path.parent / f"{(node.module or '').rsplit('.', 1)[1]}.py"
            if other.is_file():
                yield other, {alias.asname or alias.name for alias in node.names}


def accesses(tree: ast.AST) -> dict[int, str]:
    """Lines of Triton code that touch device memory: number → ``load``, ``store`` or ``both``."""
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        kind = _kind(node.func) if isinstance(node, ast.Call) else ""
        if kind and isinstance(node, ast.Call):
            found[node.lineno] = kind if found.get(node.lineno, kind) == kind else "both"
    return found


def _kind(function: ast.expr) -> str:
    if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "tl"):
        return ""
    if function.attr in _BOTH:
        return "both"
    return "load" if function.attr in _LOADS else "store" if function.attr in _STORES else ""


@lru_cache(maxsize=1)
def _root() -> Path | None:
    spec = find_spec(_LIBRARY)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _shown(path: Path) -> str:
    root = _root()
    return str(Path(_LIBRARY) / path.relative_to(root)) if root else path.name
