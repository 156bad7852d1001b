"""Tokens for machines: made once, shown once, kept as a hash.

A token is ``fa_<id>_<secret>`` with 256 random bits in its secret, so that a plain SHA-256 keeps it as safe as a slow
hash would.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import delete, select, update

from auditor.errors import AuditError
from auditor.store.failures import Missing
from auditor.store.ids import is_id
from auditor.store.models import TokenRow
from auditor.store.rowtable import RowTable, now

PREFIX = "fa"
_NO_HASH = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class TokenRecord:
    """What is known of a token. Times are ISO 8601 in UTC; ``used`` to the minute, empty before its first use."""

    id: str
    name: str
    created: str
    used: str


class TokenTable(RowTable):
    """The table of tokens."""

    def new(self, name: str) -> tuple[TokenRecord, str]:
        """A token called ``name``, and its text, which is nowhere else."""
        if not name.strip() or len(name) > 255 or not name.isprintable():
            raise AuditError(f"{name!r} can't name a token; take a short text that can be shown")
        secret = secrets.token_hex(32)
        row = self._add(TokenRow(name=name, sha256=hashed(secret), created=now(), used=""))
        return TokenRecord(row.id, name, row.created, ""), f"{PREFIX}_{row.id}_{secret}"

    def list(self) -> list[TokenRecord]:
        """Every token, the newest first."""
        columns = (TokenRow.id, TokenRow.name, TokenRow.created, TokenRow.used)
        with self._reading() as session:
            return [TokenRecord(*row) for row in session.execute(select(*columns).order_by(TokenRow.id.desc()))]

    def revoke(self, token: str) -> TokenRecord:
        """Forget the token with this id or this name (if one alone has it)."""
        found = [known for known in self.list() if token in (known.id, known.name)]
        if len(found) != 1:
            what = "no token" if not found else f"{len(found)} tokens are called"
            raise Missing(f"{what} {token!r}; see: fusion-audit token list")
        self._write(delete(TokenRow).where(TokenRow.id == found[0].id))
        return found[0]

    def check(self, text: str) -> str:
        """The id of the token ``text``, or "" where it is none. Takes as long for a wrong secret as for a right one."""
        prefix, _, rest = text.partition("_")
        token, _, secret = rest.partition("_")
        if prefix != PREFIX or not is_id(token):
            return ""
        with self._reading() as session:
            row = session.execute(select(TokenRow.sha256, TokenRow.used).where(TokenRow.id == token)).first()
        right = hmac.compare_digest(hashed(secret), row.sha256 if row else _NO_HASH)
        if row is None or not right:
            return ""
        with suppress(AuditError):  # the token is good, whether or not its use can be noted now
            self._note_use(token, row.used)
        return token

    def exists(self, token: str) -> bool:
        """Whether the token with this id has not been revoked."""
        with self._reading() as session:
            return session.execute(select(TokenRow.id).where(TokenRow.id == token)).first() is not None

    def _note_use(self, token: str, before: str) -> None:
        minute = now()[:16]
        if not before.startswith(minute):
            self._write(update(TokenRow).where(TokenRow.id == token).values(used=now()))


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
