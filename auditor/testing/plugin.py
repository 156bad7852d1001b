"""The plugin: what pytest calls. Installed with the package, as the entry point ``fusion_audit`` of ``pytest11``.

Audits are made in whatever process runs the test; what the summary says of them travels with the test's report, as
everything does that the workers of pytest-xdist tell their controller.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from auditor.errors import AuditError
from auditor.report.format import safe
from auditor.testing.count import Count
from auditor.testing.summary import TITLE, Summary

if TYPE_CHECKING:
    from auditor.testing.fixture import FusionAudit

MARKER = "fusion_budget"
_LINES = "fusion_audits"
"""Of a test's report: its lines of the summary, as plain data."""
_AUDITS = pytest.StashKey["FusionAudit"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--fusion-store``."""
    parser.getgroup("fusion-audit", "audits of fusions (fusion-auditor)").addoption(
        "--fusion-store", action="store_true", default=False,
        help="keep the audits of tests among the project's stored runs, for fusion-audit show and gate",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and the collector of the summary's lines."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(max_unfused_kernels=12, …): the most that each audit of the test may have; "
        "the keys are those of the budget in pyproject.toml",
    )
    config.pluginmanager.register(_Collector(), "fusion_audit_summary")


@pytest.fixture
def fusion_audit(request: pytest.FixtureRequest) -> Iterator[FusionAudit]:
    """Audits models, for assertions such as ``assert audit.unfused_kernels <= 12``.

    ``audit = fusion_audit(model, inputs)``. The inputs are a tensor, a tuple, a dict, or a function that makes them;
    train=True runs a backward too, and budget=True holds the audit to the budget in pyproject.toml.
    """
    audits = _audits_of(request.node)
    yield audits
    audits.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A mistake in a marker is told before the test runs; a test that runs again begins anew."""
    if _AUDITS in item.stash:
        del item.stash[_AUDITS]
    mistake = _mistake(item) if item.get_closest_marker(MARKER) is not None else ""
    if mistake:
        pytest.fail(mistake, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """After the test's own assertions its audits are held to their budgets."""
    result = yield
    audits = item.stash.get(_AUDITS, None)
    if audits is not None:
        audits.check()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The lines of the test's audits go with its report."""
    report = yield
    audits = item.stash.get(_AUDITS, None)
    if audits is not None and call.when == "call":
        setattr(report, _LINES, [line.data() for line in audits.lines()])
    return report


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """A count of an audit that is not what a test asserts says which findings it is made of."""
    count = left if isinstance(left, Count) else right
    if not isinstance(count, Count):
        return None
    from auditor.testing.explain import comparison

    return comparison(count, op, left, right, config.rootpath)


class _Collector:
    """Reads the reports of all tests, those that workers send included."""

    def __init__(self) -> None:
        self._summary = Summary()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the lines of a report that has some."""
        lines = getattr(report, _LINES, None)
        if lines:
            self._summary.add(report.nodeid, lines)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The section, where a test made an audit."""
        lines = self._summary.lines()
        if lines:
            terminalreporter.section(TITLE)
        for line in lines:
            terminalreporter.line(line.text(), **({} if line.passed else {"red": True}))


def _mistake(item: pytest.Item) -> str:
    """What is wrong with the markers of a test, or with the settings of its project."""
    try:
        _audits_of(item)
    except AuditError as error:
        return safe(str(error))
    return ""


def _audits_of(item: pytest.Item) -> FusionAudit:
    """Those of a test, from its setup on."""
    audits = item.stash.get(_AUDITS, None)
    if audits is None:
        from auditor.testing.fixture import FusionAudit

        audits = item.stash[_AUDITS] = FusionAudit(item, list(item.iter_markers(MARKER)))
    return audits
