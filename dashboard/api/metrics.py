"""Figures for Prometheus. Labels are routes, never paths: their number is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditor.store import Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("queued", "running", "done", "failed", "cancelled")


class Metrics:
    """Of one service: a registry of its own, so that two in one process don't meet."""

    def __init__(self, store: Store, worker_lives: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "fusion_audit_http_requests_total", "Requests answered", ("method", "route", "status"),
            registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "fusion_audit_http_request_seconds", "Time until a request was answered", ("method", "route"),
            registry=self._registry,
        )  # fmt: skip
        self.uploaded_bytes = Counter(
            "fusion_audit_uploaded_bytes_total", "Bytes of uploads that were kept", registry=self._registry
        )
        self.wrong_tokens = Counter(
            "fusion_audit_wrong_tokens_total", "Requests refused for their token", registry=self._registry
        )
        self._registry.register(_Stored(store, worker_lives))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Stored(Collector):
    """What the store holds when it is asked for."""

    def __init__(self, store: Store, worker_lives: Callable[[], bool]) -> None:
        self._store, self._worker_lives = store, worker_lives

    def collect(self) -> Iterator[Metric]:
        counts = self._store.jobs.counts()
        jobs = GaugeMetricFamily("fusion_audit_jobs", "Jobs by state", labels=("state",))
        for state in _STATES:
            jobs.add_metric((state,), counts.get(state, 0))
        yield jobs
        yield GaugeMetricFamily("fusion_audit_runs", "Stored runs", value=self._store.count_runs())
        yield GaugeMetricFamily("fusion_audit_worker_up", "Whether jobs are taken", value=self._worker_lives())

    def describe(self) -> list[Metric]:
        return []
