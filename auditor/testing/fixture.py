"""The fixture ``fusion_audit``: audits that one test makes, and the budgets that it is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from auditor.config import Config, Written, load_config, settings_file
from auditor.errors import AuditError
from auditor.gate.budget import Demands, project_demands
from auditor.gate.given import keyed_demands
from auditor.report.format import safe
from auditor.testing.summary import Line

if TYPE_CHECKING:
    from auditor.engine.rules import Rule
    from auditor.gate_document import GateDocument
    from auditor.testing.audited import TestedAudit

_NO_AUDIT = "fusion_budget: the test made no audit; let it take the fixture and call it: fusion_audit(model, inputs)"


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a project sets, read once a session."""

    config: Config
    rules: list[Rule]
    known: list[tuple[str, str]]


_SETTINGS = pytest.StashKey[_Settings]()


class FusionAudit:
    """Audits models for one test: ``audit = fusion_audit(model, inputs)``."""

    def __init__(self, item: pytest.Item, markers: Sequence[pytest.Mark]) -> None:
        self._item = item
        self._made: list[tuple[TestedAudit, bool]] = []
        self._verdicts: list[GateDocument] | None = None
        self._marked = _marked(item, markers) if markers else None

    def __call__(
        self,
        model: Callable[..., Any],
        inputs: Any = (),
        *,
        train: bool = False,
        budget: bool = False,
        name: str = "",
    ) -> TestedAudit:
        """Run ``model`` on ``inputs`` a few times, and audit one of its steps.

        The model is left as it was: mode, gradients, buffers, and the random numbers that the test draws next.

        Args:
            model: a module, or a function that calls modules and does whatever a step of it is.
            inputs: a tensor, a tuple of arguments, a dict of arguments by name, or a function that makes these anew
                for each step.
            train: training mode, and a backward after the forward; else evaluation mode, without gradients.
            budget: hold the audit to the budget in ``pyproject.toml`` too, when the test has ended.
            name: of the audit, which budgets of ``model = "…"`` mean; the model's class if none is given.

        Raises:
            AuditError: nothing was recorded, or a profiler runs already.
        """
        __tracebackhide__ = True
        from auditor.api import audit_recording
        from auditor.testing.audited import TestedAudit
        from auditor.testing.one_step import record_step

        settings = _settings(self._item.config)
        if budget and not _project(self._item.config):
            raise AuditError(_no_budget(self._item.config))
        try:
            recorder = record_step(model, inputs, train=train)
            made = audit_recording(
                recorder.folder, recorder.recording, rules=settings.rules, device=_uncalibrated(recorder.recording),
                config=settings.config, name=name or _name(model),
            )  # fmt: skip
        except AuditError as error:
            raise error.with_traceback(None) from None  # at the test's own line
        audit = TestedAudit(made, self._item.nodeid)
        if self._item.config.getoption("fusion_store"):
            _store(audit)
        self._made.append((audit, budget))
        self._verdicts = None
        return audit

    def check(self) -> None:
        """Fail the test where one of its audits breaks a limit.

        Raises:
            pytest.fail.Exception: with what is broken, by which findings, and what to type next.
        """
        __tracebackhide__ = True
        from auditor.report.gate_plain import message

        if self._marked is not None and not self._made:
            pytest.fail(_NO_AUDIT, pytrace=False)
        broken = [
            f"{safe(gate.run.name)}: {message(gate, check)}"
            for gate in self._judged()
            for check in gate.checks
            if check.status == "failed"
        ]
        if broken:
            pytest.fail("\n\n".join(broken), pytrace=False)

    def lines(self) -> list[Line]:
        """What the summary says, a line for each audit."""
        test = self._item.nodeid
        return [_line(test, audit, gate) for (audit, _), gate in zip(self._made, self._judged(), strict=True)]

    def close(self) -> None:
        """Let the graphs go."""
        self._made, self._verdicts = [], None

    def _judged(self) -> list[GateDocument]:
        if self._verdicts is None:
            self._verdicts = [self._judge(audit, budget) for audit, budget in self._made]
        return self._verdicts

    def _judge(self, audit: TestedAudit, budget: bool) -> GateDocument:
        from auditor.testing.explain import next_commands
        from auditor.testing.verdict import verdict_on

        parts = [*([self._marked] if self._marked else []), *([_project(self._item.config)] if budget else [])]
        demands = Demands(
            tuple(limit for part in parts for limit in part.limits),
            tuple(demand for part in parts for demand in part.required),
        )
        config = self._item.config
        return verdict_on(
            audit, demands, _settings(config).rules, root=config.rootpath,
            then=next_commands(self._item.nodeid, audit.document.run.id),
        )  # fmt: skip


def _marked(item: pytest.Item, markers: Sequence[pytest.Mark]) -> Demands:
    """What the markers demand: those of the test, over those of its class, over those of its module.

    Raises:
        AuditError: a key that there is not, an amount that is none, no limit at all.
    """
    line = (item.location[1] or 0) + 1
    written = Written(item.path, "fusion_budget", lambda _: line)
    keys: dict[str, Any] = {}
    for marker in reversed(markers):  # the closest comes first
        keys |= marker.kwargs
    if any(marker.args for marker in markers):
        raise AuditError(f"{written.at()}: fusion_budget takes keys only, such as max_unfused_kernels=12")
    return keyed_demands(
        keys, written, _settings(item.config).known, why_no_increase="a test has no baseline"
    )  # fmt: skip


def _settings(config: pytest.Config) -> _Settings:
    """Those of the ``pyproject.toml`` nearest to pytest's root."""
    settings = config.stash.get(_SETTINGS, None)
    if settings is None:
        from auditor.api import rules_of

        read = load_config(config.rootpath)
        rules = rules_of(read)
        settings = config.stash[_SETTINGS] = _Settings(read, rules, [(rule.id, rule.name) for rule in rules])
    return settings


def _project(config: pytest.Config) -> Demands:
    return project_demands(_settings(config).known, config.rootpath)


def _no_budget(config: pytest.Config) -> str:
    file = settings_file(config.rootpath)
    where = f"{safe(str(file))} sets none" if file else f"there is no pyproject.toml at {safe(str(config.rootpath))}"
    return (
        f"budget=True, and there is no budget: {where}; write limits under [tool.fusion-audit], "
        "such as max_unfused_kernels = 0, or give the test its own: @pytest.mark.fusion_budget(max_unfused_kernels=0)"
    )


def _name(model: Callable[..., Any]) -> str:
    name: str = getattr(model, "__name__", "") or type(model).__name__
    return name


def _uncalibrated(recording: Any) -> Any:
    """A CPU as it is: to measure it takes seconds, and counts need no figures. Others are looked up by name."""
    from auditor.devices.describe import Device

    if recording.device_kind not in ("", "cpu"):
        return None
    return Device(name=recording.device_name or "cpu", kind="cpu")


def _store(audit: TestedAudit) -> None:
    from auditor.store import Store
    from auditor.stored import Origin, save

    with Store.open() as store:
        save(store, audit, Origin.here())


def _line(test: str, audit: TestedAudit, gate: GateDocument) -> Line:
    from auditor.report.gate_facts import outcome

    totals = audit.document.totals
    return Line(
        test=test, name=audit.document.run.name, unfused_kernels=totals.unfused_kernels,
        avoidable_kernels=totals.avoidable_kernels, kernels=totals.kernels, bytes=totals.bytes,
        verdict=outcome(gate) if gate.checks else "", passed=gate.passed, run=audit.document.run.id,
    )  # fmt: skip
