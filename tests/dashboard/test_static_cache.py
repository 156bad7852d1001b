"""Scripts that never change are compressed once."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from dashboard.api.static_cache import StaticCache

SCRIPT = "/_dash-component-suites/dash/a.v1.js"


@pytest.fixture
def asked() -> Counter[str]:
    return Counter()


@pytest.fixture
def client(asked: Counter[str]) -> TestClient:
    async def answer(request: Request) -> Response:
        asked[request.url.path] += 1
        status = 404 if request.url.path.endswith("gone.js") else 200
        return Response(b"x" * 5000 + str(asked.total()).encode(), status, media_type="text/javascript")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    return TestClient(StaticCache(GZipMiddleware(app), most_bytes=22_000))


def test_a_script_is_asked_for_once_with_and_once_without_compression(
    client: TestClient, asked: Counter[str]
) -> None:  # fmt: skip
    answers = [client.get(SCRIPT) for _ in range(3)]
    assert asked[SCRIPT] == 1
    assert {answer.text for answer in answers} == {"x" * 5000 + "1"}
    assert {answer.headers["content-encoding"] for answer in answers} == {"gzip"}
    plain = client.get(SCRIPT, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert asked[SCRIPT] == 2


def test_another_version_is_another_file(client: TestClient, asked: Counter[str]) -> None:
    assert client.get("/assets/style.css?m=1").text != client.get("/assets/style.css?m=2").text
    assert asked.total() == 2


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/api/v1/runs", {}), ("GET", "/", {}), ("POST", SCRIPT, {}), ("GET", "/assets/gone.js", {}),
        ("GET", SCRIPT, {"range": "bytes=0-9"}), ("GET", SCRIPT, {"if-none-match": '"a"'}),
    ],
)  # fmt: skip
def test_what_may_change_is_asked_for_each_time(
    method: str, path: str, headers: dict[str, str], client: TestClient, asked: Counter[str]
) -> None:
    for _ in range(2):
        client.request(method, path, headers=headers)
    assert asked[path] == 2


def test_no_more_is_kept_than_may_be(client: TestClient, asked: Counter[str]) -> None:
    # GIVEN five uncompressed files of 5 kB where 22 kB may be kept
    plain = {"accept-encoding": "identity"}
    paths = [f"/assets/{n}.js" for n in range(5)]
    for path in paths:
        client.get(path, headers=plain)
    # THEN the first has gone, and the last is there
    client.get(paths[4], headers=plain)
    assert asked[paths[4]] == 1
    client.get(paths[0], headers=plain)
    assert asked[paths[0]] == 2


def test_what_a_first_visit_loads_is_at_hand_before_it(client: TestClient, asked: Counter[str]) -> None:
    with ThreadPoolExecutor(1) as apart:  # a browser's tests leave a loop running in this thread
        apart.submit(lambda: asyncio.run(client.app.fill([SCRIPT, "/assets/style.css?m=1"]))).result()  # type: ignore[attr-defined]
    assert asked == {SCRIPT: 1, "/assets/style.css": 1}
    for address in (SCRIPT, "/assets/style.css?m=1"):
        assert client.get(address).headers["content-encoding"] == "gzip"
    assert asked.total() == 2
