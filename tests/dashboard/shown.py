"""Reading what a page shows: its text, its links, and the properties of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from dash.development.base_component import Component


def parts(root: Any) -> Iterator[Any]:
    """Every component and every text below ``root``, in order."""
    if root is None:
        return
    if isinstance(root, (list, tuple)):
        for item in root:
            yield from parts(item)
        return
    yield root
    if isinstance(root, Component):
        yield from parts(getattr(root, "children", None))


def text(root: Any) -> str:
    """What a reader reads, one space between parts."""
    return " ".join(str(part) for part in parts(root) if not isinstance(part, Component))


def links(root: Any) -> dict[str, str]:
    """Text of each link → its address; the first of equal ones."""
    found: dict[str, str] = {}
    for part in parts(root):
        href = getattr(part, "href", None)
        if isinstance(part, Component) and href:
            found.setdefault(text(part), href)
    return found


def by_id(root: Any, ident: Any) -> Component:
    """The component with this id."""
    for part in parts(root):
        if isinstance(part, Component) and getattr(part, "id", None) == ident:
            return part
    raise AssertionError(f"nothing has the id {ident!r}")


def labels(root: Any) -> set[str]:
    """What parts are called for who does not see them."""
    return {str(part.to_plotly_json()["props"].get("aria-label", "")) for part in _components(root)}


def drawings(root: Any) -> str:
    """The markup of all drawings."""
    return "".join(str(part.to_plotly_json()["props"].get("data-svg", "")) for part in _components(root))


def _components(root: Any) -> Iterator[Component]:
    return (part for part in parts(root) if isinstance(part, Component))


def page(name: str) -> Any:
    """The module of a page."""
    return import_module(f"dashboard.pages.{name}")


def button(root: Any) -> Any:
    """The first button of ``root``."""
    return next(part for part in parts(root) if type(part).__name__ == "Button")
