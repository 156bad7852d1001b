"""The addresses of the pages. What comes from a run is quoted: a name may hold anything."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def run(run_id: str, page: str = "") -> str:
    """``/run/<id>``, or one of its pages: ``timeline``, ``kernels``."""
    return f"/run/{quote(run_id, safe='')}" + (f"/{page}" if page else "")


def finding(run_id: str, fingerprint: str) -> str:
    return f"{run(run_id)}/finding/{quote(fingerprint, safe='')}"


def kernels(run_id: str, **query: str) -> str:
    return _with(run(run_id, "kernels"), query)


def compare(before: str, after: str) -> str:
    return _with("/compare", {"a": before, "b": after})


def gate(model: str, **query: str) -> str:
    return _with("/gate", {"model": model, **query})


def rule(rule_id: str) -> str:
    return f"/rules/{quote(rule_id, safe='')}"


def job(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _with(path: str, query: dict[str, str]) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path
