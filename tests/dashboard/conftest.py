"""Fixtures of the dashboard's and the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_client import installed_client
from memory_jobs import MemoryJobs
from postgres_cluster import Cluster, why_not
from starlette.testclient import TestClient

from auditor.store import Store
from dashboard.api.service import Service
from dashboard.api.settings import Settings
from dashboard.context import Context, installed


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server of our own on a port of the loopback."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster.started() as running:
        yield running


@pytest.fixture
def postgres(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database."""
    monkeypatch.setenv("FUSION_AUDIT_ARTEFACTS", str(tmp_path / "artefacts"))
    return cluster.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store can be, of both kinds."""
    return str(request.getfixturevalue("postgres") if request.param == "postgresql" else tmp_path / "store")


@pytest.fixture
def service(store: Store) -> Service:
    """A service over the test's store, on this machine only; no worker runs."""
    return Service(store, Settings(port=8050))


@pytest.fixture
def token(service: Service) -> str:
    return service.sessions.new_start_token()


@pytest.fixture
def anyone(service: Service) -> Iterator[TestClient]:
    """Whoever asks from this machine, without a token."""
    with installed_client(service) as client:
        yield client


@pytest.fixture
def api(service: Service, token: str) -> Iterator[TestClient]:
    """A client with a token."""
    with installed_client(service) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        yield client


@pytest.fixture
def memory_jobs(store: Store) -> MemoryJobs:
    """Jobs that the test itself moves on."""
    return MemoryJobs(store)


@pytest.fixture
def browsing(store: Store, memory_jobs: MemoryJobs) -> Iterator[Context]:
    """The context of pages in a browser that is logged in."""
    from dashboard.app import create_app

    with installed(Context(store=store, jobs=memory_jobs, may_change=lambda: True)) as context:
        create_app(context)
        yield context
