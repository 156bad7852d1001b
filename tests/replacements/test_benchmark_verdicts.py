"""What benchmarks/replacements.py says of figures: verdicts that a patcher reads, and how memory is counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fused_replacements._registry import HOME

# torch warns about its own use of torch.jit when Inductor is imported
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture
def replacements(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    import replacements

    yield replacements
    for name in set(sys.modules) - before:
        if BENCHMARKS in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def ratio(value: float, spread: float = 0.1) -> dict[str, float]:
    return {"ratio": value, "low": value - spread, "high": value + spread}


def row(eager: float, compiler: float | None = 1.0, overhead: float = 0.0, **more: Any) -> dict[str, Any]:
    against = {"eager": ratio(eager)} | ({"compile": ratio(compiler)} if compiler is not None else {})
    known = {"name": "rms_norm", "variant": "llama", "pass": "forward", "dtype": "fp32", "unfused": None}
    return known | {"against": against, "overhead_us": overhead} | more


@pytest.mark.parametrize(
    ("figures", "verdict", "missed"),
    [
        (row(3.2), "target met", []),
        (row(3.1), "wins", ["eager"]),
        (row(3.2, compiler=0.94), "wins", ["compile"]),
        (row(3.2, compiler=0.96), "target met", []),
        (row(3.2, compiler=None), "target met", []),
        (row(3.2, overhead=5.1), "wins", ["overhead_us"]),
        (row(1.05, compiler=0.5, overhead=9.0), "even", ["eager", "compile", "overhead_us"]),
        (row(0.8), "loses", ["eager"]),
        (row(6.0) | {"against": {"eager": ratio(6.0, spread=2.0)}}, "noise", []),
        (row(1.2, dtype="bf16"), "target met", []),
        (row(1.2, **{"pass": "forward+backward"}), "target met", []),
        (row(1.2, variant="gate first"), "target met", []),
        (row(9.0, unfused="x is float64"), "unfused", []),
        ({"error": "RuntimeError: no"}, "error", []),
    ],
)
def test_verdict(replacements: ModuleType, figures: dict[str, Any], verdict: str, missed: list[str]) -> None:
    judged = replacements.judged(figures)
    assert judged["verdict"] == verdict
    assert [each["target"] for each in judged["missed"]] == missed
    assert all(each["found"] != each["wanted"] for each in judged["missed"])


def test_every_anchor_is_about_a_variant_that_is_there(replacements: ModuleType) -> None:
    from replacement_calls import labels

    from fused_replacements import find

    for anchor in replacements.ANCHORS:
        assert anchor.name in HOME
        found = [
            label for label in labels(find(anchor.name)) if replacements.anchor(anchor.name, label, "forward", "fp32")
        ]
        assert found, anchor


def test_peak_memory_is_that_of_the_allocations(replacements: ModuleType) -> None:  # noqa: ARG001
    from replacement_measure import peak_bytes

    x = torch.randn(1000, 64)
    size = x.numel() * 4
    assert size <= peak_bytes(lambda: x + 1) < size + 1024
    assert 2 * size <= peak_bytes(lambda: ((x + 1) * 2) - 3) < 2 * size + 1024  # one is read, one is written
    assert 3 * size <= peak_bytes(lambda: [x + 1, x + 2, x + 3]) < 3 * size + 1024


def test_ratio_and_its_interval(replacements: ModuleType) -> None:  # noqa: ARG001
    from replacement_measure import Ratio

    found = Ratio.of([20.0, 22.0, 21.0, 19.0, 20.5], [10.0, 11.0, 10.5, 9.5, 10.2])
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(2.0, abs=0.02)


def test_table_has_a_line_for_each_result_and_says_what_is_missing(replacements: ModuleType) -> None:
    figures = {
        "rows": 8,
        "width": 4,
        "us": {"eager": 10.0, "fused": 5.0},
        "peak_bytes": {"eager": 2**21, "fused": 2**20},
    }
    results = [
        replacements.judged(row(2.0, compiler=0.9, overhead=7.0) | figures),
        replacements.judged(
            {"name": "rope", "variant": "a|b", "pass": "forward", "error": "RuntimeError: no", "rows": 4}
        ),
    ]
    machine = {"processor": "CPU", "threads": 2, "torch": "2"}
    text = replacements.table(
        {
            "machine": machine,
            "dtype": "fp32",
            "rows": 8,
            "width": 4,
            "results": results,
            "left_out": ["softmax (causal)"],
        }
    )
    assert "| 2.00 (1.90–2.10) | 0.90 (0.80–1.00) |  | 2.0 → 1.0 | +7.0 | wins, but misses 3.15 × eager, " in text
    assert "0.95 × compile, 5 µs a call |" in text
    assert "| rope | a/b (4 rows) | forward | | | | | | | | error: RuntimeError: no |" in text
    assert "2 measured: 1 error, 1 wins. Out of time, not measured: softmax (causal)." in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(columns) == 1
