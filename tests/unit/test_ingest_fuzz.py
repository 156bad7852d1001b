"""Mutations of traces, in their bytes and in their structure: an audit, or one sentence; nothing else, and soon."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from era_traces import ERAS, step, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from auditor.api import audit_trace, rules_of
from auditor.audit import Audit
from auditor.config import Config
from auditor.errors import AuditError
from auditor.graph.tables import to_tables
from auditor.store.bounds import check_numbers

BOUNDED = settings(
    max_examples=250, deadline=timedelta(seconds=10), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ODD = [
    *map(json.dumps, ["", "0", "nan", "aten::add", "\0\x1b[31m", "aten::unbind", "ProfilerStep#1",
                      "Optimizer.step#A.step", "[[[1]]]", "[1, -1]", "Tensor(float)", "GenericList[",
                      "TensorList", "cpu_op", "\U0001f600"]),
    "null", "true", "-1", "0", "1", "0.5", "1e308", "-1e-300", str(2**31), str(2**63), str(-(2**64)), str(2**70), "[]",
    "{}", "[[]]", f"[[{2**40}, {2**40}]]", "[[1, -5]]", '["TensorList"]', '["", "[" , "9e999"]', '{"a": {"b": []}}',
]  # fmt: skip
TOKENS = [
    b"NaN", b"-Infinity", b"1e999", b"\\", b"\\u", b"\\ud800", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\x00",
    b"\xff", b"\xef\xbb\xbf", b"[" * 2000, b"9" * 400, b"null",
    b'"ts"', b'"args"', b"C:\\new\\x", b"\n", b"//", b"\x1f\x8b",
]  # fmt: skip
RULES = rules_of(Config())


@dataclass(frozen=True, repr=False)
class Files:
    """Small traces, and an execution trace of the same step as the first of them."""

    traces: tuple[bytes, ...]
    execution: bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The first trace and its execution trace as PyTorch recorded them here."""
    folder = tmp_path_factory.mktemp("recorded")
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer) as recorded:
        torch.cat([torch.nn.functional.silu(x @ w) * x, x]).add_(1.0).sum().backward()
    recorded.export_chrome_trace(str(folder / "trace.json"))
    made = [write(folder / era.name, era, list(step(era))) for era in (ERAS[0], ERAS[3], ERAS[4])]
    traces = tuple(path.read_bytes() for path in [folder / "trace.json", *made])
    return Files(traces, (folder / "et.json").read_bytes())


def check(folder: Path, trace: bytes, execution: bytes | None = None, *, salvage: bool = False) -> None:
    """The property: a document with numbers that are some, which can be stored, or one line."""
    path, beside = folder / "trace.json", None
    path.write_bytes(trace)
    if execution is not None:
        beside = folder / "et.json"
        beside.write_bytes(execution)
    try:
        audit = audit_trace(path, beside, rules=RULES, config=Config(), salvage=salvage)
    except AuditError as error:
        sentence = str(error)
    else:
        check_audit(audit)
        return
    assert "\n" not in sentence
    assert len(sentence) < 1000


def check_audit(audit: Audit) -> None:
    to_tables(audit.graph)
    check_numbers(audit.document, "it")
    c = audit.document.coverage
    assert c.kernels == c.linked + c.before_window + c.graph_replayed + c.outside_ops + c.unattributed
    assert all(math.isfinite(number) for number in numbers(msgspec.to_builtins(audit.document)))


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for held in value.values() if isinstance(value, dict) else value:
            yield from numbers(held)
    elif isinstance(value, int | float):
        yield value


SHARE = st.floats(0, 1, exclude_max=True)
BYTE_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["overwrite", "insert", "cut out", "repeat", "end"]), SHARE, st.integers(0, 60),
        st.sampled_from(TOKENS) | st.binary(max_size=4),
    ),
    min_size=1, max_size=4,
)  # fmt: skip
"""What to do, how far into the file, to how many bytes, and with what."""
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["odd", "odd", "missing", "twice"]), st.lists(SHARE, min_size=1, max_size=6),
        st.sampled_from(ODD),
    ),
    min_size=1, max_size=5,
)  # fmt: skip
"""What to do, with which child of which child of the document, and the JSON to put there."""


def edited_bytes(data: bytes, edits: list[tuple[str, float, int, bytes]]) -> bytes:
    """Some bytes overwritten, cut out, put in or moved."""
    for kind, share, size, token in edits:
        at = int(len(data) * share)
        if kind == "overwrite":
            data = data[:at] + token + data[at + len(token) :]
        elif kind == "insert":
            data = data[:at] + token + data[at:]
        elif kind == "cut out":
            data = data[:at] + data[at + size :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + 20 * size] + data[at:]
        else:
            data = data[:at]
    return data


def edited(data: bytes, edits: list[tuple[str, list[float], str]]) -> bytes:
    """Valid JSON in which some values are others, missing, or there twice."""
    document = json.loads(data)
    for kind, shares, odd in edits:
        held, key = document, next(iter(document), None)
        for share in shares:
            inner = held[key] if key is not None and isinstance(held[key], dict | list) and held[key] else held
            held, keys = inner, list(inner) if isinstance(inner, dict) else range(len(inner))
            key = keys[int(len(keys) * share)] if keys else None
        if key is None:
            continue
        if kind == "odd":
            held[key] = json.loads(odd)
        elif kind == "missing":
            del held[key]
        elif isinstance(held, list):
            held.append(held[key])
    return json.dumps(document).encode()


@BOUNDED
@given(which=st.integers(0, 3), edits=BYTE_EDITS, packed=st.booleans(), salvage=st.booleans())
def test_broken_bytes_of_a_trace(
    tmp_path: Path, files: Files, which: int, edits: Any, packed: bool, salvage: bool
) -> None:
    data = files.traces[which]
    check(tmp_path, edited_bytes(gzip.compress(data, mtime=0) if packed else data, edits), salvage=salvage)


@BOUNDED
@given(which=st.integers(0, 3), edits=EDITS)
def test_broken_structure_of_a_trace(tmp_path: Path, files: Files, which: int, edits: Any) -> None:
    check(tmp_path, edited(files.traces[which], edits))


@BOUNDED
@given(edits=EDITS)
def test_broken_structure_of_an_execution_trace(tmp_path: Path, files: Files, edits: Any) -> None:
    check(tmp_path, files.traces[0], edited(files.execution, edits))


@BOUNDED
@given(edits=BYTE_EDITS, salvage=st.booleans())
def test_broken_bytes_of_an_execution_trace(tmp_path: Path, files: Files, edits: Any, salvage: bool) -> None:
    check(tmp_path, files.traces[0], edited_bytes(files.execution, edits), salvage=salvage)
