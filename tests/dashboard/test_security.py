"""The service's security, line by line: who may ask, from where, for what, and what becomes of hostile text."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.exc
from api_client import installed_client
from starlette.testclient import TestClient
from stored_runs import save, save_script

from auditor.store import Store, Unavailable
from auditor.store.failures import readable
from dashboard.api.attempts import WINDOW_S, WRONG, Attempts
from dashboard.api.guard import TRUSTED
from dashboard.api.service import Service
from dashboard.api.settings import Settings

CHANGES = [("POST", "/api/v1/jobs"), ("POST", "/api/v1/uploads?name=a.json"), ("POST", "/api/v1/runs"),
           ("POST", "/api/v1/jobs/1m8aaaaaaaaa/cancel"), ("POST", "/api/v1/jobs/1m8aaaaaaaaa/retry"),
           ("DELETE", "/api/v1/runs/latest"), ("DELETE", "/api/v1/uploads/1m8aaaaaaaaa"),
           ("PUT", "/api/v1/rules/FUS101"), ("POST", "/logout"), ("POST", "/anything")]  # fmt: skip


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def abroad(store: Store) -> Service:
    """A service that other machines can reach."""
    return Service(store, Settings(host="0.0.0.0", port=8050))


def log_in(client: TestClient, token: str) -> None:
    assert client.get("/login", params={"token": token}).status_code == 303


class TestTokens:
    @pytest.mark.parametrize(("method", "path"), CHANGES)
    def test_a_change_needs_one(self, method: str, path: str, store: Store, anyone: TestClient) -> None:
        run = save(store)
        answer = anyone.request(method, path)
        assert answer.status_code == 401
        assert answer.json()["error"].startswith("a change needs a token")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert [found.id for found in store.list_runs()] == [run]

    def test_these_are_all_the_changes_of_the_api(self, anyone: TestClient) -> None:
        paths = anyone.get("/api/v1/openapi.json").json()["paths"]
        known = {(method, re.sub(r"\?.*", "", path)) for method, path in CHANGES}
        for path, operations in paths.items():
            concrete = (
                path.replace("{run}", "latest").replace("{job}", "1m8aaaaaaaaa").replace("{upload}", "1m8aaaaaaaaa")
            )  # fmt: skip
            for method in set(operations) - {"get"}:
                assert (method.upper(), concrete.replace("{rule}", "FUS101")) in known

    @pytest.mark.parametrize(
        "path", ["/", "/api/v1/health", "/api/v1/runs", "/api/v1/openapi.json", "/metrics", "/assets/style.css"]
    )
    def test_where_others_can_ask_everything_needs_one(self, path: str, abroad: Service) -> None:
        token = abroad.sessions.new_start_token()
        with installed_client(abroad) as client:
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": f"Bearer {token}"}).status_code in (200, 404)
            assert client.post("/_dash-update-component", json={}).status_code == 401

    def test_a_browser_is_sent_to_the_form(self, abroad: Service) -> None:
        with installed_client(abroad) as client:
            answer = client.get("/", headers={"Accept": "text/html,*/*"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
            assert client.get("/login").status_code == 200
            log_in(client, abroad.sessions.new_start_token())
            assert client.get("/api/v1/runs").status_code == 200

    def test_a_name_from_elsewhere_makes_it_reachable_by_others(self) -> None:
        assert Settings().only_here
        assert Settings("::1").only_here
        assert not Settings(hosts=("audits.example",)).only_here
        assert not Settings("10.0.0.5").only_here

    def test_only_its_hash_is_kept(self, store: Store, service: Service) -> None:
        known, text = store.tokens.new("ci")
        start = service.sessions.new_start_token()
        session = service.sessions.open(known.id)
        secret = text.rsplit("_", 1)[1]
        assert store.location.file is not None
        stored = b"".join(path.read_bytes() for path in store.location.file.parent.rglob("*") if path.is_file())
        assert hashlib.sha256(secret.encode()).hexdigest().encode() in stored
        for hidden in (secret, start, session):
            assert len(hidden) == 64  # 256 bits
            assert hidden.encode() not in stored
            assert hidden not in repr(vars(service.sessions))

    @pytest.mark.parametrize("known", [True, False])
    def test_they_are_compared_in_constant_time_known_or_not(
        self, known: bool, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token, text = store.tokens.new("ci")
        compared: list[tuple[str, str]] = []
        real = hmac.compare_digest

        def compare(a: str, b: str) -> bool:
            compared.append((a, b))
            return real(a, b)

        monkeypatch.setattr(hmac, "compare_digest", compare)
        wrong = f"fa_{token.id if known else '1m8aaaaaaaaa'}_{'0' * 64}"
        assert store.tokens.check(wrong) == ""
        assert store.tokens.check(text) == token.id
        assert [len(a) == len(b) == 64 for a, b in compared] == [True, True]

    @pytest.mark.parametrize("text", ["", "fa_", "fa__", "Bearer", "fa_1m8aaaaaaaaa_", "é" * 64, "fa_x_y", "\ud800"])
    def test_what_is_no_token(self, text: str, service: Service) -> None:
        assert service.sessions.token_of(text) == ""

    def test_a_wrong_one_is_refused_even_to_look(self, anyone: TestClient) -> None:
        for sent in ("Bearer nonsense", "bearer x", "Bearer"):
            assert anyone.get("/api/v1/runs", headers={"Authorization": sent}).status_code == 401

    def test_another_kind_of_login_is_no_token(self, service: Service, anyone: TestClient) -> None:
        for _ in range(WRONG + 1):
            head = {"Authorization": "Basic YTpi"}
            assert anyone.get("/api/v1/runs", headers=head).status_code == 200
            assert anyone.put("/api/v1/rules/FUS101", json={}, headers=head).status_code == 401
        assert service.attempts.wait_s("127.0.0.1") == 0

    def test_a_store_that_refuses_makes_no_token_wrong(
        self, store: Store, service: Service, anyone: TestClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_text: str) -> str:
            raise Unavailable("the database stayed locked")

        monkeypatch.setattr(store.tokens, "check", refuse)
        answer = anyone.get("/api/v1/runs", headers={"Authorization": "Bearer fa_x"})
        assert (answer.status_code, answer.json()) == (503, {"error": "the database stayed locked"})
        assert service.attempts.wait_s("127.0.0.1") == 0
        assert service.metrics.wrong_tokens._value.get() == 0

    def test_one_whose_use_can_not_be_noted_is_good(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise Unavailable("the disk is full")

        token, text = store.tokens.new("ci")
        monkeypatch.setattr(store.tokens, "_note_use", refuse)
        assert store.tokens.check(text) == token.id

    def test_no_free_connection_is_told_as_such(self) -> None:
        with pytest.raises(Unavailable, match="db: no connection to the database came free"), readable("db"):
            raise sqlalchemy.exc.TimeoutError("QueuePool limit")

    def test_one_that_is_revoked_ends_its_session(self, store: Store, anyone: TestClient) -> None:
        known, text = store.tokens.new("laptop")
        log_in(anyone, text)
        origin = {"Origin": "http://127.0.0.1:8050"}
        assert anyone.put("/api/v1/rules/FUS101", json={}, headers=origin).status_code == 200
        store.tokens.revoke("laptop")
        assert anyone.put("/api/v1/rules/FUS101", json={}, headers=origin).status_code == 401
        assert store.tokens.check(text) == ""
        assert known.id not in {token.id for token in store.tokens.list()}

    def test_a_session_ends_by_itself(self, service: Service) -> None:
        from dashboard.api.sessions import LIFE_S, START_TOKEN, Sessions

        clock = Clock()
        sessions = Sessions(service.store.tokens, clock)
        text = sessions.open(START_TOKEN)
        assert sessions.is_open(text)
        assert not sessions.is_open(text + "0")
        clock.now_s += LIFE_S + 1
        assert not sessions.is_open(text)


class TestAttempts:
    def test_too_many_wrong_tokens_are_not_looked_at(self, service: Service, token: str) -> None:
        service.attempts = Attempts(clock := Clock())
        with installed_client(service) as client:
            for _ in range(WRONG):
                assert client.get("/api/v1/runs", headers={"Authorization": "Bearer x"}).status_code == 401
            # the right one is not looked at either: else it could be told from the wrong ones
            for path in ("/api/v1/runs",):
                answer = client.get(path, headers={"Authorization": f"Bearer {token}"})
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
            assert client.get("/login", params={"token": token}).status_code == 429
            assert client.get("/api/v1/runs").status_code == 200  # looking needs none
            clock.now_s += WINDOW_S + 1
            assert client.get("/api/v1/runs", headers={"Authorization": f"Bearer {token}"}).status_code == 200

    def test_a_page_elsewhere_can_not_lock_the_owner_out(self, service: Service, anyone: TestClient) -> None:
        for site in ("cross-site", "same-site", "same-origin", "none"):
            for _ in range(WRONG):
                answer = anyone.get("/login", params={"token": "x"}, headers={"Sec-Fetch-Site": site})
                assert answer.status_code == 401
            assert (service.attempts.wait_s("testclient") + service.attempts.wait_s("127.0.0.1") > 0) == (
                site in ("same-origin", "none")
            )
            service.attempts = Attempts()

    def test_another_address_is_not_held_up(self, service: Service, token: str) -> None:
        for _ in range(WRONG):
            service.attempts.failed("10.0.0.9")
        assert service.attempts.wait_s("10.0.0.9") > 0
        with installed_client(service, "127.0.0.2") as client:
            assert client.get("/api/v1/runs", headers={"Authorization": f"Bearer {token}"}).status_code == 200

    def test_many_addresses_take_no_more_memory(self) -> None:
        attempts = Attempts()
        for number in range(10_500):
            attempts.failed(str(number))
        assert len(attempts._wrong) == 10_000


class TestHosts:
    @pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:8050", "LOCALHOST", "[::1]:8050", "127.0.0.1"])
    def test_ours(self, host: str, anyone: TestClient) -> None:
        assert anyone.get("/api/v1/health", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", "10.1.2.3", "", "localhost.evil", "[x"]
    )
    def test_a_name_that_leads_here_is_not_ours(self, host: str, anyone: TestClient) -> None:
        for path in ("/api/v1/health", "/login", "/"):
            assert anyone.get(path, headers={"Host": host}).status_code == 421

    def test_names_that_were_allowed(self) -> None:
        settings = Settings(host="0.0.0.0", hosts=("audits.example",))
        assert settings.answers_for("audits.example")
        assert settings.answers_for("192.168.1.5")
        assert not settings.answers_for("evil.example")


class TestOrigins:
    HOME = "http://127.0.0.1:8050"

    @pytest.mark.parametrize(
        "sent",
        [
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:3000"},  # another service of this machine: the cookie goes to it, too
            {"Origin": "http://127.0.0.1:8050.evil.example"},
            {"Origin": "ftp://127.0.0.1:8050"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {},
        ],
    )
    def test_a_page_elsewhere_changes_nothing_with_our_cookie(
        self, sent: dict[str, str], store: Store, anyone: TestClient, token: str
    ) -> None:
        run = save(store)
        log_in(anyone, token)
        answer = anyone.delete(f"/api/v1/runs/{run}", headers=sent)
        assert answer.status_code == 403
        assert store.resolve(run) == run

    @pytest.mark.parametrize("sent", [{"Origin": HOME}, {"Sec-Fetch-Site": "same-origin"}])
    def test_a_page_of_ours_does(self, sent: dict[str, str], store: Store, anyone: TestClient, token: str) -> None:
        run = save(store)
        log_in(anyone, token)
        assert anyone.delete(f"/api/v1/runs/{run}", headers=sent).status_code == 204

    def test_a_page_elsewhere_with_a_token_changes_nothing(self, store: Store, api: TestClient) -> None:
        save(store)
        assert api.delete("/api/v1/runs/latest", headers={"Origin": "http://evil.example"}).status_code == 403
        assert api.delete("/api/v1/runs/latest").status_code == 204

    def test_no_page_elsewhere_may_read(self, anyone: TestClient) -> None:
        answer = anyone.get("/api/v1/health", headers={"Origin": "http://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        preflight = anyone.options("/api/v1/jobs", headers={"Origin": "http://evil.example"})
        assert "access-control-allow-origin" not in preflight.headers

    def test_the_cookie(self, anyone: TestClient, token: str) -> None:
        answer = anyone.get("/login", params={"token": token})
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("fusion_audit_8050=")
        for flag in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
            assert flag in cookie
        assert token not in cookie

    def test_logging_out_ends_the_session(self, service: Service, anyone: TestClient, token: str) -> None:
        log_in(anyone, token)
        text = anyone.cookies["fusion_audit_8050"]
        assert anyone.post("/logout", headers={"Origin": self.HOME}).status_code == 303
        assert not service.sessions.is_open(text)

    def test_the_form(self, anyone: TestClient, token: str) -> None:
        form = anyone.get("/login")
        assert (form.status_code, "<form" in form.text) == (200, True)
        headers = {"Origin": self.HOME, "Content-Type": "application/x-www-form-urlencoded"}
        assert anyone.post("/login", content="token=wrong", headers=headers).status_code == 401
        assert anyone.post("/login", content="a" * 20_000, headers=headers).status_code == 413
        assert anyone.post("/login", content=f"token={token}", headers=headers).status_code == 303


class TestTrustedHeader:
    @pytest.fixture
    def seen(self, service: Service) -> Iterator[tuple[TestClient, list[Any]]]:
        """A client of the service with a page that says what it was told of the login."""
        import flask

        from dashboard.api import app as module

        pages = flask.Flask("pages")
        told: list[Any] = []

        @pages.route("/", defaults={"path": ""}, methods=["GET", "POST"])
        @pages.route("/<path:path>", methods=["GET", "POST"])
        def page(path: str) -> str:  # noqa: ARG001
            told.append((module._asked(service)(), flask.request.headers.get(TRUSTED)))
            return "page"

        with pytest.MonkeyPatch.context() as patch:
            real = module._Split
            patch.setattr(module, "_Split", lambda api, _none: real(api, pages))
            with installed_client(service) as client:
                yield client, told

    @pytest.mark.parametrize("name", [TRUSTED, TRUSTED.replace("-", "_"), TRUSTED.upper(), "x_Fusion-audit_login"])
    def test_nobody_can_claim_to_be_logged_in(
        self, name: str, seen: tuple[TestClient, list[Any]], service: Service
    ) -> None:
        client, told = seen
        client.get("/", headers={name: service.trusted})
        client.get("/", headers={name: "1"})
        assert told == [(False, None), (False, None)]

    def test_who_is_logged_in_may_change(self, seen: tuple[TestClient, list[Any]], token: str) -> None:
        client, told = seen
        log_in(client, token)
        client.get("/")
        client.post("/_dash-update-component", json={}, headers={"Origin": "http://127.0.0.1:8050"})
        assert [may for may, _ in told] == [True, True]

    def test_a_page_elsewhere_can_not_post_to_pages(self, seen: tuple[TestClient, list[Any]]) -> None:
        client, told = seen
        answer = client.post("/_dash-update-component", json={}, headers={"Origin": "http://evil.example"})
        assert (answer.status_code, told) == (403, [])


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "/api/v1/jobs/..%2f..%2f..%2fetc%2fpasswd/log",
            "/api/v1/jobs/%2e%2e/log",
            "/api/v1/jobs/....../plan",
            "/api/v1/uploads/..%2f..%2fqueue.db",
            "/api/v1/runs/..%2f..%2f..%2fetc%2fpasswd/document",
            "/api/v1/runs/%2e%2e%2f/kernels",
            "/api/v1/runs/a%00b",
            "/assets/..%2f..%2f..%2f..%2fetc/passwd",
            "/assets/../../pyproject.toml",
            "/_dash-component-suites/../../../../etc/passwd",
            "/_dash-component-suites/dash/..%2f..%2fdash.py",
        ],
    )
    def test_a_path_leads_nowhere_else(self, path: str, store: Store, service: Service, token: str) -> None:
        save(store)
        with pages_client(service) as client:
            client.headers["Authorization"] = f"Bearer {token}"
            answer = client.get(path)
            assert answer.status_code in (200, 400, 404, 422)
            assert "root:" not in answer.text
            assert "[project]" not in answer.text
            if answer.status_code == 200:  # a page of ours, whatever the path
                assert "_dash-config" in answer.text

    def test_a_place_takes_ids_only(self, service: Service) -> None:
        for name in ("..", "a/b", "", "1m8aaaaaaaaa/..", "x" * 12):
            with pytest.raises(ValueError, match="not an id"):
                service.place.log(name)
        with pytest.raises(ValueError, match="no kind of upload"):
            service.place.upload("1m8aaaaaaaaa", "../x")

    def test_the_services_files_are_for_its_user_alone(self, service: Service, api: TestClient) -> None:
        upload = api.post("/api/v1/uploads", params={"name": "a.json"}, content=b"{}").json()
        file = service.place.upload(upload["id"], "json")
        assert oct(file.stat().st_mode & 0o777) == "0o600"
        assert oct(file.parent.stat().st_mode & 0o777) == "0o700"


class TestScripts:
    """The web runs again what the command line registered here, and nothing else."""

    BODY: dict[str, Any] = {"kind": "fix"}

    def test_a_run_that_came_from_elsewhere(self, store: Store, api: TestClient, folder: Path) -> None:
        (folder / "train.py").write_text("print()")
        run = save(store)  # its document names train.py, which is here
        answer = api.post("/api/v1/jobs", json={**self.BODY, "run": run})
        assert answer.status_code == 409
        assert "was not recorded on this machine" in answer.json()["error"]
        assert store.jobs.find() == []

    def test_a_script_that_changed(self, store: Store, api: TestClient, folder: Path) -> None:
        run = save_script(store, folder, "print(1)")
        assert api.get(f"/api/v1/runs/{run}").json()["rerun"] == ""
        (folder / "script.py").write_text("import os; os.system('evil')")
        answer = api.post("/api/v1/jobs", json={**self.BODY, "run": run})
        assert answer.status_code == 409
        assert "has changed since it was run" in answer.json()["error"]

    def test_another_machine_or_user(
        self, store: Store, api: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = save_script(store, folder, "print(1)")
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "other"))
        assert api.post("/api/v1/jobs", json={**self.BODY, "run": run}).status_code == 409

    @pytest.mark.parametrize(
        "more",
        [
            {"script": "/tmp/evil.py"}, {"args": ["--evil"]}, {"folder": "/"}, {"command": "sh"},
            {"options": {"plan": "/etc/passwd"}}, {"options": {"rules": "/tmp"}},
            {"options": {"select": ["--plan=/etc/passwd"]}}, {"options": {"select": ["../x"]}},
            {"options": {"limit": -1}}, {"options": {"min_gain": 11}}, {"options": {"steps": 0}},
            {"options": {"min_gain": "1; rm"}}, {"kind": "run"}, {"run": "../../evil.py"}, {"run": "latest; rm"},
        ],
    )  # fmt: skip
    def test_a_request_names_no_path_and_no_command(
        self, more: dict[str, Any], store: Store, api: TestClient, folder: Path
    ) -> None:
        run = save_script(store, folder, "print(1)")
        assert api.post("/api/v1/jobs", json={**self.BODY, "run": run, **more}).status_code == 422
        assert store.jobs.find() == []

    def test_the_command_is_made_of_what_was_registered(
        self, store: Store, service: Service, api: TestClient, folder: Path
    ) -> None:
        from dashboard.jobs.commands import work_of

        run = save_script(store, folder, "print(1)", ["--plan=x", "; rm -rf /"])
        job = api.post("/api/v1/jobs", json={"kind": "audit", "run": run, "options": {"select": ["FUS2"]}}).json()
        work = work_of(store.jobs.get(job["id"]), store, service.place, 10.0)
        assert work.folder == folder
        assert work.arguments[-4:] == ["--", "script.py", "--plan=x", "; rm -rf /"]
        assert work.arguments[:2] == ["run", "--stop"]
        assert "postgresql://" not in " ".join(work.command())

    def test_a_deleted_runs_script_is_no_longer_registered(self, store: Store, api: TestClient, folder: Path) -> None:
        from auditor.store.machine import machine_id

        run = save_script(store, folder, "print(1)")
        assert store.registrations.get(run, machine_id()) is not None
        api.delete(f"/api/v1/runs/{run}")
        assert store.registrations.get(run, machine_id()) is None


class TestHostileText:
    NASTY = '<script>alert(1)</script>\x1b]0;owned\x07"\n=cmd()'

    def test_a_log_line_is_one_line(self, anyone: TestClient, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "fusion_audit.access")
        anyone.get("/api/v1/runs/a%0d%0a2026-01-01 INFO forged%1b[31m?token=secret")
        lines = [record.getMessage() for record in caplog.records if record.name == "fusion_audit.access"]
        assert len(lines) == 1
        assert lines[0].isprintable()
        assert r"a\x0d\x0a2026" in lines[0]
        assert "secret" not in lines[0]

    def test_an_answer_is_json_whatever_is_in_it(self, store: Store, anyone: TestClient) -> None:
        run = save(store, self.NASTY)
        answer = anyone.get(f"/api/v1/runs/{run}")
        assert answer.json()["name"] == self.NASTY
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"

    def test_a_jobs_log_can_not_steer_a_terminal(self, store: Store, service: Service, anyone: TestClient) -> None:
        job = store.jobs.add("fix", "1m8aaaaaaaaa", "{}", "here")
        service.place.job(job.id)
        text = "plain\tand\n\x1b[2J\x9b31m\u202eesrever\r\nlast é"
        service.place.log(job.id).write_text(text, newline="")
        log = anyone.get(f"/api/v1/jobs/{job.id}/log").json()
        assert log["text"] == "plain\tand\n\\x1b[2J\\x9b31m\\u202eesrever\nlast é"
        assert log["next"] == len(text.encode())
        assert anyone.get(f"/api/v1/jobs/{job.id}/log", params={"after": log["next"]}).json()["text"] == ""

    def test_a_host_is_not_repeated_raw(self, anyone: TestClient) -> None:
        answer = anyone.get("/", headers={"Host": "<script>" + "x" * 500})
        assert answer.headers["content-type"] == "application/json"
        assert len(answer.text) < 300


class TestHeaders:
    def test_the_policy_lets_nothing_in_but_our_scripts(self, service: Service) -> None:
        with pages_client(service) as client:
            page = client.get("/")
        policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
        # every inline script of the page is allowed by its hash, and nothing by a wildcard
        inline = [body for attributes, body in re.findall(r"<script([^>]*)>(.*?)</script>", page.text, re.DOTALL)
                  if "src=" not in attributes and "application/json" not in attributes]  # fmt: skip
        assert inline
        for body in inline:
            digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy["script-src"]
        assert policy["default-src"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert not re.search(r"unsafe|\*|https?:", policy["script-src"])
        assert not re.search(r'(src|href)="(https?:)?//', page.text)

    @pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/none", "/login", "/metrics"])
    def test_every_answer_has_them(self, path: str, anyone: TestClient) -> None:
        found = anyone.get(path).headers
        assert found["x-frame-options"] == "DENY"
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "same-origin"
        assert found["cache-control"] == "no-store"
        assert "script-src 'self'" in found["content-security-policy"]
        assert "server" not in found

    def test_only_files_whose_address_names_their_version_are_kept_for_good(self, service: Service) -> None:
        from dashboard.app import _application, files

        with pages_client(service) as client:
            loaded = files(_application())
            assert [address for address in loaded if client.get(address).status_code != 200] == []
            named = [address for address in loaded if address.startswith("/assets/") and "?m=" in address]
            assert {client.get(address).headers["cache-control"] for address in named} == {
                "public, max-age=31536000, immutable"
            }
            assert "immutable" not in client.get("/assets/head/scheme.js").headers.get("cache-control", "")

    @pytest.mark.parametrize("origin", ["http://[", "http://127.0.0.1:8050[x]", "\x00", "http://127.0.0.1:8050.evil"])
    def test_an_origin_that_is_none_is_another_origin(self, origin: str, anyone: TestClient) -> None:
        assert anyone.post("/logout", headers={"Origin": origin}).status_code == 403

    @pytest.mark.parametrize(
        ("method", "path", "body", "status"),
        [
            ("GET", "/_dash-component-suites/x/y", None, 404), ("GET", "/_dash-component-suites/%00/%00", None, 404),
            ("POST", "/_dash-update-component", b"{}", 400), ("POST", "/_dash-update-component", b"[]", 400),
            ("POST", "/_dash-update-component", b"null", 400), ("POST", "/_dash-update-component", b"x", 400),
            ("POST", "/_dash-update-component", b"[" * 100_000, 400),
            ("POST", "/_dash-update-component", b'{"output": "a.b", "inputs": []}', 400),
        ],
    )  # fmt: skip
    def test_what_no_page_sends_is_refused(
        self, method: str, path: str, body: bytes | None, status: int, service: Service
    ) -> None:
        head = {"content-type": "application/json"} if body else {}
        with pages_client(service) as client:
            answer = client.request(method, path, content=body, headers=head)
            assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
            assert answer.json()["error"]

    def test_bodies_have_a_size(self, api: TestClient) -> None:
        body = b'{"kind": "' + b"x" * 1_100_000
        assert api.post("/api/v1/jobs", content=body).status_code == 413
        assert api.post("/api/v1/jobs", content=iter([body[:600_000], body[600_000:]])).status_code == 413


class pages_client(installed_client):  # noqa: N801 - it reads as a function
    """A client of the service with its pages."""

    def __enter__(self) -> TestClient:
        from dashboard.api.app import create_service

        client = super().__enter__()
        client._transport.app = create_service(self._service)  # type: ignore[attr-defined]
        return client
