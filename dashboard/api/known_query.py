"""A parameter that a path does not have is refused: a filter with a slip in its name would else find everything."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from auditor.report.format import clip, safe
from dashboard.api.errors import Refused


def known_query(request: Request) -> None:
    """A dependency of every path. Raises :class:`Refused` with the first unknown parameter, and the known ones."""
    if not request.query_params:
        return
    names = _names(request.scope["route"].dependant)
    odd = next((name for name in request.query_params if name not in names), None)
    if odd is not None:
        told = f"this path has {', '.join(names)}" if names else "this path has none"
        raise Refused(422, f"query {clip(safe(odd), 60)}: there is no such parameter; {told}")


def _names(dependant: Any) -> list[str]:
    """Of a path's function and of what it depends on."""
    own = [str(field.alias) for field in dependant.query_params]
    return own + [name for each in dependant.dependencies for name in _names(each)]
