"""Whether the service is well, for people and for Prometheus."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response

from auditor import __version__
from dashboard.api.errors import responses
from dashboard.api.metrics import CONTENT_TYPE
from dashboard.api.models import Health
from dashboard.api.parts import TheService

router = APIRouter(tags=["health"])


@router.get("/api/v1/health", responses=responses())
def health(service: TheService) -> Health:
    """Whether the store answers and jobs are taken."""
    service.store.count_runs()
    kind: Literal["sqlite", "postgresql"] = "sqlite" if service.store.location.file else "postgresql"
    return Health(status="ok", version=__version__, store=kind, worker=service.worker_lives())


@router.get("/metrics", include_in_schema=False)
def metrics(service: TheService) -> Response:
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)
