"""What the parts of the service share; made once when it starts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from auditor.store import Store
from dashboard.api.attempts import Attempts
from dashboard.api.metrics import Metrics
from dashboard.api.sessions import Sessions
from dashboard.api.settings import Settings
from dashboard.jobs.place import Place
from dashboard.jobs.stored import StoredJobs


@dataclass
class Service:
    """``worker_lives`` says whether jobs are being taken."""

    store: Store
    settings: Settings = field(default_factory=Settings)
    worker_lives: Callable[[], bool] = lambda: False
    attempts: Attempts = field(default_factory=Attempts)
    bundles: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a run from elsewhere is in memory: one at a time."""
    trusted: str = field(default_factory=lambda: secrets.token_hex(16))
    """What the header that tells the pages of a login holds; only this process knows it."""

    def __post_init__(self) -> None:
        self.place = Place.beside(self.store.location)
        self.jobs = StoredJobs(self.store, self.place)
        self.sessions = Sessions(self.store.tokens)
        self.metrics = Metrics(self.store, lambda: self.worker_lives())

    @property
    def cookie(self) -> str:
        """Cookies of one host are shared by all its ports: two services must not log each other out."""
        return f"fusion_audit_{self.settings.port}"
