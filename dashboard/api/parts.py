"""What a route gets: the service, and what of it is used most."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from auditor.store import Store
from dashboard.api.service import Service
from dashboard.jobs.stored import StoredJobs


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]


def _store(service: TheService) -> Store:
    return service.store


def _jobs(service: TheService) -> StoredJobs:
    return service.jobs


TheStore = Annotated[Store, Depends(_store)]
TheJobs = Annotated[StoredJobs, Depends(_jobs)]
