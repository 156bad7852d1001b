"""The service under load: clients that browse while an audit runs and uploads come in.

    python benchmarks/service_load.py [--clients 50] [--seconds 60] [--database sqlite|postgresql|both]

Everything runs on this machine, on the loopback. Each client has a connection of its own, asks for a page or for what
a page needs, looks at it for a while (--think) and goes on. Meanwhile one uploader sends runs and traces without a
pause and a job audits a script. At the end every write that was acknowledged is looked for: the runs with their
kernels, the traces with their bytes, the job with its result.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# `dashboard.py` beside this file is another benchmark, not the package: this folder comes last
_HERE = Path(__file__).resolve()
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _HERE.parent]
sys.path += [str(_HERE.parents[1] / "tests" / "dashboard"), str(_HERE.parent)]

from dashboard_runs import large_run, small_runs  # noqa: E402
from postgres_cluster import Cluster  # noqa: E402
from served import Served, serving  # noqa: E402
from stored_runs import trace  # noqa: E402

from auditor.client import Client  # noqa: E402
from auditor.store import Store  # noqa: E402
from auditor.store.registering import digest, register  # noqa: E402
from dashboard.jobs.place import Place  # noqa: E402

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)).eval()
with torch.no_grad():
    for _ in range(30):
        model(torch.randn(64, 256))
"""


@dataclass
class Figures:
    """What was measured: milliseconds by kind of request, and what went wrong."""

    ms: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, ms: float, error: str) -> None:
        with self.lock:
            self.ms.setdefault(kind, []).append(ms)
            if error:
                self.errors.append(f"{kind}: {error}")


@dataclass
class Written:
    """What the service acknowledged."""

    runs: list[str] = field(default_factory=list)
    uploads: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Browser(threading.Thread):
    """One client until ``ending`` is set."""

    def __init__(self, url: str, runs: list[str], large: str, think_s: float, figures: Figures, seed: int) -> None:
        super().__init__(daemon=True)
        self._parts, self._runs, self._large = urlsplit(url), runs, large
        self._think_s, self._figures, self._draw = think_s, figures, random.Random(seed)
        self.ending = threading.Event()
        self._connection = self._connect()

    def run(self) -> None:
        while not self.ending.is_set():
            self._ask(*self._next())
            self.ending.wait(self._draw.uniform(0.5, 1.5) * self._think_s)

    def _next(self) -> tuple[str, str, bytes | None]:
        """Kind, path and body of the next request."""
        run = self._draw.choice(self._runs)
        other = self._draw.choice(self._runs)
        return self._draw.choice(
            [
                ("page: shell", "/", None),
                ("page: runs", *_page("/")),
                ("page: overview", *_page(f"/run/{run}")),
                ("page: rules", *_page("/rules")),
                ("page: jobs", *_page("/jobs")),
                ("api: runs", f"/api/v1/runs?limit=100&offset={self._draw.randrange(0, 900, 100)}&sort=step_us", None),
                ("api: runs by text", f"/api/v1/runs?text=model-{self._draw.randrange(20)}", None),
                ("api: run", f"/api/v1/runs/{run}", None),
                ("api: findings", f"/api/v1/runs/{run}/findings", None),
                ("api: kernels", f"/api/v1/runs/{self._large}/kernels?sort=dur_us&order=desc&name=add", None),
                ("api: compare", f"/api/v1/compare?a={run}&b={other}", None),
                ("api: jobs", "/api/v1/jobs", None),
            ]
        )

    def _ask(self, kind: str, path: str, body: bytes | None) -> None:
        headers = {"Accept-Encoding": "gzip"}
        if body is not None:
            headers |= {"Content-Type": "application/json", "Origin": f"http://{self._parts.netloc}"}
        began_s, error = time.perf_counter(), ""
        try:
            self._connection.request("POST" if body is not None else "GET", path, body, headers)
            answer = self._connection.getresponse()
            data = answer.read()
            if answer.status >= 400:
                error = f"{answer.status} {data[:200]!r}"
        except (OSError, http.client.HTTPException) as broken:
            error = repr(broken)
            self._connection.close()
            self._connection = self._connect()
        self._figures.note(kind, 1e3 * (time.perf_counter() - began_s), error)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._parts.hostname or "", self._parts.port, timeout=60)


class Uploader(threading.Thread):
    """Sends a run, then a trace, and so on without a pause, until ``ending`` is set."""

    def __init__(self, client: Client, bundles: Iterator[tuple[Store, str]], folder: Path) -> None:
        super().__init__(daemon=True)
        self._client, self._bundles, self._folder = client, bundles, folder
        self.ending, self.written = threading.Event(), Written()

    def run(self) -> None:
        for number, (store, run) in enumerate(self._bundles):
            if self.ending.is_set():
                return
            try:
                self._client.push(store, run)
                self.written.runs.append(run)
                data = trace()[:-1] + b" " * (number + 1) + b"}"
                file = self._folder / f"trace-{number}.json"
                file.write_bytes(data)
                self.written.uploads.append((self._client.upload(file)["id"], hashlib.sha256(data).hexdigest()))
            except Exception as error:
                self.written.errors.append(repr(error))


def _page(path: str) -> tuple[str, bytes]:
    """What Dash's own router asks for when a page is opened."""
    ids = [("_pages_content", "children"), ("_pages_store", "data")]
    inputs = [("pathname", path), ("search", "")]
    asked: dict[str, Any] = {
        "output": ".._pages_content.children..._pages_store.data..",
        "outputs": [{"id": name, "property": what} for name, what in ids],
        "inputs": [{"id": "_pages_location", "property": what, "value": value} for what, value in inputs],
        "changedPropIds": [f"_pages_location.{what}" for what, _ in inputs],
        "state": [],
    }
    return "/_dash-update-component", json.dumps(asked).encode()


def load(place: str, arguments: argparse.Namespace, folder: Path) -> bool:
    """Fill the store at ``place``, serve it, load it, and print what came of it. Whether all was well."""
    with Store.open(place) as store:
        small_runs(store, arguments.runs)
        large = store.save(*large_run(arguments.kernels))
        known = [run.id for run in store.list_runs()]
        script = _registered(store, folder)
    figures, bundles = Figures(), _elsewhere(folder)
    with serving(place, cwd=folder) as served:
        served.client.kernels(large)  # the first reader of a run pays for its table
        uploader = Uploader(served.client, bundles, folder)
        browsers = [
            Browser(served.url, known[:200], large, arguments.think, figures, seed) for seed in range(arguments.clients)
        ]
        job = served.client.submit("audit", script)["id"]
        for thread in (uploader, *browsers):
            thread.start()
        time.sleep(arguments.seconds)
        for thread in (uploader, *browsers):
            thread.ending.set()
        for thread in (uploader, *browsers):
            thread.join(60)
        ended = served.client.wait(job, timeout_s=600)
        memory = _resident_mb(served.process.pid)
        lost = _lost(served, uploader.written, ended, place)
    _report(figures, uploader.written, lost, memory, arguments.seconds)
    return not (figures.errors or uploader.written.errors or lost)


def _registered(store: Store, folder: Path) -> str:
    (folder / "script.py").write_text(SCRIPT)
    document, tables = large_run(26)
    document.run.source, document.run.script = "profile", ["script.py"]
    run = store.save(document, tables)
    before = Path.cwd()
    os.chdir(folder)
    try:
        register(store, run, "script.py", [], digest("script.py"))
    finally:
        os.chdir(before)
    return run


def _elsewhere(folder: Path) -> Iterator[tuple[Store, str]]:
    """Runs of a build machine's store, made as they are asked for."""
    with Store.open(folder / "elsewhere") as store:
        while True:
            yield store, store.save(*large_run(5_000))


def _lost(served: Served, written: Written, job: dict[str, Any], place: str) -> list[str]:
    lost = [run for run in written.runs if served.client.kernels(run)["total"] != 5_000]
    with Store.open(place) as store:
        kept = {upload.id: upload for upload in store.uploads.list()}
        for upload, sha256 in written.uploads:
            file = Place.beside(store.location).upload(upload, "json")
            if upload not in kept or hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
                lost.append(upload)
    if job["state"] != "done" or not served.client.run(job["result_run"])["kernels"]:
        lost.append(f"job {job['id']}: {job['state']} {job['reason']}")
    return lost


def _report(figures: Figures, written: Written, lost: list[str], memory_mb: float, seconds: float) -> None:
    every = [ms for kind in figures.ms.values() for ms in kind]
    print(f"  {'REQUEST':<20}{'COUNT':>7}{'P50':>10}{'P95':>10}{'P99':>10}")
    for kind, found in [*sorted(figures.ms.items()), ("all", every)]:
        cuts = statistics.quantiles(found, n=100) if len(found) > 1 else found * 99
        print(f"  {kind:<20}{len(found):>7}" + "".join(f"{cuts[share - 1]:>7.0f} ms" for share in (50, 95, 99)))
    print(f"  {len(every) / seconds:.0f} requests a second, {len(figures.errors)} errors; memory {memory_mb:.0f} MB")
    print(
        f"  {len(written.runs)} runs and {len(written.uploads)} traces sent in, {len(written.errors)} errors, "
        f"{len(lost)} lost writes; the audit was done beside it"
        + (" – NOT" if any("job" in one for one in lost) else "")
    )
    for sentence in [*figures.errors[:5], *written.errors[:5], *lost[:5]]:
        print(f"    {sentence}")


def _resident_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) / 1e3


@contextmanager
def _places(which: str, folder: Path) -> Iterator[list[tuple[str, str]]]:
    found = [("SQLite", str(folder / "sqlite"))] if which != "postgresql" else []
    if which == "sqlite":
        yield found
        return
    with Cluster.started() as cluster:
        yield [*found, ("PostgreSQL", cluster.new_database())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--think", type=float, default=2.0, help="mean seconds between two requests of a client")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kernels", type=int, default=100_000, help="of the largest run")
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    arguments = parser.parse_args()
    well = True
    with tempfile.TemporaryDirectory(prefix="fusion-audit-load-") as name:
        os.environ["XDG_STATE_HOME"] = f"{name}/state"
        with _places(arguments.database, Path(name)) as places:
            for title, place in places:
                folder = Path(name) / title
                folder.mkdir()
                os.environ["FUSION_AUDIT_ARTEFACTS"] = str(folder / "artefacts")
                print(f"{title}: {arguments.clients} clients, {arguments.runs} runs stored", flush=True)
                well = load(place, arguments, folder) and well
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
