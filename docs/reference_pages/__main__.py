"""The command: write docs/reference, or say what of it is stale."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fused_replacements.docs import stale, write
from reference_pages import FOLDER, pages


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m reference_pages")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is stale")
    options = parser.parse_args(arguments)
    if options.check:
        found = stale(FOLDER, pages())
        print(f"stale, run `make docs`: {', '.join(found)}" if found else f"{FOLDER} is fresh")
        return 1 if found else 0
    changed = write(FOLDER, pages())
    print(f"{FOLDER}: {', '.join(changed) if changed else 'nothing changed'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
