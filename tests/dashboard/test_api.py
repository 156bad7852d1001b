"""The API: what it gives, how it pages, and what it says when it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient
from stored_runs import document, save, save_script, tables

from auditor.fix_document import FixDocument
from auditor.store import Store
from dashboard.api.app import create_api
from dashboard.api.service import Service
from dashboard.api.settings import Settings


class TestRuns:
    def test_a_page_of_the_list(self, store: Store, anyone: TestClient) -> None:
        # GIVEN five runs
        ids = [save(store, f"m{i}") for i in range(5)]

        # WHEN the second page of two is asked for
        page = anyone.get("/api/v1/runs", params={"limit": 2, "offset": 2}).json()

        # THEN it has the third and fourth newest, and how many there are
        assert page["total"] == 5
        assert [run["id"] for run in page["runs"]] == [ids[2], ids[1]]
        assert page["runs"][0]["memory_bound_us"] == 30.0
        assert page["runs"][0]["project"] == "models"

    def test_filters_and_order(self, store: Store, anyone: TestClient) -> None:
        for name, project in (("alpha", "x"), ("bravo", "y"), ("charlie", "x")):
            save(store, name, project=project)

        def names(**asked: Any) -> list[str]:
            return [run["name"] for run in anyone.get("/api/v1/runs", params=asked).json()["runs"]]

        assert names(project="x", sort="name", order="asc") == ["alpha", "charlie"]
        assert names(text="BRAVO") == ["bravo"]
        assert names(since="2999") == []
        assert names(source="trace") == []

    def test_a_list_opens_no_document(self, store: Store, anyone: TestClient) -> None:
        save(store)
        statements: list[str] = []
        event.listen(store._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

        assert anyone.get("/api/v1/runs").json()["total"] == 1
        assert any("FROM runs" in statement for statement in statements)
        assert not [statement for statement in statements if "document" in statement]

    def test_one_run_by_any_reference(self, store: Store, anyone: TestClient) -> None:
        run = save(store, "a name with spaces")
        for ref in (run, run[:8], "latest", "a%20name%20with%20spaces"):
            found = anyone.get(f"/api/v1/runs/{ref}").json()
            assert (found["id"], found["tables"]) == (run, ["ops", "values", "kernels"])
        assert "not recorded on this machine" in found["rerun"]

    def test_its_document_and_fix_are_the_stored_ones(self, store: Store, anyone: TestClient) -> None:
        run = save(store)
        assert anyone.get(f"/api/v1/runs/{run}/document").json()["findings"][0]["fingerprint"] == "f1"
        assert anyone.get(f"/api/v1/runs/{run}/fix").status_code == 404
        store.save_fix(FixDocument(run=run), (document("after"), tables()))
        assert anyone.get(f"/api/v1/runs/{run}/fix").json()["after_run"] == store.resolve("latest")

    def test_findings_come_without_their_sites_and_one_with(self, store: Store, anyone: TestClient) -> None:
        save(store)
        page = anyone.get("/api/v1/runs/latest/findings").json()
        assert page["total"] == 1
        assert page["findings"][0]["saving"] == {"ideal_us": 20.0, "likely_us": 12.5, "step_us": 8.0}
        assert "places" not in page["findings"][0]
        assert anyone.get("/api/v1/runs/latest/findings", params={"rule": "FUS201"}).json()["total"] == 0
        assert anyone.get("/api/v1/runs/latest/findings/f1").json()["places"] == []
        assert anyone.get("/api/v1/runs/latest/findings/f2").status_code == 404

    def test_a_deleted_run_is_gone(self, store: Store, api: TestClient) -> None:
        run = save(store)
        assert api.delete(f"/api/v1/runs/{run}").status_code == 204
        assert store.list_runs() == []
        assert api.delete(f"/api/v1/runs/{run}").status_code == 404

    def test_a_run_that_a_job_works_on_stays(self, store: Store, api: TestClient) -> None:
        run = save(store)
        job = store.jobs.add("fix", run, "{}", "here")
        answer = api.delete(f"/api/v1/runs/{run}")
        assert (answer.status_code, answer.json()) == (
            409, {"error": f"job {job.id} works on run {run}; cancel it first"},
        )  # fmt: skip


class TestKernels:
    def test_sorted_filtered_and_paged(self, store: Store, anyone: TestClient) -> None:
        save(store)
        url = "/api/v1/runs/latest/kernels"
        page = anyone.get(url, params={"sort": "dur_us", "order": "desc", "limit": 2}).json()
        assert page["total"] == 3
        assert page["dur_us"] == 33.0
        assert [kernel["name"] for kernel in page["kernels"]] == ["aten.mul", "aten.neg"]
        assert anyone.get(url, params={"name": "EXP"}).json()["total"] == 1
        assert anyone.get(url, params={"min_us": 11}).json()["total"] == 2
        assert anyone.get(url, params={"stream": 6}).json()["total"] == 0

    def test_two_runs_compared(self, store: Store, anyone: TestClient) -> None:
        first, second = save(store), save(store)
        found = anyone.get("/api/v1/compare", params={"a": first, "b": second}).json()
        assert (found["before"]["id"], found["after"]["id"]) == (first, second)
        assert [finding["change"] for finding in found["findings"]] == ["same"]


class TestJobs:
    def test_what_would_be_for_nothing_is_refused_with_its_reason(
        self, store: Store, api: TestClient, folder: Path
    ) -> None:
        run = save_script(store, folder, "print()")
        asked = {"kind": "fix", "run": run, "options": {"select": ["FUS501"]}}
        first = api.post("/api/v1/jobs", json=asked)
        assert first.status_code == 201
        again = api.post("/api/v1/jobs", json=asked)
        assert again.status_code == 409
        assert again.json()["error"].startswith(f"job {first.json()['id']} does the same and is queued")

        api.put("/api/v1/rules/FUS501", json={"enabled": False})
        off = api.post("/api/v1/jobs", json={**asked, "options": {"select": ["FUS501"], "limit": 1}})
        assert off.status_code == 409
        assert off.json()["error"].startswith("FUS501 is switched off here")


class TestRules:
    def test_a_rule_is_switched_off_and_on(self, store: Store, api: TestClient) -> None:
        assert api.put("/api/v1/rules/FUS101", json={"enabled": False, "severity": "error"}).status_code == 200
        rules = {rule["id"]: rule for rule in api.get("/api/v1/rules").json()["rules"]}
        assert (rules["FUS101"]["enabled"], rules["FUS101"]["severity"]) == (False, "error")
        assert rules["FUS201"]["enabled"]
        assert rules["FUS201"]["docs"]
        assert api.put("/api/v1/rules/FUS101", json={}).json()["enabled"]
        assert api.put("/api/v1/rules/FUS999", json={}).status_code == 404
        assert store.rule_settings.get("FUS101").enabled


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("runs/none", 404, "no run 'none'; there are"),
        ("runs/none/kernels", 404, "no run 'none'"),
        ("compare?a=none&b=latest", 404, "no run 'none'"),
        ("jobs/1m8aaaaaaaaa", 404, "no job '1m8aaaaaaaaa'; see the list of jobs"),
        ("jobs/1m8aaaaaaaaa/log", 404, "no job"),
        ("uploads/1m8aaaaaaaaa", 404, "no upload"),
        ("nothing", 404, "there is nothing at this path"),
        ("runs?limit=0", 422, "query limit: Input should be greater than or equal to 1"),
        ("runs?sort=document", 422, "query sort: "),
        ("runs/latest/kernels?sort=secret", 422, "query sort: "),
        ("jobs?state=lost", 422, "query state: "),
        ("runs?text=%00", 422, "query text: "),
        ("jobs/latest", 422, "path job: "),
        ("runs?nonsense=1", 422, "query nonsense: there is no such parameter; this path has limit, offset, text"),
        ("runs/latest?limit=1", 422, "query limit: there is no such parameter; this path has none"),
        ("runs?text=a&%3Cb%3E%00=1", 422, "query <b>\\x00: there is no such parameter"),
        ("health?x", 422, "query x: there is no such parameter"),
    ],
)
def test_what_is_wrong_is_one_sentence(path: str, status: int, sentence: str, store: Store, anyone: TestClient) -> None:
    save(store)
    answer = anyone.get(f"/api/v1/{path}")
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert answer.json()["error"].startswith(sentence)
    assert "\n" not in answer.json()["error"]


def test_where_others_reach_the_service_every_path_needs_the_token(store: Store) -> None:
    document = create_api(Service(store, Settings(host="0.0.0.0", port=8050))).openapi()
    found = [each["security"] for known in document["paths"].values() for each in known.values()]
    assert found == [[{"token": []}]] * len(found)


def test_a_method_that_a_path_has_not(api: TestClient) -> None:
    answer = api.put("/api/v1/jobs")
    assert (answer.status_code, list(answer.json())) == (405, ["error"])


def test_an_error_of_ours_is_a_sentence_too(
    store: Store, anyone: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "list_runs", lambda *_a, **_k: 1 / 0)
    answer = anyone.get("/api/v1/runs")
    assert answer.status_code == 500
    assert answer.json()["error"] == f"the service failed; its log says more under {answer.headers['x-request-id']}"
    assert "ZeroDivisionError" in caplog.text


def test_a_store_that_is_gone_is_unavailable(store: Store, anyone: TestClient) -> None:
    assert store.location.file is not None
    store.location.file.unlink()
    answer = anyone.get("/api/v1/runs")
    assert (answer.status_code, list(answer.json())) == (503, ["error"])


def test_health_and_figures(store: Store, anyone: TestClient) -> None:
    save(store)
    health = anyone.get("/api/v1/health").json()
    assert (health["status"], health["store"], health["worker"]) == ("ok", "sqlite", False)
    anyone.get("/api/v1/runs/latest")
    figures = anyone.get("/metrics").text
    route = 'fusion_audit_http_requests_total{method="GET",route="/api/v1/runs/{run}",status="200"} 1.0'
    for line in ("fusion_audit_runs 1.0", 'fusion_audit_jobs{state="queued"} 0.0', "fusion_audit_worker_up 0.0", route):
        assert line in figures.splitlines()


def test_the_openapi_document_is_whole_and_names_no_other_host(anyone: TestClient) -> None:
    found = anyone.get("/api/v1/openapi.json")
    paths = found.json()["paths"]
    assert {
        "/api/v1/health", "/api/v1/runs", "/api/v1/runs/{run}", "/api/v1/runs/{run}/findings",
        "/api/v1/runs/{run}/kernels", "/api/v1/compare", "/api/v1/uploads", "/api/v1/jobs", "/api/v1/jobs/{job}/cancel",
    } <= set(paths)  # fmt: skip
    for operations in paths.values():
        for operation in operations.values():
            assert operation["responses"]["401"]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
    assert "://" not in found.text
    assert found.json()["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    operations = {(method, path): each for path, known in paths.items() for method, each in known.items()}
    needed = {key for key, each in operations.items() if each["security"] == [{"token": []}]}
    assert needed == {key for key in operations if key[0] != "get"}
    assert all({} in each["security"] for key, each in operations.items() if key not in needed)
    for page in ("/docs", "/redoc", "/api/v1/docs"):
        assert anyone.get(page).status_code == 404
