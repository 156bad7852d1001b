"""What a job prints: kept in its log up to a size, and read for the sentences that say how far it is."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from auditor.report.format import clip, safe

LOG_BYTES = 20_000_000
_SAID = "fusion-audit: "
_FAILED = "error: "
_LINE_BYTES = 4000
_READ_BYTES = 256 * 1024


class Output(threading.Thread):
    """Reads ``stream`` to its end, in a thread of its own: a full pipe would stop the work."""

    def __init__(self, stream: IO[bytes], log: Path) -> None:
        super().__init__(name="job output", daemon=True)
        self.said = ""
        """The last sentence of ours."""
        self.error = ""
        """The last complaint of ours."""
        self._stream, self._log, self._rest = stream, log, b""
        self._room = LOG_BYTES

    def run(self) -> None:
        with self._stream:
            while chunk := self._read():
                if self._room > 0:
                    self._keep(chunk)
                self._look(chunk)

    def _keep(self, chunk: bytes) -> None:
        """A disk that is full costs what it has no room for, and nothing else: the work goes on."""
        full = b"\nfusion-audit: the log is full; what follows is not kept\n" if len(chunk) >= self._room else b""
        with suppress(OSError), self._log.open("ab", buffering=0) as log:
            log.write(chunk[: self._room] + full)
        self._room -= len(chunk)

    def _read(self) -> bytes:
        return self._stream.read1(65536)  # type: ignore[attr-defined, no-any-return]

    def _look(self, chunk: bytes) -> None:
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[:_LINE_BYTES]
        for line in lines:
            text = line[:_LINE_BYTES].decode("utf-8", "replace").strip()
            if text.startswith(_SAID):
                self.said = clip(safe(text[len(_SAID) :]), 500)
            elif text.startswith(_FAILED):
                self.error = clip(safe(text[len(_FAILED) :]), 2000)


def read_log(log: Path, after: int) -> tuple[str, int]:
    """The text from byte ``after`` on, at most 256 kB of it, and where to go on.

    Control characters are written as escapes, but for tabs and line ends.
    """
    try:
        with log.open("rb") as file:
            file.seek(after)
            data = file.read(_READ_BYTES)
    except OSError:
        return "", after
    data = _whole(data)
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join("\t".join(map(safe, line.split("\t"))) for line in text.split("\n")), after + len(data)


def _whole(data: bytes) -> bytes:
    """Without the first bytes of a character whose others are not there yet."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # goes on with an earlier one
            continue
        length = 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4 if byte >> 3 == 30 else 1
        return data[:-back] if length > back else data
    return data
