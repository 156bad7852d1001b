"""An upload on its way to the disk: never held in memory, counted, hashed, and there only when it is whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from auditor.store import Unavailable
from dashboard.api.errors import Refused
from dashboard.jobs.processes import is_alive, name_of

STALL_S = 60.0
"""A sender that is silent for so long is given up."""
_WRITE_BYTES = 1 << 20
_HEAD_BYTES = 64
_SPARE_BYTES = 200_000_000
_TEMPORARY = ".new-"


@dataclass(frozen=True)
class Received:
    """A whole upload under a temporary name. ``head`` are its first bytes."""

    path: Path
    nbytes: int
    sha256: str
    head: bytes


@asynccontextmanager
async def received(request: Request, folder: Path, limit_bytes: int, sha256: str) -> AsyncIterator[Received]:
    """The body of ``request`` as a file in ``folder``; whoever wants to keep it renames it inside of the block.

    Raises :class:`Refused` where it is too large, stalls, or is not what ``sha256`` (hexadecimal, or "") says.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    _check_space(folder, int(declared) if declared.isdigit() else 0)
    path = folder / f"{_TEMPORARY}{socket.gethostname()}-{name_of(os.getpid())}-{secrets.token_hex(4)}"
    try:
        found = await _write(request, path, limit_bytes)
        if sha256 and found.sha256 != sha256.lower():
            raise Refused(422, f"the upload's SHA-256 is {found.sha256}, not {sha256.lower()}; send it again")
        yield found
    except OSError as error:
        raise Unavailable(f"the upload can't be written: {error.strerror or error}") from error
    finally:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what uploads left that a killed process of this machine was receiving."""
    mine = f"{_TEMPORARY}{socket.gethostname()}-"
    for path in folder.glob(f"{_TEMPORARY}*"):
        if path.name.startswith(mine) and not is_alive(path.name[len(mine) :].rpartition("-")[0]):
            with suppress(OSError):
                path.unlink()


async def _write(request: Request, path: Path, limit_bytes: int) -> Received:
    digest, nbytes, held, head = hashlib.sha256(), 0, bytearray(), b""

    def flush(file: BinaryIO) -> None:
        digest.update(held)
        file.write(held)
        held.clear()

    with path.open("xb") as file:  # buffered: a raw write may take less than it was given
        os.chmod(path, 0o600)
        async for chunk in _chunks(request):
            nbytes += len(chunk)
            if nbytes > limit_bytes:
                raise _too_large(limit_bytes)
            head += bytes(chunk[: _HEAD_BYTES - len(head)])
            held += chunk
            if len(held) >= _WRITE_BYTES:
                await run_in_threadpool(flush, file)
        await run_in_threadpool(flush, file)
        await run_in_threadpool(file.flush)
        await run_in_threadpool(os.fsync, file.fileno())
    return Received(path, nbytes, digest.hexdigest(), head)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            yield await asyncio.wait_for(anext(stream), STALL_S)
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise Refused(408, f"the upload stalled for {STALL_S:.0f} s; send it again") from None
        except ClientDisconnect:
            raise Refused(400, "the upload broke off; send it again") from None


def _too_large(limit_bytes: int) -> Refused:
    return Refused(413, f"the upload is larger than {limit_bytes:,} bytes; serve with --max-upload to raise the limit")


def _check_space(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < nbytes + _SPARE_BYTES:
        raise Unavailable(f"the disk of the service has {free:,} bytes left, too few for this upload; free some space")
