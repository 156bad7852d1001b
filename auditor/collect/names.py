"""Names inside annotations: the profiler writes them into JSON without escaping, so they are escaped here.

``%XX`` as in URLs, for everything but letters, digits and harmless punctuation; ``|`` separates the parts.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

_SAFE = " !#$&'()*+,-./:;<=>?@[]^_`{}~"


@lru_cache(maxsize=65536)
def encoded(name: str) -> str:
    """``name`` in ASCII without ``"``, ``\\``, ``|`` and control characters.

    Undecodable bytes are spelled out as ``\\udcXX``, since no file of ours could hold them.
    """
    return quote(name, safe=_SAFE, errors="backslashreplace")


@lru_cache(maxsize=65536)
def decoded(part: str) -> str:
    """The name that :func:`encoded` was given."""
    return unquote(part)
