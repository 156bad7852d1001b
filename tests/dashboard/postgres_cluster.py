"""A PostgreSQL server for tests: its own data, a free port of the loopback, ended with the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


def why_not() -> str:
    """Why no server can be started here, "" where one can."""
    if not _BINARIES:
        return "no PostgreSQL server in /usr/lib/postgresql (Debian: apt-get install postgresql)"
    if os.getuid() == 0 and not shutil.which("setpriv"):
        return "PostgreSQL does not run as root, and there is no setpriv to run it as another user"
    return ""


@dataclass
class Cluster:
    """One running server."""

    port: int
    _numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Cluster]:
        with tempfile.TemporaryDirectory(prefix="fusion-audit-postgres-", ignore_cleanup_errors=True) as folder:
            data = Path(folder) / "data"
            if os.getuid() == 0:
                shutil.chown(folder, "postgres", "postgres")
            _run("initdb", "-D", str(data), "-U", "audit", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
            _run("pg_ctl", "-D", str(data), "-o", options, "-l", f"{folder}/log", "-w", "-t", "60", "start")
            try:
                yield cls(port)
            finally:
                _run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")

    def new_database(self) -> str:
        """The URL of a database that nobody has used yet."""
        import psycopg

        name = f"audits_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(f"{self._server}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
        return f"{self._server}/{name}"

    @property
    def _server(self) -> str:
        return f"postgresql://audit@127.0.0.1:{self.port}"


def _run(program: str, *arguments: str) -> None:
    command = [str(_BINARIES[-1].with_name(program)), *arguments]
    if os.getuid() == 0:
        command = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", *command]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=120)
