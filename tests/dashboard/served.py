"""The service in processes of its own, as a user starts it, and a worker alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auditor.client import Client

START_S = 90.0


@dataclass
class Served:
    """A running service. ``url`` is its base, ``token`` the one that it printed."""

    process: subprocess.Popen[str]
    url: str
    token: str

    @property
    def client(self) -> Client:
        return Client(self.url, self.token, timeout_s=90)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Forget the pipe of a process that has ended."""
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def start(place: str, *options: str, cwd: Path | None = None) -> Served:
    code = "import sys; from auditor.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0", "--db", place, *options], stderr=subprocess.PIPE,
        text=True, cwd=cwd,
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        found = re.search(r"(http://\S+?)/login\?token=(\w+)", line)
        if found:
            return _answering(Served(process, found[1], found[2]))
    raise AssertionError(f"the service did not start: {said}")


@contextmanager
def serving(place: str, *options: str, cwd: Path | None = None) -> Iterator[Served]:
    served = start(place, *options, cwd=cwd)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.process.terminate()
            try:
                served.process.wait(60)
            except subprocess.TimeoutExpired:
                served.kill()
        served.close()


@contextmanager
def working(place: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker alone."""
    code = "from dashboard.jobs.worker import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *options], env={**os.environ, "FUSION_AUDIT_DB": place})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def until(found: Callable[[], Any], what: str, timeout_s: float = START_S) -> Any:
    """What ``found`` gives, once that is true."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.1)
    return value


def ask(url: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Status, body (JSON where it is) and headers (names in lower case); nothing raises but a broken connection."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=60) as answer:
            status, data, found = answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            status, data, found = error.code, error.read(), error.headers
    text = data.decode("utf-8", "replace")
    is_json = "json" in found.get("content-type", "")
    return status, json.loads(text) if is_json and text else text, {k.lower(): v for k, v in found.items()}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def _answering(served: Served) -> Served:
    until(lambda: _answers(served), "the service answers")
    return served


def _answers(served: Served) -> bool:
    assert served.process.poll() is None
    try:
        return ask(f"{served.url}/api/v1/health", Authorization=f"Bearer {served.token}")[0] == 200
    except OSError:
        return False
