"""Where a store is: a folder, a database file or a database URL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from auditor.errors import AuditError
from auditor.project import root_of

FOLDER = ".fusion-audit"
FOLDER_VARIABLE = "FUSION_AUDIT_DIR"
PLACE_VARIABLE = "FUSION_AUDIT_DB"
ARTEFACTS_VARIABLE = "FUSION_AUDIT_ARTEFACTS"
_DATABASE = "audits.db"
_SUFFIXES = {".db", ".sqlite", ".sqlite3"}


@dataclass(frozen=True)
class Location:
    """``url`` for SQLAlchemy, ``artefacts`` for fsspec, ``file`` where the database is a file."""

    url: str
    artefacts: str
    label: str
    file: Path | None = None


def locate(place: str | Path | None = None) -> Location:
    """Find the store that ``place`` names.

    A URL (``postgresql://…``, ``sqlite:///…``) is used as it is; a name ending in ``.db``, ``.sqlite`` or
    ``.sqlite3`` is a database file; anything else is a folder. ``None`` means the place in ``FUSION_AUDIT_DB``, the
    folder in ``FUSION_AUDIT_DIR``, or :func:`default_folder`. A server's Parquet files go to ``FUSION_AUDIT_ARTEFACTS``
    (a path or an fsspec URL), or to the folder.
    """
    if place is None:
        place = os.environ.get(PLACE_VARIABLE) or default_folder()
    if "://" in str(place):
        return _from_url(str(place))
    return _from_path(Path(place).expanduser())


def default_folder() -> Path:
    """``.fusion-audit`` of the project that this folder is in: the nearest one up to the project's root, else there.

    Outside of any project it is the one of this folder.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    here = Path.cwd()
    root = root_of(here) or here
    within = [place for place in (here, *here.parents) if place == root or root in place.parents]
    return next((place / FOLDER for place in within if (place / FOLDER).is_dir()), root / FOLDER)


def _from_path(path: Path) -> Location:
    file = (path if path.suffix in _SUFFIXES else path / _DATABASE).absolute()
    # The files of a database carry its name: two databases in one folder never sweep each other's.
    return Location(f"sqlite:///{file}", str(file.with_suffix(".artefacts")), str(file), file)


def _from_url(url: str) -> Location:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except ArgumentError:
        raise AuditError(
            f"{url!r} is not a database URL; expected for example postgresql+psycopg://user@host/audits"
        ) from None
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise AuditError(f"{url}: a store needs a file; write sqlite:////path/to/audits.db or just the path")
        return _from_path(Path(parsed.database))
    if parsed.drivername in ("postgres", "postgresql"):  # whatever driver SQLAlchemy would take: psycopg 3 is ours
        url = parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    root = os.environ.get(ARTEFACTS_VARIABLE) or str(default_folder() / "artefacts")
    root = root if "://" in root else os.path.abspath(os.path.expanduser(root))
    return Location(url, root, parsed.render_as_string(hide_password=True))


def service_folder(location: Location) -> Path:
    """Where the service keeps uploads, logs of jobs and their plans: beside the database's file or the artefacts."""
    return _beside(location, "service")


def ranks_folder(location: Location) -> Path:
    """Where the ranks of a job hand their parts to rank 0, while it runs."""
    return _beside(location, "ranks")


def _beside(location: Location, name: str) -> Path:
    if location.file is not None:
        return location.file.with_suffix(f".{name}")
    if "://" in location.artefacts:
        return (default_folder() / name).absolute()
    return Path(location.artefacts).with_name(f"{Path(location.artefacts).name}.{name}").absolute()
