"""The service from its start to its end: a socket, a worker beside it, and the URL to log in with."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import uvicorn

from auditor.errors import AuditError
from auditor.store import Store
from dashboard.api.app import create_service
from dashboard.api.logfile import log_to
from dashboard.api.receive import sweep
from dashboard.api.service import Service
from dashboard.api.settings import Settings
from dashboard.jobs.commands import environment
from dashboard.jobs.running import Caps
from dashboard.jobs.workers import fail_abandoned

_STOP_S = 25.0
_BACKOFF_S = 30.0
_WORKER = "import sys; sys.path[:] = [p for p in sys.path if p]; from dashboard.jobs.worker import main; main()"
"""Not ``-m``: that would look for modules of ours in the current folder first."""
_log = logging.getLogger("fusion_audit.service")


def serve(store: Store, settings: Settings, caps: Caps, say: Callable[[str], None], *, worker: bool = True) -> None:
    """Serve ``store`` until a signal asks to end.

    Raises:
        AuditError: the port is taken or not ours to take.
    """
    listening = _listen(settings)
    settings = replace(settings, port=listening.getsockname()[1])
    keeper = WorkerKeeper(store, caps)
    service = Service(store, settings, worker_lives=keeper.lives)
    log_to(service.place.service_log)
    sweep(service.place.uploads)
    fail_abandoned(store)
    app = create_service(service)
    asyncio.run(app.prepare())
    server = uvicorn.Server(_config(app))
    if worker:
        keeper.start()
    try:
        _announce(service, say)
        for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn sends them once more when it has ended
            signal.signal(number, lambda _number, _frame: None)
        server.run(sockets=[listening])
    finally:
        keeper.stop()


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, date_header=True, proxy_headers=False,
        timeout_graceful_shutdown=5, timeout_keep_alive=30, lifespan="off", ws="none",
    )  # fmt: skip


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        raise AuditError(
            f"{settings.host}:{settings.port} can't be listened on: {error.strerror or error}; take another with --port"
        ) from None
    return listening


def _announce(service: Service, say: Callable[[str], None]) -> None:
    settings, token = service.settings, service.sessions.new_start_token()
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "") else settings.host
    host = f"[{host}]" if ":" in host else host
    say(f"the dashboard is at http://{host}:{settings.port}/login?token={token}")
    if not settings.only_here:
        say("others can reach it: every request needs a token, and what is sent is readable on the way without TLS")


class WorkerKeeper(threading.Thread):
    """Keeps one worker running; one that dies is started again, later each time."""

    def __init__(self, store: Store, caps: Caps) -> None:
        super().__init__(name="worker keeper", daemon=True)
        self._store, self._caps = store, caps
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def run(self) -> None:
        wait_s = 0.5
        while not self._ending.is_set():
            began_s = time.monotonic()
            self._process = self._spawn()
            while self._process.poll() is None and not self._ending.wait(0.2):
                pass
            if self._ending.is_set():
                return
            _log.warning("the worker ended with code %s; it is started again", self._process.returncode)
            self._fail_abandoned()
            wait_s = 0.5 if time.monotonic() - began_s > 60 else min(wait_s * 2, _BACKOFF_S)
            self._ending.wait(wait_s)

    def stop(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join()
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _fail_abandoned(self) -> None:
        try:
            fail_abandoned(self._store)
        except AuditError:
            _log.exception("the jobs of a worker that ended could not be looked at")

    def _spawn(self) -> subprocess.Popen[bytes]:
        caps = ["--job-time-s", str(self._caps.time_s), "--job-memory-bytes", str(self._caps.memory_bytes)]
        # a session of its own: Ctrl-C in the terminal is for the service, which then ends the worker
        return subprocess.Popen(
            [sys.executable, "-c", _WORKER, "--parent", str(os.getpid()), *caps],
            env=environment(self._store), stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
