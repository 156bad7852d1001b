"""The section of pytest's summary: a line for each audit, with its counts and how it did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from auditor.report.format import count, safe, size

TITLE = "fusion audits"


@dataclass(frozen=True, slots=True)
class Line:
    """What the summary says of one audit. Plain values: a worker of pytest-xdist sends them as JSON."""

    test: str
    name: str
    unfused_kernels: int
    avoidable_kernels: int
    kernels: int
    bytes: int
    verdict: str
    """In words; empty where nothing was demanded."""
    passed: bool = True
    run: str = ""
    """Id under which the audit is stored, if it is."""

    def data(self) -> dict[str, Any]:
        """The line as JSON can hold it; :class:`Line` takes it back by name."""
        return asdict(self)

    def text(self) -> str:
        """One line, without a character that steers the terminal."""
        counts = f"{count(self.unfused_kernels)} unfused, {count(self.avoidable_kernels)} avoidable"
        parts = [
            f"{safe(self.test)} · {safe(self.name)}",
            f"{counts} of {count(self.kernels)} kernels, {size(self.bytes)}",
            self.verdict or "no budget",
            f"stored as {safe(self.run)}" if self.run else "",
        ]
        return ": ".join([parts[0], "; ".join(part for part in parts[1:] if part)])


@dataclass(slots=True)
class Summary:
    """The lines of all tests; those of a test that runs again take the place of the earlier ones."""

    _lines: dict[str, list[Line]] = field(default_factory=dict)

    def add(self, test: str, lines: Iterable[dict[str, Any]]) -> None:
        """Keep the lines of a test's report."""
        self._lines[test] = [Line(**data) for data in lines]

    def lines(self) -> list[Line]:
        """By test, and of one test in the order of its audits: the same whatever worker was the first."""
        return [line for _, lines in sorted(self._lines.items()) for line in lines]
