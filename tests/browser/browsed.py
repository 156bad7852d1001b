"""A dashboard that is looked at, and what a page did that it must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from memory_jobs import MemoryJobs
from playwright.sync_api import ConsoleMessage, Page, Request, Response

from auditor.store import Store

MODULE = "LongNamedModel_0.LongNamedDecoderLayer_0.LongNamedRMSNorm_1.without_a_space"
"""Of the run that is looked at: a name that no line holds."""


@dataclass
class Site:
    """A dashboard that is served, with what its pages read."""

    url: str
    store: Store
    jobs: MemoryJobs
    logged_in: bool = True
    run: str = ""
    fixed: str = ""
    finding: str = ""

    @property
    def pages(self) -> dict[str, str]:
        """A path for every page."""
        run = f"/run/{self.run}"
        return {
            "runs": "/", "overview": run, "finding": f"{run}/finding/{self.finding}", "timeline": f"{run}/timeline",
            "kernels": f"{run}/kernels", "compare": f"/compare?a={self.run}&b={self.fixed}", "rules": "/rules",
            "rule": "/rules/FUS202", "jobs": "/jobs", "job": "/jobs/job0", "gate": "/gate?model=llama",
            "not found": "/nothing/here",
        }  # fmt: skip


@dataclass
class Seen:
    """What a page did that it must not: errors on the console, requests to elsewhere, answers that failed."""

    page: Page
    home: str
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.home:
            self.wrong.append(f"foreign request: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.status}: {response.url}")
