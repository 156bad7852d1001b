"""What a database or a disk complains about, as one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoneFree

from auditor.errors import AuditError


class Missing(AuditError):  # noqa: N818 - it is an answer, as "no run" is
    """What was asked for is not stored."""


class Unavailable(AuditError):  # noqa: N818
    """The database or the disk refuses; the same request may work later."""


def status_of(error: AuditError) -> int:
    """The HTTP status that fits it."""
    return 404 if isinstance(error, Missing) else 503 if isinstance(error, Unavailable) else 400


_SENTENCES = (
    ("malformed", "the database is damaged; move it away, a new one is made on the next run"),
    ("not a database", "this file is not a database; move it away, or name another place with --db"),
    ("locked", "the database stayed locked by another process; try again when that has ended"),
    ("disk is full", "the disk is full; free some space, or name another place with --db"),
    (
        "disk i/o error",
        "the disk refused to write or read; check its space and health, or name another place with --db",
    ),
    ("readonly", "the place can't be written; change its permissions, or name another place with --db"),
    ("unable to open", "the database can't be opened; check the folder's permissions, or name another place with --db"),
)
"""Parts of SQLite's messages → what they mean to the user."""


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Turn what SQLAlchemy and the file system raise into an :class:`AuditError` that names ``label``."""
    try:
        yield
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise AuditError(f"{label}: no driver for this database is installed ({error}); install it with pip") from None
    except DBAPIError as error:
        raise _kind(error)(f"{label}: {_sentence(error.orig)}") from error
    except NoneFree as error:
        raise Unavailable(f"{label}: no connection to the database came free; try again later") from error
    except SQLAlchemyError as error:
        raise AuditError(f"{label}: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise Unavailable(
            f"{error.filename or label}: {error.strerror or error}; name another place with --db if it can't be mended"
        ) from error


def _kind(error: DBAPIError) -> type[AuditError]:
    return AuditError if isinstance(error, DataError) else Unavailable


def _sentence(error: BaseException | None) -> str:
    message = " ".join(str(error).split())
    for part, sentence in _SENTENCES:
        if part in message.lower():
            return sentence
    return message
