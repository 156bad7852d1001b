"""Steps are found from events: each test tells a story of calls and reads which steps came out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from auditor.collect.signature import CallSignature
from auditor.collect.steps import Step, StepTracker


@dataclass
class Listener:
    """Writes down what the tracker decided, one word a decision."""

    said: list[str] = field(default_factory=list)
    final: bool = False

    def begin(self, first: CallSignature | None) -> None:  # noqa: ARG002
        self.said.append("begin")

    def mark(self) -> None:
        pass

    def end(self, step: Step, cut: int | None) -> None:
        self.said.append(" ".join(step.roots) + (f" cut {cut}" if cut else ""))

    def cancel(self) -> None:
        self.said.append("cancel")

    def restart(self) -> None:
        self.said.append("restart")

    def has_final_graph(self) -> bool:
        return self.final

    @property
    def steps(self) -> list[str]:
        """The steps that ended, without how they began."""
        return [word for word in self.said if word != "begin"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def tell(story: str, tracker: StepTracker, clock: Clock | None = None) -> None:
    """Play ``story``: ``A`` calls a root, ``A!`` one that raises, ``a`` one in training mode whose result
    needs grad, ``<`` a backward pass, ``1`` an optimizer, ``z`` zero_grad, ``.`` time passes, ``|`` a mark.
    """
    for word in story.split():
        if word == "<":
            tracker.backward_exit()
        elif word == "z":
            tracker.zero_grad_enter()
            tracker.zero_grad_exit()
        elif word == ".":
            assert clock is not None
            clock.now += 1
        elif word == "|":
            tracker.step_mark()
        elif word.isdigit():
            tracker.optimizer_exit(word)
        else:
            tracker.root_enter((word.upper().rstrip("!"), ()))
            if word.endswith("!"):
                tracker.root_failed()
            else:
                tracker.root_exit(expects_backward=word.islower())


@pytest.mark.parametrize(
    ("story", "steps"),
    [
        pytest.param("A", ["A cut 1"], id="one call"),
        pytest.param("A A A", ["A cut 1", "A", "A"], id="one model"),
        pytest.param("A B A B A B", ["A B cut 2", "A B", "A B"], id="a cycle of two"),
        pytest.param("T U U U V", ["T U cut 2", "U", "U"], id="encoder once, a loop, decoder once"),
        pytest.param("A B", ["A B cut 2"], id="two models once"),
        pytest.param("A A B B B", ["A cut 1", "A", "restart", "B", "B"], id="the first ends too early to record"),
        pytest.param(
            "A A B A B A B", ["A cut 1", "A", "A", "restart", "A B"], id="a dry run before a cycle"
        ),
        pytest.param("A A! A", ["A cut 1", "cancel", "A"], id="a call that raises"),
        pytest.param("a a a", ["A cut 1", "A", "A"], id="grad left on by mistake"),
    ],
)  # fmt: skip
def test_inference(story: str, steps: list[str]) -> None:
    # GIVEN
    listener = Listener()
    tracker = StepTracker(listener)

    # WHEN
    tell(story, tracker)
    tracker.finish()

    # THEN
    assert listener.steps == steps
    assert tracker.kind == "inference"


@pytest.mark.parametrize(
    ("story", "steps"),
    [
        pytest.param("a < 1 a < 1", ["A", "A"], id="plain"),
        pytest.param("a l < 1 a l < 1", ["A L", "A L"], id="a loss that is a module"),
        pytest.param("a < a < 1 a < a < 1", ["A A", "A A"], id="gradient accumulation"),
        pytest.param("a < 1 2 a < 1 2 a < 1 2", ["A", "restart", "A", "A"], id="two optimizers in turn"),
        pytest.param("d < 1 g d < 2 d < 1 g d < 2", ["D", "cancel", "restart", "D G D"], id="adversarial"),
        pytest.param("A A a < 1 a < 1", ["A cut 1", "A", "A", "restart", "A"], id="validation comes first"),
        pytest.param("a < 1 E E a < 1", ["A", "E E A"], id="an evaluation in between goes with the next step"),
    ],
)
def test_training(story: str, steps: list[str]) -> None:
    # GIVEN
    listener = Listener()
    tracker = StepTracker(listener)
    tracker.optimizer_exists = True

    # WHEN
    tell(story, tracker)
    tracker.finish()

    # THEN
    assert listener.steps == steps
    assert tracker.kind == "training"


def test_backward_without_an_optimizer_ends_a_step() -> None:
    # GIVEN a script that updates its parameters by hand
    listener = Listener()
    tracker = StepTracker(listener)

    # WHEN
    tell("a l < a l < a l <", tracker)

    # THEN the first step is cut after two calls and a backward, the others end there
    assert listener.steps == ["A L cut 3", "A L", "A L"]
    assert tracker.kind == "training"


def test_two_backwards_of_one_step() -> None:
    listener = Listener()

    tell("a < < a < < a < <", StepTracker(listener))

    assert listener.steps == ["A cut 3", "A", "A"]


@pytest.mark.parametrize(
    ("story", "said"),
    [
        pytest.param("a < 1 z . . a < 1 z", ["begin", "A", "begin", "A"], id="follows the optimizer"),
        pytest.param("a < 1 . . z a < 1 . . z a", ["begin", "A", "begin", "A", "begin"], id="leads the forward"),
    ],
)
def test_zero_grad_belongs_to_the_step_it_stands_next_to(story: str, said: list[str]) -> None:
    # GIVEN
    clock, listener = Clock(), Listener()
    tracker = StepTracker(listener, clock)
    tracker.optimizer_exists = True

    # WHEN
    tell(story, tracker, clock)

    # THEN
    assert listener.said == said


def test_a_step_waits_for_the_zero_grad_that_follows() -> None:
    # GIVEN a loop in which zero_grad followed the optimizer at once
    clock, listener = Clock(), Listener()
    tracker = StepTracker(listener, clock)
    tracker.optimizer_exists = True
    tell("a < 1 z . a < 1", tracker, clock)

    # WHEN the second step's has not come yet
    before = list(listener.said)
    tell("z", tracker, clock)

    # THEN
    assert before == ["begin", "A", "begin"]
    assert listener.said == ["begin", "A", "begin", "A"]


def test_marks_overrule_what_was_found() -> None:
    # GIVEN
    listener = Listener()
    tracker = StepTracker(listener)

    # WHEN
    tell("A | A B | A B |", tracker)

    # THEN the first guess is dropped and each mark ends what came before
    assert listener.said == ["begin", "cancel", "restart", "begin", "A B", "begin", "A B", "begin"]
    assert tracker.kind == "marked"


def test_a_single_mark_is_a_step_when_the_script_ends() -> None:
    listener = Listener()
    tracker = StepTracker(listener)

    tell("| A B", tracker)
    tracker.finish(sole_mark=True)

    assert listener.steps == ["A B"]


def test_a_thread_that_may_end_holds_nothing_open() -> None:
    # GIVEN
    listener = Listener()
    tracker = StepTracker(listener)

    # WHEN
    tracker.root_enter(("A", ()))
    tracker.root_exit(alone=True)

    # THEN
    assert listener.steps == ["A"]


def test_a_fork_ends_the_first_step() -> None:
    listener = Listener()
    tracker = StepTracker(listener)
    tell("A", tracker)

    tracker.hold_no_longer()

    assert listener.steps == ["A cut 1"]


def test_the_first_model_stays_the_step_once_its_graph_is_there() -> None:
    listener = Listener(final=True)
    tracker = StepTracker(listener)

    tell("A A A B B B B", tracker)

    assert listener.steps == ["A cut 1", "A", "A"]
    assert tracker.calls == {"A": 3, "B": 4}
