"""The pages under docs/reference, written from the code that they are about.

    python -m reference_pages            (in docs/) write them
    python -m reference_pages --check    exit code 1, and what is stale, where they differ from the code

Nothing on them is written by hand: a new option, key, field, path or public name appears with the next ``make docs``,
and a test fails until then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "reference"


def pages() -> dict[str, str]:
    """Path inside of docs/reference to text, for every file there."""
    from reference_pages import command_line, configuration, devices, documents, http_api, python_api, rules

    found: dict[str, str] = {}
    for module in (command_line, rules, configuration, documents, http_api, python_api, devices):
        found |= module.pages()
    return found
