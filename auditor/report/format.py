"""Numbers, units and names as every report writes them. Decimal units only (1 kB = 1000 B)."""

from __future__ import annotations

import math
import unicodedata

UNKNOWN = "unknown"
_TIME = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
_SIZE = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def duration(us: float) -> str:
    """Microseconds with three significant digits: ``0.40 µs``, ``12.3 µs``, ``1.24 ms``, ``3.00 s``."""
    return _scaled(us, _TIME, _TIME[-1])


def size(nbytes: float) -> str:
    """Bytes with three significant digits: ``512 B``, ``1.05 MB``, ``2.40 GB``."""
    if math.isfinite(nbytes) and abs(nbytes) < 1000:
        return f"{nbytes:.0f} B"
    return _scaled(nbytes, _SIZE, _SIZE[-1])


def from_to(now: int, fused: int) -> str:
    """``84.0 MB → 32.5 MB``; :data:`UNKNOWN` where there are no shapes to tell either."""
    return f"{size(now)} → {size(fused)}" if now or fused else UNKNOWN


def count(n: int) -> str:
    """An integer with thousands separated: ``12,436``."""
    return f"{n:,}"


def plural(n: int, noun: str, nouns: str = "") -> str:
    """A count and its noun: ``1 site``, ``2 sites``."""
    return f"{count(n)} {noun if n == 1 else nouns or noun + 's'}"


def ratio(part: float, whole: float) -> float | None:
    """``part / whole``, or ``None`` where that says nothing (no whole, or not a number)."""
    if not (math.isfinite(part) and math.isfinite(whole)) or whole <= 0:
        return None
    return part / whole


def percent(share: float) -> str:
    """A share as percent: ``62 %``, ``3.7 %``; a share that is not zero never reads ``0.0 %``."""
    value = 100 * share
    if 0 < value < 0.1:
        return "< 0.1 %"
    return f"{value:.0f} %" if abs(value) >= 9.95 or value == 0 else f"{value:.1f} %"


def share(part: float, whole: float) -> str:
    """``part`` of ``whole`` as percent, :data:`UNKNOWN` where there is no whole."""
    value = ratio(part, whole)
    return UNKNOWN if value is None else percent(value)


def speedup(factor: float) -> str:
    """A factor: ``×1.09``, ``×12.5``; :data:`UNKNOWN` where it is not finite."""
    return f"×{_digits(factor)}" if math.isfinite(factor) else UNKNOWN


def shape(dims: tuple[int, ...]) -> str:
    """A tensor's shape as the SSA text writes it: ``[2, 64, 256]``."""
    return f"[{', '.join(map(str, dims))}]"


def safe(text: str) -> str:
    r"""``text`` on one line, with everything that could steer a terminal or reorder text made visible.

    Names come from traces and are not to be trusted: control characters and escapes (``\x1b``), bidirectional
    overrides, line separators, invisible format characters and lone surrogates are written as escapes.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def clip(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters, its middle left out: the ends of a path tell most."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) * 2 // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def _visible(char: str) -> str:
    if char == " " or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}:
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _scaled(value: float, units: tuple[tuple[float, str], ...], smallest: tuple[float, str]) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return f"0 {smallest[1]}"
    # Round first: 999.6 µs is "1.00 ms", not "1000 µs".
    rounded = float(f"{value:.3g}")
    scale, unit = next((u for u in units if abs(rounded) >= u[0]), smallest)
    return f"{_digits(rounded / scale)} {unit}"


def _digits(value: float) -> str:
    size_ = abs(value)
    if size_ >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size_ >= 9.995 else f"{value:.2f}"
