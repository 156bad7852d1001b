"""Attributes that Dash's elements take but do not declare: ``aria-*`` and ``data-*``."""

from __future__ import annotations

from typing import Any


def aria(**names: str) -> dict[str, Any]:
    """``aria(label="Log")`` is ``{"aria-label": "Log"}``."""
    return {f"aria-{name}": value for name, value in names.items()}


def data(**names: str) -> dict[str, Any]:
    """``data(svg=markup)`` is ``{"data-svg": markup}``."""
    return {f"data-{name}": value for name, value in names.items()}
