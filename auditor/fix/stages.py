"""How far a fix is: written in the script's process, read and said in the one that waits for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

FILE = "stage.txt"
_SAY_EVERY_S = 10


def write(folder: Path, stage: str) -> None:
    """Write down the stage, such as ``trying sites: 3 of 26``. What comes before a colon is its name."""
    scratch = folder / f".{FILE}.{os.getpid()}"
    scratch.write_text(stage, encoding="utf-8")
    os.replace(scratch, folder / FILE)


class Stages:
    """Gives the sentence to say: a new one for each stage, and now and then within one. ``first``: before any."""

    def __init__(self, folder: Path, first: str) -> None:
        self._folder, self._first, self._began_s = folder, first, time.monotonic()
        self._last, self._sentence = (first, 0), ""

    def __call__(self) -> str:
        stage = self._stage()
        passed_s = int(time.monotonic() - self._began_s) // _SAY_EVERY_S * _SAY_EVERY_S
        now = (stage.partition(":")[0], passed_s)
        if now != self._last:
            self._last, self._sentence = now, f"{stage}, {passed_s} s" if passed_s else stage
        return self._sentence

    def _stage(self) -> str:
        try:
            return (self._folder / FILE).read_text(encoding="utf-8") or self._first
        except OSError:
            return self._first
