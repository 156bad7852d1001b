"""Which pass each step gets."""

from __future__ import annotations

import pytest

from auditor.collect.schedule import PATIENCE, Schedule
from auditor.collect.signature import StepSignature, alike, tensor_facts


def step(*shape: int) -> StepSignature:
    return (("A", (("0", "f32", shape),)),)


def play(schedule: Schedule, steps: list[StepSignature]) -> list[str]:
    """The pass of every step, in brackets where it was not kept."""
    passes = []
    for signature in steps:
        given = schedule.begin(signature[0])
        kept = schedule.end(given, signature)
        passes.append("-" if given is None else given if kept else f"({given})")
    return passes


def test_equal_steps() -> None:
    assert play(Schedule(wanted=3), [step(2)] * 9) == [
        "graph", "timing", "graph", "bare", "timing", "bare", "timing", "bare", "-",
    ]  # fmt: skip


def test_six_steps_are_enough_for_two_timings_and_the_final_graph() -> None:
    schedule = Schedule(wanted=5)

    play(schedule, [step(2)] * 6)

    assert (schedule.timing, schedule.bare, schedule.final) == (2, 2, True)


def test_warm_up_steps_are_not_recorded() -> None:
    assert play(Schedule(warmup=3), [step(2)] * 4) == ["graph", "-", "-", "timing"]


def test_prefill_and_decode_are_told_apart() -> None:
    # GIVEN a generation loop with a growing mask, for two prompts
    prompt = [step(1, 64), *(step(1, 65 + n) for n in range(3))]

    # THEN prefill only serves as the first graph, and the second one is passed over
    assert play(Schedule(), [*prompt, *prompt][:6]) == ["graph", "timing", "graph", "bare", "-", "timing"]


def test_the_last_smaller_batch_is_skipped() -> None:
    assert play(Schedule(), [step(4), step(4), step(3), step(4)]) == ["graph", "timing", "-", "graph"]


def test_a_step_that_ends_unlike_is_dropped() -> None:
    # GIVEN a target of two calls
    schedule = Schedule()
    two = (*step(2), *step(3))
    play(schedule, [two, two])

    # WHEN a step begins alike but has one call only
    passes = play(schedule, [step(2), two])

    # THEN
    assert passes == ["(graph)", "graph"]


def test_another_target_is_chosen_when_the_first_never_comes_back() -> None:
    # GIVEN shapes that never repeat
    schedule = Schedule()
    shapes = [step(100 * n + 1) for n in range(PATIENCE + 3)]

    # WHEN
    passes = play(schedule, shapes)

    # THEN the graph is taken first: one good step is worth more than a clock
    assert passes == ["graph", "timing", *["-"] * PATIENCE, "graph"]
    assert schedule.forgot
    assert schedule.final


def test_timing_of_another_shape_does_not_fit_the_first_graph() -> None:
    schedule = Schedule()

    play(schedule, [step(1, 64), step(1, 1)])

    assert not schedule.timing_fits_fallback()


@pytest.mark.parametrize(
    ("earlier", "later", "apart", "same"),
    [
        (step(2, 3), step(2, 3), 5, True),
        (step(2, 3), step(2, 8), 5, True),
        (step(2, 3), step(2, 7), 5, False),
        (step(1, 3), step(2, 3), 1, False),
        (step(2, 3), step(2), 1, False),
        (step(2), (*step(2), *step(2)), 1, False),
        ((("A", ()),), (("B", ()),), 1, False),
    ],
)
def test_alike(earlier: StepSignature, later: StepSignature, apart: int, same: bool) -> None:
    assert alike(earlier, later, apart) is same


def test_tensor_facts_are_found_in_nested_arguments() -> None:
    class Fake:
        dtype, shape = "f32", (2,)

    tensor = Fake()

    facts = tensor_facts((tensor, [tensor, 3]), {"mask": tensor, "cache": {"k": tensor}})

    assert [place for place, _, _ in facts] == ["0", "1.0", "mask", "cache.k"]
