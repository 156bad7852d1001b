"""Where in the model the nodes of a graph were called.

Dynamo names modules from the function that it traces. After a graph break that is no longer the model's: then each
layer's norm is called `L['self']` there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx, nn

from auditor.collect.capture import module_path


def place(graph: fx.Graph, model: nn.Module) -> None:
    """Name the modules of ``graph`` by their paths in ``model``."""
    paths: dict[str, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(str(id(module)), []).append(path)
    base = _base(graph, model)
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        if stack:
            node.meta["nn_module_stack"] = {
                key: (_absolute(_full(str(path), base, paths.get(key, []))), kind)
                for key, (path, kind) in stack.items()
            }
        elif base:
            node.meta["nn_module_stack"] = {"": (_absolute(base), type(model.get_submodule(base)))}


def _full(path: str, base: str, known: list[str]) -> str:
    """Of the paths that a module has the one that fits how Dynamo calls it."""
    relative = module_path(path)
    joined = ".".join(part for part in (base, relative) if part)
    return next((p for p in (joined, relative) if p in known), known[0] if known else joined)


def _absolute(path: str) -> str:
    return f"L['self'].{path}" if path else "L['self']"


def _base(graph: fx.Graph, model: nn.Module) -> str:
    """The path of the module whose forward was traced, as its parameters tell."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            owners.setdefault(id(tensor), []).append(path)
    bases: set[str] | None = None
    for relative, tensor in _tensors(graph):
        fitting = {base for owner in owners.get(id(tensor), ()) if (base := _without(owner, relative)) is not None}
        if fitting:
            bases = fitting if bases is None else bases & fitting
    return min(bases, key=len) if bases else ""


def _tensors(graph: fx.Graph) -> Iterator[tuple[str, Any]]:
    """Tensors that belong to modules, each with its module's path as Dynamo has it."""
    for node in graph.nodes:
        given = _given(node)
        name = str(getattr(getattr(given, "source", None), "name", ""))
        for kind in ("._parameters[", "._buffers["):
            owner, found, _ = name.partition(kind)
            if found:
                yield module_path(owner), given.example


def live_tensor(node: fx.Node) -> Any:
    """The tensor that a placeholder stands for in the call that is traced; None for what is no placeholder."""
    return getattr(_given(node), "example", None)


def _given(node: fx.Node) -> Any:
    return node.meta.get("grapharg") if node.op == "placeholder" else None


def _without(path: str, relative: str) -> str | None:
    """``path`` without ``relative`` at its end; None where it does not end so."""
    if not relative:
        return path
    if path == relative:
        return ""
    return path.removesuffix(f".{relative}") if path.endswith(f".{relative}") else None
