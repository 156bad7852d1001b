"""Audits in tests: one step of a model, counts that explain themselves, and lines of the summary."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from gate_factory import audited, graph, rules

from auditor.audit import Audit
from auditor.collect.ingest import graph_from_recording
from auditor.collect.recorder import Recorder
from auditor.errors import AuditError
from auditor.gate.budget import Demands, given_demands
from auditor.gate.require import launches_in, launches_of
from auditor.graph.tables import to_tables
from auditor.store import Store
from auditor.testing.audited import TestedAudit
from auditor.testing.explain import comparison
from auditor.testing.one_step import arguments, record_step
from auditor.testing.summary import Line, Summary
from auditor.testing.verdict import verdict_on

COUNTS = ("kernels", "unfused_kernels", "avoidable_kernels", "already_fused_kernels", "memory_bound_kernels", "bytes",
          "peak_bytes")  # fmt: skip


def made(norms: int = 2, **run: Any) -> TestedAudit:
    of = graph(norms)
    return TestedAudit(Audit(audited(of, **run), of), "tests/test_m.py::test_it[a b]")


class TestCounts:
    def test_an_audit_has_those_of_its_totals(self) -> None:
        of = graph(2)
        audit = Audit(audited(of), of)

        for key in COUNTS:
            assert getattr(audit, key) == getattr(audit.document.totals, key)
            with pytest.raises(AttributeError):
                setattr(audit, key, 1)
        assert repr(audit) == "<Audit of llama: 12 of 14 kernels unfused, 10 avoidable, 1 finding>"

    def test_a_name_steers_nothing(self) -> None:
        assert repr(made(name="a\x1b[31m\n")).startswith(r"<Audit of a\x1b[31m\x0a: ")

    def test_those_of_a_test_are_numbers_like_any_other(self) -> None:
        audit = made()

        assert {key: getattr(audit, key) for key in COUNTS} == {
            key: getattr(audit.document.totals, key) for key in COUNTS
        }
        count = audit.unfused_kernels
        assert (count, count + 1, f"{count:,}", json.dumps(count), hash(count)) == (12, 13, "12", "12", hash(12))
        for other in (copy.deepcopy(count), pickle.loads(pickle.dumps(count)), count + 0):
            assert (other, type(other)) == (12, int)


class TestExplanation:
    def test_it_names_findings_places_and_the_next_command(self) -> None:
        audit = made()

        lines = comparison(audit.unfused_kernels, "<=", audit.unfused_kernels, 3, Path("/repo"))

        assert lines == [
            "12 unfused kernels <= 3 in llama",
            "FUS201 unfused-rms-norm: 2 sites, 12 kernels, 10 avoidable, at model.py:10 in forward · layers.0.norm",
            "next: pytest --fusion-store 'tests/test_m.py::test_it[a b]'; fusion-audit show latest",
        ]

    def test_the_count_may_be_on_the_right_and_the_run_stored(self) -> None:
        audit = made(id="1m8p3jq1ek25")

        first, *_, last = comparison(audit.peak_bytes, ">", 1, audit.peak_bytes, Path("/elsewhere"))

        assert first == f"1 > {audit.peak_bytes:,} bytes alive at once in llama"
        assert last == "next: fusion-audit show 1m8p3jq1ek25"

    def test_pytest_does_not_cut_it(self) -> None:
        audit = made(8, name="n" * 50)
        for finding in audit.findings:
            finding.modules = ["m" * 400]

        lines = comparison(audit.bytes, "<", audit.bytes, 1, Path("/repo"))

        assert len(lines) <= 8  # _pytest.assertion.truncate: DEFAULT_MAX_LINES, DEFAULT_MAX_CHARS
        assert sum(map(len, lines)) <= 640

    def test_no_finding_is_no_fault(self) -> None:
        audit = made(0)

        assert comparison(audit.kernels, "==", audit.kernels, 5, Path())[0] == "0 kernels == 5 in llama"


class TestVerdict:
    def test_an_audit_is_judged_as_its_stored_run_would_be(self, store: Store) -> None:
        of = graph(1, fused=1)
        stored = store.load(store.save(audited(of), to_tables(of)))

        assert sorted(launches_in(of), key=repr) == sorted(launches_of(stored), key=repr)

    def test_times_are_left_out(self) -> None:
        from auditor.config import Written

        audit = made()
        written = Written(Path("test_m.py"), "fusion_budget", lambda _: 7)
        demands = given_demands({"max_kernels": 1}, written, [(rule.id, rule.name) for rule in rules()])

        gate = verdict_on(audit, demands, rules(), root=Path("/repo"), then=["next"])

        assert (gate.passed, gate.next) == (False, ["next"])
        (check,) = gate.checks
        assert (check.line, {(c.step_us, c.likely_us) for c in check.culprits}) == (7, {(0.0, 0.0)})
        assert verdict_on(audit, Demands(), rules(), root=Path("/repo"), then=["next"]).next == []


class TestSummary:
    def line(self, test: str, **facts: Any) -> Line:
        counts = {"unfused_kernels": 1204, "avoidable_kernels": 3, "kernels": 5000, "bytes": 10**6}
        return Line(**({"test": test, "name": "Net", "verdict": ""} | counts | facts))

    def test_a_line(self) -> None:
        assert self.line("t.py::a").text() == (
            "t.py::a · Net: 1,204 unfused, 3 avoidable of 5,000 kernels, 1.00 MB; no budget"
        )
        assert self.line("t\x1b", name="\u202e", verdict="over budget", run="id").text() == (
            r"t\x1b · \u202e: 1,204 unfused, 3 avoidable of 5,000 kernels, 1.00 MB; over budget; stored as id"
        )

    def test_lines_are_in_order_of_tests_whatever_came_first(self) -> None:
        summary = Summary()
        summary.add("b", [self.line("b", name="2").data(), self.line("b", name="1").data()])
        summary.add("a", [self.line("a", name="old").data()])
        summary.add("a", json.loads(json.dumps([self.line("a", name="new").data()])))

        assert [(line.test, line.name) for line in summary.lines()] == [("a", "new"), ("b", "2"), ("b", "1")]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout()
        self.norm.eval()
        self.register_buffer("seen", torch.zeros(()))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.seen = self.seen + 1
        return self.drop(self.norm(self.linear(x))) * scale


class TestOneStep:
    @pytest.mark.parametrize(
        ("inputs", "expected"),
        [
            (1, ((1,), {})),
            ((1, 2), ((1, 2), {})),
            ([1, 2], (([1, 2],), {})),
            ({"a": 1}, ((), {"a": 1})),
            ((), ((), {})),
            (lambda: {"a": 1}, ((), {"a": 1})),
        ],
    )
    def test_inputs(self, inputs: Any, expected: Any) -> None:
        assert arguments(inputs) == expected

    @pytest.mark.parametrize("train", [False, True])
    def test_the_model_and_random_numbers_are_as_before(self, train: bool) -> None:
        model = Net()
        gradient = model.linear.weight.grad = torch.ones(8, 8)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        modes, state = [m.training for m in model.modules()], torch.get_rng_state()

        recorder = record_step(model, lambda: torch.rand(4, 8), train=train)

        assert (recorder.recording.has_graph, recorder.recording.graph_is_first_step) == (True, False)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert modes == [m.training for m in model.modules()]
        assert torch.equal(state, torch.get_rng_state())
        assert model.linear.weight.grad is gradient
        assert torch.equal(gradient, torch.ones(8, 8))
        assert Recorder.active is None

    def test_no_step_adds_to_gradients_of_another(self) -> None:
        x = torch.rand(4, 8, requires_grad=True)
        model = torch.nn.Linear(8, 8)

        recorder = record_step(model, (x,), train=True)

        assert (x.grad, model.weight.grad, model.bias.grad) == (None, None, None)
        names = [op.name for op in graph_from_recording(recorder.folder).ops]
        assert "aten.mm" in names
        assert [name for name in names if name.startswith("aten.add_")] == []

    def test_a_model_that_fails_is_as_before_and_its_error_is_the_tests(self) -> None:
        model = Net()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            record_step(model, torch.rand(4, 9), train=True)
        assert (model.norm.training, model.training, Recorder.active) == (False, True, None)

    @pytest.mark.parametrize(
        ("model", "sentence"),
        [
            (torch.nn.Identity(), "nothing that the model returned needs a gradient"),
            (lambda x: x, "train=True needs a module; a function runs its backward itself"),
        ],
    )
    def test_no_backward_is_a_sentence(self, model: Any, sentence: str) -> None:
        with pytest.raises(AuditError, match=sentence):
            record_step(model, torch.rand(4, 8), train=True)
