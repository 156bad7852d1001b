"""Writing SVG: escaped text, numbers without noise, titled drawings."""

from __future__ import annotations

from html import escape as _escape

from auditor.report.format import safe


def escape(text: str) -> str:
    """Untrusted ``text`` for HTML and SVG, in content and in quoted attributes."""
    return _escape(safe(text), quote=True)


def element(name: str, content: str | None = None, /, **attributes: float | str) -> str:
    """One element; ``content`` is markup, attribute values are escaped. Names: ``class_``, ``text_anchor``."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(v)}"' for key, v in attributes.items())
    return f"<{name}{written}/>" if content is None else f"<{name}{written}>{content}</{name}>"


def text(x: float, y: float, content: str, **attributes: float | str) -> str:
    """A line of untrusted text."""
    return element("text", escape(content), x=x, y=y, **attributes)


def drawing(ident: str, width: float, height: float, title: str, description: str, content: str, css: str) -> str:
    """A drawing that a screen reader can tell: role, title and description."""
    head = element("title", escape(title), id=f"{ident}-t") + element("desc", escape(description), id=f"{ident}-d")
    size = f'viewBox="0 0 {_value(width)} {_value(height)}" width="{_value(width)}" height="{_value(height)}"'
    labels = f'role="img" aria-labelledby="{escape(ident)}-t" aria-describedby="{escape(ident)}-d"'
    return f'<svg class="{css}" {size} {labels}>{head}{content}</svg>'


def _value(value: float | str) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
