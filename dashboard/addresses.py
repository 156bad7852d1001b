"""What an address says to a page: its path names the thing, its query how it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import unquote

import dash

_VARIABLE = re.compile(r"<(\w+)>")


def from_path(layout: Callable[..., Any], template: str) -> Callable[..., Any]:
    """``layout``, told of a run, a job or a rule by the path alone.

    Dash lets a query of the same name win: a link would name one run and show, and change, another. Of a key that
    comes twice the last counts.
    """
    names = _VARIABLE.findall(template)
    pattern = re.compile("".join("([^/]+)" if i % 2 else re.escape(part) for i, part in enumerate(_parts(template))))

    @wraps(layout)
    def asked(**given: Any) -> Any:
        texts = {name: value[-1] if isinstance(value, list) and value else value for name, value in given.items()}
        found = pattern.fullmatch(_path().rstrip("/")) if names else None
        if found:
            texts |= dict(zip(names, map(unquote, found.groups()), strict=True))
        return layout(**{name: value for name, value in texts.items() if isinstance(value, str)})

    return asked


def _parts(template: str) -> list[str]:
    """Texts and the names of variables, in turns."""
    return _VARIABLE.split(template)


def _path() -> str:
    """The path that is being shown, or "" outside of Dash's own callback."""
    try:
        return str(dash.ctx.inputs.get("_pages_location.pathname") or "")
    except dash.exceptions.MissingCallbackContextException:
        return ""
