"""docs/reference/python.md: every public name, shown by Sphinx from its docstring."""

from __future__ import annotations

import inspect

import auditor
import fused_replacements
from reference_pages.text import fence, page

INTRODUCTION = """\
`import auditor` imports no torch: each name is imported when it is first used. The replacements have
[pages of their own](../replacements/README.md)."""


def pages() -> dict[str, str]:
    names = sorted(name for name in auditor.__all__ if not name.startswith("__"))
    parts = [_directive("auditor", name, getattr(auditor, name)) for name in names]
    registry = [
        _directive("fused_replacements", name, value)
        for name in sorted(fused_replacements.__all__)
        if not name.startswith("__") and name not in _shown_elsewhere()
        for value in [getattr(fused_replacements, name)]
        if callable(value)
    ]
    client = [_directive("auditor.client", name, None) for name in ("Client", "ServiceError")]
    return {
        "python.md": page(
            "Python API", INTRODUCTION, "## auditor", *parts, "## auditor.client", *client,
            "## fused_replacements", *registry,
        )
    }  # fmt: skip


def _shown_elsewhere() -> set[str]:
    from fused_replacements.docs import BESIDE
    from fused_replacements.docs import pages as replacement_pages

    names = {name.removesuffix(".md") for name in replacement_pages()}
    return names | {other for others in BESIDE.values() for other in others}


def _directive(module: str, name: str, value: object) -> str:
    kind = "function" if inspect.isfunction(value) else "class"
    if inspect.isclass(value) and issubclass(value, Exception):
        kind = "exception"
    members = "" if kind == "function" else "\n   :members:"
    return fence("{eval-rst}", f".. auto{kind}:: {module}.{name}{members}")
