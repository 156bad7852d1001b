"""Pieces of Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by `make docs` from the code. Change that. -->"
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def page(title: str, *parts: str) -> str:
    """A page with its title, and the note that says where it comes from."""
    return "\n\n".join([f"# {title}", NOTE, *(part.strip("\n") for part in parts if part)]) + "\n"


def fence(language: str, code: str) -> str:
    return f"```{language}\n{code.strip(chr(10))}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing where there is no row."""
    lines = [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) if lines else ""


def cell(text: str) -> str:
    """``text`` in one line, with what would end a cell escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def prose(docstring: str | None) -> str:
    """A docstring as Markdown: roles and double back-quotes become code, ``::`` starts a block of Python."""
    text = _ROLE.sub(r"`\1`", inspect.cleandoc(docstring or ""))
    return _blocks(text.replace("``", "`"))


def _blocks(text: str) -> str:
    """An indented block after a line that ends in ``::`` becomes a fenced one."""
    lines, out, inside = text.split("\n"), [], False
    for line in lines:
        if inside and line and not line.startswith(" "):
            out[-1:] = ["```", ""] if not out[-1] else [out[-1], "```", ""]
            inside = False
        if line.endswith("::"):
            kept = line[:-2].rstrip()
            out += [f"{kept}:", ""] if kept else []
            out.append("```text")
            inside = True
            continue
        if inside and not line and out[-1] == "```text":
            continue
        out.append(line.removeprefix("    ") if inside else line)
    return "\n".join([*out, "```"] if inside else out)
