"""Who is logged in. A browser trades a token for a session in a cookie; machines send their token each time."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from auditor.store.tokens import TokenTable, hashed

LIFE_S = 12 * 3600.0
_MOST = 1000
START_TOKEN = "start"


@dataclass(frozen=True)
class _Session:
    token: str
    ends_s: float


class Sessions:
    """Tokens and sessions. The token that ``fusion-audit serve`` prints lives as long as this process; only its hash
    is kept, and of a session, too.
    """

    def __init__(self, tokens: TokenTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._clock, self._lock = tokens, clock, threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._start = ""

    def new_start_token(self) -> str:
        """The token for the URL that is printed; an earlier one is no longer good."""
        token = secrets.token_hex(32)
        self._start = hashed(token)
        return token

    def token_of(self, text: str) -> str:
        """Which token ``text`` is; "" where it is none."""
        if self._start and hmac.compare_digest(hashed(text), self._start):
            return START_TOKEN
        return self._tokens.check(text)

    def open(self, token: str) -> str:
        """A session for the token of that name; its text is for the cookie."""
        text = secrets.token_hex(32)
        with self._lock:
            self._sessions[hashed(text)] = _Session(token, self._clock() + LIFE_S)
            while len(self._sessions) > _MOST:
                self._sessions.popitem(last=False)
        return text

    def is_open(self, text: str) -> bool:
        """Whether the session has not ended, nor its token been revoked."""
        with self._lock:
            session = self._sessions.get(hashed(text))
        if session is None or session.ends_s < self._clock():
            return False
        return session.token == START_TOKEN or self._tokens.exists(session.token)

    def close(self, text: str) -> None:
        with self._lock:
            self._sessions.pop(hashed(text), None)
