"""The client against a running service: what it gives, and what it says when there is none."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from served import serving
from stored_runs import save, trace

from auditor.client import Client, ServiceError
from auditor.errors import AuditError
from auditor.store import Store


def test_the_story_of_a_trace(place: str, tmp_path: Path) -> None:
    # GIVEN a service and a trace on the client's side
    file = tmp_path / "step.json.gz"
    file.write_bytes(gzip.compress(trace()))
    with serving(place) as served:
        client = served.client
        assert client.health()["status"] == "ok"
        assert client.runs()["total"] == 0

        # WHEN it is uploaded and imported
        upload = client.upload(file)
        job = client.wait(client.submit("import", upload["id"])["id"], timeout_s=120)

        # THEN the run can be read, compared and deleted
        assert (job["state"], job["reason"]) == ("done", "")
        run = job["result_run"]
        assert client.run(run)["name"] == "step"
        assert client.document(run)["run"]["source"] == "trace"
        assert client.kernels(run, sort="dur_us")["total"] == 2
        assert client.findings(run)["total"] == len(client.document(run)["findings"])
        assert client.compare(run, run)["remarks"] == ["Both are the same run."]
        assert "stored as" in client.log(job["id"])["text"]
        assert client.runs(text="step")["total"] == 1
        client.delete(run)
        with pytest.raises(ServiceError, match="holds no audits yet") as refused:
            client.run(run)
        assert refused.value.status == 404
        with pytest.raises(ServiceError, match="is done; only one that failed"):
            client.retry(job["id"])
        assert client.cancel(job["id"])["state"] == "done"
        assert served.stop() == 0


def test_a_client_without_a_token_may_look(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        run = save(store)
    with serving(str(tmp_path / "store"), "--no-worker") as served:
        client = Client(served.url)
        assert client.run("latest")["id"] == run
        with pytest.raises(ServiceError, match="query nonsense: there is no such parameter; this path has limit"):
            client.runs(nonsense=1)
        with pytest.raises(ServiceError, match="a change needs a token") as refused:
            client.delete(run)
        assert refused.value.status == 401


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8050",
        "ftp://host",
        "http://",
        "file:///etc/passwd",
        "http://host:x",
        "http://host:99999",
        "http://[::1",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(AuditError, match="is no address of a service"):
        Client(url)


@pytest.mark.parametrize("token", ["fa_s\u00e9cret", "fa_se\r\nX-Evil: 1", "fa_se\x00", "\u2026secret"])
def test_a_token_that_is_none_is_not_repeated(token: str) -> None:
    with pytest.raises(AuditError, match="the token holds characters that no token has") as refused:
        Client("http://127.0.0.1:1", token)
    assert token[2:] not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_token_may_have_a_line_end_behind_it() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (url, asked):
        assert Client(url, "fa_token\n").health() == {}
    assert b"Authorization: Bearer fa_token\r\n" in asked[0]


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServiceError, match="can't be reached or broke off") as refused:
        Client(f"http://127.0.0.1:{port}", timeout_s=5).health()
    assert refused.value.status == 0


@pytest.mark.parametrize("answer", [b"hello", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b""])
def test_something_else_there(answer: bytes) -> None:
    with answering(answer) as (url, _), pytest.raises(ServiceError):
        Client(url, timeout_s=5).health()


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (b"404 Not Found", "there is no service of Fusion Auditor at this path; give the address"),
        (b"405 Method Not Allowed", "there is no service of Fusion Auditor at this path; give the address"),
        (b"502 Bad Gateway", "HTTP status 502"),
    ],
)
def test_an_answer_without_a_sentence_of_ours(status: bytes, sentence: str) -> None:
    page = b"HTTP/1.1 %s\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>" % status
    with answering(page) as (url, _), pytest.raises(ServiceError, match=sentence):
        Client(f"{url}/nope", timeout_s=5).cancel("1m8aaaaaaaaa")


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """The address of what answers once, and what it was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        thread.join()


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ServiceError) as refused:
        Client("http://user:secret@127.0.0.1:1", timeout_s=5).health()
    assert "secret" not in str(refused.value)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"none\.json: No such file"):
        Client("http://127.0.0.1:1").upload(tmp_path / "none.json")


def whole(body: bytes, status: str = "200 OK", head: str = "", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n{head}\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (whole(b"", "301 Moved", "Location: https://there/\r\n"), "it redirects to https://there/; name that address"),
        (whole(b"null"), "is no service of Fusion Auditor"), (whole(b"[]"), "is no service of Fusion Auditor"),
        (whole(b"{}"), "is no service of Fusion Auditor"), (whole(b""), "is no service of Fusion Auditor"),
        (whole(b"[" * 100_000), "is no service of Fusion Auditor"),
        (whole(b"{}", length=100), "can't be reached or broke off"),
        (whole(b'{"error": "\x1b[2Jno\xe2\x80\xae"}'.replace(b"\x1b", b"\\u001b"), "400 Bad"), r"\\x1b\[2Jno\\u202e$"),
    ],
    ids=["redirect", "null", "list", "empty object", "nothing", "deep", "cut off", "escapes"],
)  # fmt: skip
def test_answers_of_a_stranger_are_no_success(answer: bytes, sentence: str) -> None:
    with answering(answer) as (url, _), pytest.raises(ServiceError, match=sentence):
        Client(url, "token").wait("1m8aaaaaaaaa", timeout_s=1)


def test_what_can_not_be_asked_is_refused() -> None:
    with pytest.raises(AuditError, match="the options can't be sent as JSON"):
        Client("http://127.0.0.1:1").submit("fix", "latest", select={1})
    with pytest.raises(AuditError):
        Client("http://a b/").runs()
