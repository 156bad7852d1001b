"""A client of the API without a server."""

from __future__ import annotations

from starlette.testclient import TestClient

from dashboard.api.app import create_service
from dashboard.api.service import Service
from dashboard.context import Context, installed


class installed_client:  # noqa: N801 - it reads as a function
    """A client of the service's API alone; the context that it installs is gone afterwards."""

    def __init__(self, service: Service, address: str = "127.0.0.1") -> None:
        self._installed = installed(Context(store=service.store))
        self._service, self._address = service, address

    def __enter__(self) -> TestClient:
        self._installed.__enter__()
        app = create_service(self._service, pages=False)
        self._client = TestClient(
            app, base_url="http://127.0.0.1:8050", client=(self._address, 4000), follow_redirects=False,
            raise_server_exceptions=False,
        )  # fmt: skip
        return self._client

    def __exit__(self, *_error: object) -> None:
        self._client.close()
        self._installed.__exit__(None, None, None)
