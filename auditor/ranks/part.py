"""What one rank hands to rank 0: its audit, or why there is none."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from auditor.document import Document
from auditor.errors import AuditError
from auditor.report.json import finite

if TYPE_CHECKING:
    import pyarrow


class Process(msgspec.Struct, kw_only=True, frozen=True):
    """A process, told from a later one of the same number by when it began (0 where the system does not say)."""

    host: str
    pid: int
    began: int = 0

    @classmethod
    def this(cls) -> Process:
        return cls(host=socket.gethostname(), pid=os.getpid(), began=_began(os.getpid()))

    def is_local(self) -> bool:
        return self.host == socket.gethostname()

    def ended(self) -> bool:
        """Whether it is known to run no more: of another machine's nothing is known."""
        if not self.is_local():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # another user's
            return False
        return bool(self.began) and _began(self.pid) != self.began


def _began(pid: int) -> int:
    """Start time of a process in clock ticks since boot (proc(5), field 22 of stat); 0 for none, and for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return 0 if fields[0] == "Z" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


class Part(msgspec.Struct, kw_only=True):
    """One rank's part of a run. ``document`` is missing where it recorded no step."""

    rank: int
    local_rank: int = -1
    process: Process
    exit_code: int = 0
    failure: str = ""
    """Why the script, or the audit of what it did, failed; empty where neither did."""
    at_s: float = 0.0
    """When the part was made, Unix time: of several ranks that failed the first one tells why."""
    document: Document | None = None
    tables: dict[str, pyarrow.Table] = {}


class _File(msgspec.Struct, kw_only=True):
    """A part as a file, beside which its tables lie. ``job`` is the mark of the job that it belongs to."""

    job: str
    rank: int
    local_rank: int
    process: Process
    exit_code: int
    failure: str
    at_s: float
    document: Document | None
    tables: list[str]


def write_part(folder: Path, part: Part, job: str) -> None:
    """Write ``part`` into ``folder``: tables first, so that a part that is there is whole."""
    import pyarrow.parquet

    for name, table in part.tables.items():
        pyarrow.parquet.write_table(table, _table_path(folder, part.rank, name), compression="zstd")
    data = _File(
        job=job, rank=part.rank, local_rank=part.local_rank, process=part.process, exit_code=part.exit_code,
        failure=part.failure, at_s=part.at_s, document=finite(part.document), tables=list(part.tables),
    )  # fmt: skip
    replace_file(part_path(folder, part.rank), msgspec.json.encode(data))


def read_part(folder: Path, rank: int, job: str) -> Part | None:
    """The part of ``rank``; ``None`` where there is none of this job.

    Raises:
        AuditError: it is damaged.
    """
    import pyarrow.parquet

    path = part_path(folder, rank)
    try:
        data = msgspec.json.decode(path.read_bytes(), type=_File)
        if data.job != job or data.rank != rank:
            return None
        tables: dict[str, pyarrow.Table] = {}
        for name in data.tables:
            with (
                _table_path(folder, rank, name).open("rb") as file,
                pyarrow.parquet.ParquetFile(file, pre_buffer=False) as parquet,
            ):
                tables[name] = parquet.read(use_threads=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.MsgspecError, pyarrow.ArrowException) as error:
        raise AuditError(f"{path}: the part of rank {rank} can't be read ({error})") from None
    return Part(
        rank=rank, local_rank=data.local_rank, process=data.process, exit_code=data.exit_code, failure=data.failure,
        at_s=data.at_s, document=data.document, tables=tables,
    )  # fmt: skip


def part_path(folder: Path, rank: int) -> Path:
    return folder / f"part-{rank}.json"


def _table_path(folder: Path, rank: int, name: str) -> Path:
    return folder / f"part-{rank}.{name}.parquet"


def replace_file(path: Path, data: bytes) -> None:
    """Write ``path`` at once: readers see all of it, or what was there before."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    os.replace(scratch, path)
