"""Baselines: files that differ little, stored runs, addresses, and what is none."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from gate_factory import audited, graph, save

from auditor.errors import AuditError
from auditor.gate.baseline import baseline_of, is_stored, written
from auditor.gate.compare import compare
from auditor.gate.snapshot import snapshot_of
from auditor.gate_document import BASELINE, Snapshot
from auditor.store import Store

ROOT = Path("/repo")


def text(norms: int = 2, **run: object) -> str:
    return written(snapshot_of(audited(graph(norms, fused=1), **run)), ROOT)


def test_the_file_is_small_deterministic_and_free_of_times() -> None:
    document = audited(graph(2))
    first = written(snapshot_of(document), ROOT)
    document.findings.reverse()
    for finding in document.findings:
        finding.device_us *= 1.1
        finding.saving.step_us *= 0.9
    document.totals.step_us *= 1.001

    assert written(snapshot_of(document), ROOT) == first
    data = json.loads(first)
    assert data["schema"] == BASELINE
    assert data["run"]["commit"] == "c0ffee" * 6
    assert list(data) == ["schema", "run", "figures", "findings"]
    (norm,) = data["findings"]
    assert norm["source"] == {"file": "model.py", "line": 10, "function": "forward"}
    assert not {"places", "ops", "graph", "device_us", "likely_us", "step_us"} & norm.keys()
    assert len(first) < 2000


def test_a_change_of_one_finding_changes_few_lines() -> None:
    before, after = (set(text(norms).splitlines()) for norms in (2, 3))
    assert len(after - before) <= 12


def test_a_file_is_read_back_and_equals_its_run(folder: Path, store: Store) -> None:
    Path("base.json").write_text(text())

    baseline = baseline_of("base.json", store)

    assert (baseline.label, baseline.file) == ("baseline base.json", "base.json")
    found = compare(baseline.snapshot, snapshot_of(audited(graph(2, fused=1))))
    assert [change.change for change in found.findings] == ["same"]
    assert {m.verdict for m in found.measures if m.counted} == {"same"}
    assert is_stored("llama")
    assert not any(map(is_stored, ("base.json", "gone.json", "https://host/x", str(folder / "base.json"))))


def test_the_json_of_an_audit_serves_as_well(folder: Path, store: Store) -> None:
    (folder / "audit.json").write_bytes(msgspec.json.encode(audited(graph(2))))
    assert baseline_of("audit.json", store).snapshot == snapshot_of(audited(graph(2)))


def test_a_stored_run_by_name(store: Store) -> None:
    run = save(store, graph(1))
    baseline = baseline_of("llama", store)
    assert (baseline.label, baseline.snapshot.run.id) == (f"run {run.id}", run.id)
    with pytest.raises(AuditError, match=r"^baseline: no run 'bert'; there are: "):
        baseline_of("bert", store)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "baseline b.json is not JSON ("), ("{", "baseline b.json is not JSON ("),
        ("[]", "baseline b.json is no baseline; write one with: fusion-audit baseline RUN -o FILE"),
        ('{"schema": "sarif"}', "baseline b.json is no baseline"),
        ('{"schema": "fusion-audit-baseline/9"}', "has schema fusion-audit-baseline/9, this version reads fusion-"),
        ('{"schema": "fusion-audit-baseline/1", "findings": 3}', "baseline b.json is damaged: Expected `array`"),
    ],
)  # fmt: skip
def test_what_is_no_baseline_is_told(folder: Path, store: Store, content: str, sentence: str) -> None:
    (folder / "b.json").write_text(content)
    with pytest.raises(AuditError) as caught:
        baseline_of("b.json", store)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"), [('"kernels": 12', '"kernels": -12'), ('"step_us": 1000.0', '"step_us": -1000')]
)
def test_a_figure_below_zero_is_told(folder: Path, store: Store, old: str, new: str) -> None:
    assert old in text()
    (folder / "b.json").write_text(text().replace(old, new))
    told = new.replace('"', "").replace(":", " is")
    with pytest.raises(AuditError, match=f"^baseline b.json is damaged: its {told}, and no figure can be negative"):
        baseline_of("b.json", store)


def test_a_file_that_is_not_there(store: Store) -> None:
    with pytest.raises(AuditError, match=r"^no file a/b.json; .* fusion-audit baseline RUN -o b.json$"):
        baseline_of("a/b.json", store)


class _Answers(BaseHTTPRequestHandler):
    """A place with a baseline file, and a service with one run that asks for a token."""

    def do_GET(self) -> None:
        token = self.headers.get("Authorization")
        if self.path == "/drip.json":
            self._drip()
        elif self.path == "/cut.json":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
        elif self.path == "/moved.json":
            self.send_response(302)
            self.send_header("Location", "/moved.json")
            self.end_headers()
        elif self.path == "/files/base.json":
            self._answer(200, text().encode() if token is None else b"a token was sent")
        elif self.path == "/base/api/v1/runs/1m8/document":
            good = token == "Bearer secret"
            body = msgspec.json.encode(audited(graph(2))) if good else b'{"error": "a token is needed"}'
            self._answer(200 if good else 401, body)
        else:
            self._answer(404, b"{}")

    def _drip(self) -> None:
        """An answer that goes on for ever, a byte at a time."""
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.01)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class TestAddresses:
    def test_a_file(self, url: str) -> None:
        baseline = baseline_of(f"{url}/files/base.json", None, "secret")
        assert baseline.snapshot == msgspec.json.decode(text(), type=Snapshot)

    @pytest.mark.parametrize("path", ["/base/run/1m8", "/base/run/1m8/kernels", "/base/api/v1/runs/1m8/document"])
    def test_a_run_of_a_service(self, url: str, path: str) -> None:
        baseline = baseline_of(f"{url}{path}", None, "secret")
        assert baseline.snapshot == snapshot_of(audited(graph(2)))

    def test_refusals(self, url: str) -> None:
        with pytest.raises(AuditError, match="a token is needed"):
            baseline_of(f"{url}/base/run/1m8", None)
        with pytest.raises(AuditError, match="answers with HTTP status 404; is the address right"):
            baseline_of(f"{url}/nowhere.json?signature=secret", None)
        with pytest.raises(AuditError, match=r"^http://127.0.0.1:9/x.json can't be reached \(") as caught:
            baseline_of("http://user:secret@127.0.0.1:9/x.json", None)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("path", "sentence"),
        [
            ("/drip.json", r"/drip.json can't be reached \(it took longer than 0 s\)$"),
            ("/cut.json", r"/cut.json can't be reached \(IncompleteRead|is not JSON \("),
            ("/moved.json", r"/moved.json answers with HTTP status 302; is the address right\?$"),
        ],
    )
    def test_answers_that_never_end_or_end_early(
        self, url: str, path: str, sentence: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("auditor.gate.baseline._TIMEOUT_S", 0.3)
        with pytest.raises(AuditError, match=sentence):
            baseline_of(f"{url}{path}", None)

    @pytest.mark.parametrize(
        ("ref", "sentence"),
        [
            ("http://a b/x.json", "can't be reached \\(URL can't contain control characters"),
            ("http://[::1/x.json", "is no address \\(Invalid IPv6 URL"),
            ("HTTP://127.0.0.1:9/x.json", "can't be reached"),
            (" ", "the name of the baseline is empty"), ("x" * 5000, "holds no audits yet"),
        ],
    )  # fmt: skip
    def test_what_is_no_address(self, store: Store, ref: str, sentence: str) -> None:
        with pytest.raises(AuditError, match=sentence) as caught:
            baseline_of(ref, store)
        assert "\n" not in str(caught.value)
