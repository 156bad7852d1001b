"""The Parquet files of the runs: one folder per run, whole or absent.

A folder is written under a temporary name, flushed to the disk and renamed. What a killed process
leaves behind (a temporary folder, or a folder that never got its row) is swept by a later open.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from auditor.errors import AuditError
from auditor.store.failures import Unavailable

if TYPE_CHECKING:
    import pyarrow

LEFTOVER_AGE_S = 3600.0
"""A folder without a row is only taken for a leftover after this time: its writer may be at work."""

ROW_AGE_S = 120.0
"""The row of a folder is written a moment after it; a database that is busy takes half a minute."""

_TEMPORARY = re.compile(r"^\.new-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]+$")
_TABLE = re.compile(r"^[a-z][a-z0-9_]*$")


class Artefacts:
    """The folder ``root``: a path, or an fsspec URL for a store that several machines share."""

    def __init__(self, root: str) -> None:
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.root = root
        self._fs: Any
        self._base: str
        if "://" in root:
            self._fs, self._base = url_to_fs(root)
        else:  # not through fsspec's parser: "::" and "?" mean something to it
            self._fs, self._base = LocalFileSystem(), os.path.abspath(root)
        self._local = isinstance(self._fs, LocalFileSystem)

    def write(self, run: str, tables: dict[str, pyarrow.Table]) -> None:
        """Store ``tables`` as the files of ``run``. Raises ``FileExistsError`` when the id is taken."""
        final, temporary = self._folder(run), f"{self._base}/{_temporary_name()}"
        if self._fs.exists(final):
            raise FileExistsError(final)
        try:
            self._fs.makedirs(temporary, exist_ok=True)
            for name, table in tables.items():
                self._write_table(f"{temporary}/{name}.parquet", name, table)
            self._publish(temporary, final)
        except BaseException:
            with suppress(OSError):
                self._fs.rm(temporary, recursive=True)
            raise

    def read(
        self, run: str, name: str, columns: Sequence[str] | None = None, *, encoded: bool = False
    ) -> pyarrow.Table:
        """One table of one run, whole or some of its columns; ``encoded``: texts as Arrow dictionaries.

        Raises :class:`AuditError` when its file is missing or damaged, or lacks a column.
        """
        import pyarrow
        import pyarrow.parquet

        path = f"{self._folder(run)}/{name}.parquet"
        try:
            # Not ``read_table``: it reads on pyarrow's own threads, and one that still lets go of ``file`` when
            # the interpreter ends takes the whole process down (C++ "terminate called", exit code 134).
            with (
                self._fs.open(path, "rb") as file,
                pyarrow.parquet.ParquetFile(file, pre_buffer=False) as parquet,
            ):
                schema = parquet.schema_arrow
                lacking = [c for c in columns or () if c not in schema.names]
                if lacking:
                    raise AuditError(
                        f"{path}: the table {name!r} of run {run} lacks {', '.join(lacking)}; record the run again"
                    )
                chosen = list(schema.names if columns is None else columns)
                if not encoded:
                    return parquet.read(columns=chosen, use_threads=False)
                file.seek(0)
                texts = [c for c in chosen if pyarrow.types.is_string(schema.field(c).type)]
                with pyarrow.parquet.ParquetFile(file, pre_buffer=False, read_dictionary=texts) as coded:
                    return coded.read(columns=chosen, use_threads=False).unify_dictionaries()
        except FileNotFoundError:
            raise Unavailable(f"{path}: the table {name!r} of run {run} is missing; record the run again") from None
        except (pyarrow.ArrowException, OSError) as error:
            raise Unavailable(
                f"{path}: the table {name!r} of run {run} can't be read ({error}); record the run again"
            ) from error

    def delete(self, run: str) -> None:
        """Remove the files of ``run``; what is already gone is fine."""
        with suppress(FileNotFoundError):
            self._fs.rm(self._folder(run), recursive=True)

    def is_abandoned(self, run: str, now_s: float | None = None) -> bool:
        """Whether the folder of ``run``, which has no row, is older than any writer needs to add one."""
        return self._is_older(run, ROW_AGE_S, time.time() if now_s is None else now_s)

    def sweep(self, known: Collection[str], now_s: float | None = None) -> list[str]:
        """Remove old folders that no run of ``known`` owns and no living process writes. Returns their names."""
        now_s = time.time() if now_s is None else now_s
        swept = [name for name in self._names() if name not in known and self._is_leftover(name, now_s)]
        for name in swept:
            with suppress(OSError):
                self._fs.rm(f"{self._base}/{name}", recursive=True)
        return swept

    def _folder(self, run: str) -> str:
        return f"{self._base}/{run}"

    def _names(self) -> Iterable[str]:
        if not self._fs.exists(self._base):
            return []
        return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in self._fs.ls(self._base, detail=False)]

    def _is_leftover(self, name: str, now_s: float) -> bool:
        match = _TEMPORARY.match(name)
        if match and match["host"] == socket.gethostname() and _is_alive(int(match["pid"])):
            return False
        return self._is_older(name, LEFTOVER_AGE_S, now_s)

    def _is_older(self, name: str, age_s: float, now_s: float) -> bool:
        try:
            changed: float = self._fs.modified(f"{self._base}/{name}").timestamp()
        except (OSError, NotImplementedError):  # gone meanwhile, or an object store without folder times
            return False
        return now_s - changed > age_s

    def _write_table(self, path: str, name: str, table: pyarrow.Table) -> None:
        import pyarrow.parquet

        if not _TABLE.match(name):
            raise AuditError(f"{name!r} can't name a table; expected lower-case letters, digits and underscores")
        with self._fs.open(path, "wb") as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")
            if self._local:
                file.flush()
                os.fsync(file.fileno())

    def _publish(self, temporary: str, final: str) -> None:
        if not self._local:
            self._fs.mv(temporary, final, recursive=True)
            return
        _sync_folder(temporary)
        try:
            os.rename(temporary, final)
        except OSError as error:  # a folder with files in it is never replaced
            if os.path.isdir(final):
                raise FileExistsError(final) from error
            raise
        _sync_folder(self._base)


def _temporary_name() -> str:
    return f".new-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _sync_folder(path: str) -> None:
    if os.name == "nt":  # folders can't be opened there, and renames are journalled
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
