"""Every path of the API under requests that schemathesis makes up from its OpenAPI document: none fails on our side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from api_client import installed_client
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from stored_runs import save

from auditor.store import Store
from dashboard.api.app import create_service
from dashboard.api.routes.runs import BUNDLE
from dashboard.api.service import Service
from dashboard.api.settings import Settings

EXAMPLES = 15
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@schemathesis.serializer(BUNDLE)
def as_it_is(_context: Any, value: Any) -> Any:
    """Bodies of this type are made up of bytes, and no run is among them."""
    return value.value if hasattr(value, "value") else value


@pytest.fixture
def schema(place: str) -> Iterator[Any]:
    with Store.open(place) as store:
        save(store)
        service = Service(store, Settings(host="testserver", hosts=("testserver",)))
        token = service.sessions.new_start_token()
        with installed_client(service):
            headers = {"Authorization": f"Bearer {token}"}
            app = create_service(service, pages=False)
            config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
            # it would make up tokens, too: ten wrong ones, and the address has to wait
            yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, config=config, headers=headers), headers


def test_no_request_is_answered_by_a_failure(schema: Any) -> None:
    document, headers = schema
    operations = [found.ok() for found in document.get_all_operations()]
    assert len(operations) > 20
    seen: set[tuple[str, int]] = set()
    for operation in operations:
        _try(operation, headers, seen)
    # what is asked gets through to the work, and is not turned away at the door
    assert {("GET /api/v1/runs", 200), ("GET /api/v1/jobs", 200), ("POST /api/v1/jobs", 404)} <= seen
    assert not [label for label, status in seen if status in (401, 403, 421, 429)]


def _try(operation: Any, headers: dict[str, str], seen: set[tuple[str, int]]) -> None:
    for mode in GenerationMode:
        strategy = operation.as_strategy(generation_mode=mode)

        @given(case=strategy)
        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def one(case: Any) -> None:
            answer = case.call_and_validate(headers=headers, checks=CHECKS)
            seen.add((operation.label, answer.status_code))

        with suppress(Unsatisfiable):  # nothing can be wrong with an operation that takes nothing
            one()
