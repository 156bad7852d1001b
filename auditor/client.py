"""A client of the service, for scripts and machines that build and test.

::

    client = Client("http://host:8050", token)
    client.push(store, "latest")
    job = client.submit("import", client.upload("trace.json.gz")["id"])
    client.wait(job["id"])["result_run"]

It needs nothing but the standard library. Answers are the JSON of the API (``/api/v1/openapi.json``).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from auditor.errors import AuditError
from auditor.report.format import safe

if TYPE_CHECKING:
    from auditor.store import Store

_ENDED = ("done", "failed", "cancelled")
_BUNDLE = "application/vnd.fusion-audit.run+tar"
_ANSWER_BYTES = 512_000_000


class ServiceError(AuditError):
    """The service refused, with its own sentence; ``status`` is that of HTTP, 0 where it could not be reached."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """The service at ``url``. Every method raises :class:`ServiceError` where it does not answer as it should."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 60.0) -> None:
        parts = _address(url)
        token = token.strip()
        if not token.isascii() or not token.isprintable():
            raise AuditError("the token holds characters that no token has; copy it again, or make another")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._parts, self._token, self._timeout_s = parts, token, timeout_s

    def health(self) -> Any:
        return self._ask("GET", "health")

    def runs(self, **filters: Any) -> Any:
        """A page of runs: ``{"total": …, "runs": […]}``. Filters are those of the API: ``text``, ``limit`` …"""
        return self._ask("GET", f"runs?{urlencode(filters)}")

    def run(self, ref: str = "latest") -> Any:
        return self._ask("GET", f"runs/{quote(ref, safe='')}")

    def document(self, ref: str = "latest") -> Any:
        """The audit document of a run."""
        return self._ask("GET", f"runs/{quote(ref, safe='')}/document")

    def delete(self, ref: str) -> None:
        self._ask("DELETE", f"runs/{quote(ref, safe='')}")

    def findings(self, ref: str = "latest", **filters: Any) -> Any:
        return self._ask("GET", f"runs/{quote(ref, safe='')}/findings?{urlencode(filters)}")

    def kernels(self, ref: str = "latest", **filters: Any) -> Any:
        return self._ask("GET", f"runs/{quote(ref, safe='')}/kernels?{urlencode(filters)}")

    def compare(self, before: str, after: str) -> Any:
        return self._ask("GET", f"compare?{urlencode({'a': before, 'b': after})}")

    def push(self, store: Store, ref: str = "latest") -> bool:
        """Send a run of ``store``; False where it was there already."""
        from auditor.store.bundle import write_bundle

        with tempfile.TemporaryFile(prefix="fusion-audit-") as file:
            write_bundle(store, ref, file)
            return bool(self._part(self._send("runs", {}, file, _BUNDLE), "new"))

    def upload(self, trace: str | Path, execution_trace: str = "") -> Any:
        """Send a trace file; ``execution_trace`` is the id of an earlier upload."""
        path = Path(trace)
        asked = {"name": path.name} | ({"execution_trace": execution_trace} if execution_trace else {})
        try:
            with path.open("rb") as file:
                sent = self._send("uploads", asked, file, "application/octet-stream")
        except OSError as error:
            raise AuditError(f"{path}: {error.strerror or error}") from None
        self._part(sent, "id")
        return sent

    def submit(self, kind: str, run: str, **options: Any) -> Any:
        """Queue a job: ``fix`` or ``audit`` of a run, ``import`` of an upload."""
        return self._ask("POST", "jobs", {"kind": kind, "run": run, "options": options})

    def job(self, job: str) -> Any:
        return self._ask("GET", f"jobs/{quote(job, safe='')}")

    def log(self, job: str, after: int = 0) -> Any:
        return self._ask("GET", f"jobs/{quote(job, safe='')}/log?after={after}")

    def cancel(self, job: str) -> Any:
        return self._ask("POST", f"jobs/{quote(job, safe='')}/cancel")

    def retry(self, job: str) -> Any:
        return self._ask("POST", f"jobs/{quote(job, safe='')}/retry")

    def wait(self, job: str, timeout_s: float = 3600.0, every_s: float = 1.0) -> Any:
        """The job once it has ended."""
        deadline_s = time.monotonic() + timeout_s
        while self._part(known := self.job(job), "state") not in _ENDED:
            if time.monotonic() > deadline_s:
                raise ServiceError(f"job {job} is still {known['state']} after {timeout_s:.0f} s")
            time.sleep(every_s)
        return known

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            data = None if body is None else json.dumps(body).encode()
        except (TypeError, ValueError) as error:
            raise AuditError(f"the options can't be sent as JSON: {error}") from None
        headers = {"Content-Type": "application/json"} if data is not None else {}
        return self._request(method, path, data, headers)

    def _send(self, path: str, asked: dict[str, str], file: IO[bytes], kind: str) -> Any:
        digest, nbytes = _digest(file)
        headers = {"Content-Type": kind, "Content-Length": str(nbytes)}
        return self._request("POST", f"{path}?{urlencode({**asked, 'sha256': digest})}", _chunks(file), headers)

    def _request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection = self._connection()
            try:
                connection.request(method, f"{self._parts.path.rstrip('/')}/api/v1/{path}", body, headers)
                answer = connection.getresponse()
                data = answer.read(_ANSWER_BYTES)
                if answer.length:  # reading a part at most says nothing where it ends too soon
                    raise http.client.IncompleteRead(b"", answer.length)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServiceError(f"{self.url}: the service can't be reached or broke off ({_reason(error)})") from None
        if 300 <= answer.status < 400:
            where = safe(answer.headers.get("Location") or "another address")
            raise ServiceError(f"{self.url}: it redirects to {where}; name that address instead", answer.status)
        if answer.status >= 400:
            raise ServiceError(f"{self.url}: {_sentence(data) or _without_words(answer.status)}", answer.status)
        if answer.status == 204:
            return None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise self._stranger(answer.status) from None
        if not isinstance(found, dict):
            raise self._stranger(answer.status)
        return found

    def _part(self, answer: Any, name: str) -> Any:
        """A field that the answer has to have."""
        if name not in answer:
            raise self._stranger(200)
        return answer[name]

    def _stranger(self, status: int) -> ServiceError:
        return ServiceError(f"{self.url}: what answers there is no service of Fusion Auditor", status)

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=self._timeout_s)


def _address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # of the port, or of an address in brackets
        good = False
    if not good:
        raise AuditError(f"{url!r} is no address of a service; expected for example http://127.0.0.1:8050")
    return parts


def _digest(file: IO[bytes]) -> tuple[str, int]:
    digest, nbytes = hashlib.sha256(), 0
    for chunk in _chunks(file):
        digest.update(chunk)
        nbytes += len(chunk)
    return digest.hexdigest(), nbytes


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(1 << 18):
        yield chunk


def _sentence(data: bytes) -> str:
    try:
        return safe(str(json.loads(data)["error"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _without_words(status: int) -> str:
    """What it means that something answers with a status and no sentence of ours."""
    if status in (404, 405):
        return "there is no service of Fusion Auditor at this path; give the address that fusion-audit serve printed"
    return f"HTTP status {status}"


def _reason(error: BaseException) -> str:
    return safe(str(getattr(error, "strerror", "") or error or type(error).__name__))
