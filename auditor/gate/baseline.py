"""Baselines: a stored run, a file to keep in git, or an address; read, and written so that they differ little."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPResponse
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from auditor.client import Client
from auditor.document import SCHEMA, Document
from auditor.errors import AuditError
from auditor.gate.measures import Spreads
from auditor.gate.snapshot import relative, snapshot_of
from auditor.gate.spread import spreads_of, with_medians
from auditor.gate_document import BASELINE, Figures, Found, Snapshot
from auditor.report.format import safe
from auditor.report.json import finite
from auditor.store import Store, StoredRun
from auditor.store.failures import Missing

_WEB = ("http://", "https://")
_MOST_BYTES = 64_000_000
_CHUNK = 1 << 16
_TIMEOUT_S = 60.0
_TIMES = ("device_us", "likely_us", "step_us")
_OF_JOBS = ("world_size", "alike", "rank", "unrecorded")
_RUN = re.compile(r"(?P<base>.*?)/(?:api/v1/runs|run)/(?P<ref>[^/]+)(?:/[^/]+)?/?")
"""The path of a run's page, or of the run in the API, of a service."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a run is compared with, and where that comes from."""

    snapshot: Snapshot
    label: str
    file: str = ""
    spreads: Spreads = field(default_factory=dict)
    """Of its measured figures: a stored run has others of its program beside it."""


def written(snapshot: Snapshot, root: Path) -> str:
    """The text of a baseline file, from one of which the same run always gives the same bytes.

    Times are left out of findings, and rounded for the run: they differ between equal runs. Source files are named
    from ``root`` on.
    """
    figures = snapshot.figures
    rounded = msgspec.structs.replace(
        figures, memory_bound_share=_rounded(figures.memory_bound_share), step_us=_rounded(figures.step_us)
    )
    data = msgspec.to_builtins(finite(msgspec.structs.replace(snapshot, figures=rounded)))
    lists = [snapshot.findings, *(part.findings for part in snapshot.ranks)]
    for findings, made in zip(lists, [data, *data["ranks"]], strict=True):
        for found, kept in zip(findings, made["findings"], strict=True):
            kept["source"] = msgspec.to_builtins(relative(found.source, root))
            for key in _TIMES:
                del kept[key]
    for made in data["ranks"]:
        made["figures"] |= {"memory_bound_share": None, "step_us": None}
    if snapshot.run.world_size == 1:
        del data["ranks"]
        for key in _OF_JOBS:
            del data["run"][key]
    return json.dumps(data, indent=1) + "\n"


def _rounded(value: float | None) -> float | None:
    """Two digits: what is beyond them is noise."""
    return None if value is None else float(f"{value:.2g}")


def is_stored(ref: str) -> bool:
    """Whether ``ref`` has to be a run of a store: no address, no file that is there or that is called like one."""
    return not _is_address(ref) and not _is_file(ref) and Path(ref).suffix != ".json"


def _is_address(ref: str) -> bool:
    return ref.lower().startswith(_WEB)


def _is_file(ref: str) -> bool:
    try:
        return Path(ref).is_file()
    except OSError:  # a name that is too long
        return False


def baseline_of(ref: str, store: Store | None, token: str = "") -> Baseline:
    """The baseline that ``ref`` names: an address, a file, or a run of ``store`` (id, name, start of an id).

    Args:
        ref: as written on the command line.
        store: where runs are looked up, if there is one.
        token: of a service, sent to nothing else.

    Raises:
        AuditError: it is not there, or is no baseline.
    """
    if not ref.strip():
        raise AuditError("the name of the baseline is empty; give a run, a file or an address, or leave it out")
    if _is_address(ref):
        return _fetched(ref, token)
    if store is not None and is_stored(ref):
        return stored_baseline(ref, store)
    path = Path(ref)
    if _is_file(ref):
        return replace(_decoded(_read(path), f"baseline {safe(ref)}"), file=ref)
    name = safe(path.name or "FILE")
    raise AuditError(f"no file {safe(ref)}; write a baseline with: fusion-audit baseline RUN -o {name}")


def stored_baseline(ref: str, store: Store, load: Callable[[str], StoredRun] | None = None) -> Baseline:
    """A run of ``store`` as a baseline; ``load`` reads it, where something else than the store does."""
    try:
        run = (load or store.load)(ref)
    except Missing as error:
        raise AuditError(f"baseline: {error}") from None
    spreads = spreads_of(run, store)
    return Baseline(with_medians(snapshot_of(run.document), spreads), f"run {run.id}", spreads=spreads)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuditError(f"{safe(str(path))}: {error.strerror or error}") from None


def _fetched(url: str, token: str) -> Baseline:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise AuditError(f"{safe(url)} is no address ({safe(str(error))})") from None
    page = _RUN.fullmatch(parts.path)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # no password, no signature
    if page and not parts.path.endswith(".json"):
        client = Client(f"{parts.scheme}://{parts.netloc}{page['base']}", token, _TIMEOUT_S)
        return _converted(client.document(unquote(page["ref"])), f"baseline {safe(shown)}")
    request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "fusion-audit"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            raw = _body(answer)
    except urllib.error.HTTPError as error:
        raise AuditError(f"{safe(shown)} answers with HTTP status {error.code}; is the address right?") from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise AuditError(f"{safe(shown)} can't be reached ({safe(str(reason))})") from None
    if len(raw) > _MOST_BYTES:
        raise AuditError(f"{safe(shown)} is larger than a baseline can be ({_MOST_BYTES // 10**6} MB)")
    return _decoded(raw, f"baseline {safe(shown)}")


def _body(answer: HTTPResponse) -> bytes:
    """What is sent within the time that there is: a limit of single reads is none of all of them."""
    parts, left, until_s = [], _MOST_BYTES + 1, time.monotonic() + _TIMEOUT_S
    while left > 0 and (part := answer.read1(min(left, _CHUNK))):
        parts.append(part)
        left -= len(part)
        if time.monotonic() > until_s:
            raise TimeoutError(f"it took longer than {_TIMEOUT_S:.0f} s")
    return b"".join(parts)


def _decoded(raw: bytes, label: str) -> Baseline:
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AuditError(f"{label} is not JSON ({safe(str(error))})") from None
    return _converted(data, label)


def _converted(data: Any, label: str) -> Baseline:
    """A baseline file, or the audit document of a run, which serves as well."""
    found = data.get("schema") if isinstance(data, dict) else None
    try:
        if found == SCHEMA:
            return Baseline(_checked(snapshot_of(msgspec.convert(data, Document)), label), label)
        if found == BASELINE:
            return Baseline(_checked(msgspec.convert(data, Snapshot), label), label)
    except msgspec.ValidationError as error:
        raise AuditError(
            f"{label} is damaged: {safe(str(error))}; write it again with: fusion-audit baseline"
        ) from None
    if isinstance(found, str) and found.startswith("fusion-audit"):
        raise AuditError(f"{label} has schema {safe(found)}, this version reads {BASELINE} and {SCHEMA}")
    raise AuditError(f"{label} is no baseline; write one with: fusion-audit baseline RUN -o FILE")


def _checked(snapshot: Snapshot, label: str) -> Snapshot:
    """``snapshot``, whose figures have to be numbers from 0 on: below others no run could ever be."""
    figures = [snapshot.figures, *(part.figures for part in snapshot.ranks)]
    findings = chain(snapshot.findings, *(part.findings for part in snapshot.ranks))
    for each in chain[Figures | Found](figures, findings):
        for key, value in msgspec.structs.asdict(each).items():
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                raise AuditError(
                    f"{label} is damaged: its {key} is {value:g}, and no figure can be negative or endless; write it "
                    "again with: fusion-audit baseline"
                )
    return snapshot
