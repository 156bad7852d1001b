"""``python -m auditor`` is ``fusion-audit``."""

from __future__ import annotations

import sys

from auditor.cli import main

if __name__ == "__main__":
    sys.exit(main())
