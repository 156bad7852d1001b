"""What the code in a folder belongs to: lists of runs and trends are grouped by it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def project_of(folder: Path) -> str:
    """The name in the nearest ``pyproject.toml``, else that of the repository's folder, else of ``folder``.

    ``?`` stands for each byte of a folder's name that is not UTF-8: no database takes it.
    """
    return _name(folder.absolute()).encode("utf-8", errors="replace").decode("utf-8")


def root_of(folder: Path) -> Path | None:
    """The nearest folder with a ``pyproject.toml`` or a repository, ``folder`` itself included; None without one."""
    folder = folder.absolute()
    for place in (folder, *folder.parents):
        if (place / "pyproject.toml").is_file() or (place / ".git").exists():
            return place
    return None


def _name(folder: Path) -> str:
    for place in (folder, *folder.parents):
        name = _declared(place / "pyproject.toml")
        if name:
            return name
        if (place / ".git").exists():
            return place.name
    return folder.name


def _declared(file: Path) -> str:
    try:
        table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        name = table.get("project", {}).get("name", "")
    except (OSError, ValueError, AttributeError):  # a mistake in it is told by whoever reads the settings
        return ""
    return name if isinstance(name, str) else ""
