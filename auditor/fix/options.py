"""What the user of ``fix`` asked for, as it is handed to the script's process."""

from __future__ import annotations

import msgspec

from auditor.config import Suppression


class Options(msgspec.Struct, kw_only=True):
    """What the user asked for."""

    rules: list[str] = []
    """Folders of further rules."""
    select: list[str] = []
    """Ids of the rules whose sites may be patched."""
    suppress: list[Suppression] = []
    """Sites that the project's settings leave out."""
    limit: int | None = None
    min_gain: float = 0.0
    keep_all: bool = False
    compile: bool = True
    """Time ``torch.compile`` of the whole model as well."""
    dry: bool = False
    """Look for sites and proposals, and measure nothing."""
    run: str = ""
    cap_s: float = 20.0
    """Seconds for timing the step."""
