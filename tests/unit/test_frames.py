"""Calls that are timed don't cross the end of a chunk of Python's frames, however deep the caller stands."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from auditor.frames import with_room
from auditor.measuring import interleave

CALLS = 200


def nested(depth: int, function: Callable[[], int]) -> int:
    return function() if depth == 0 else nested(depth - 1, function)


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def inner() -> None:
    return None


def outer() -> None:
    inner()


def faults_of_calls() -> int:
    before = faults()
    for _ in range(CALLS):
        outer()
    return faults() - before


@pytest.fixture(scope="module")
def at_the_end() -> int:
    """How deep a loop stands whose calls cross the end of a chunk."""
    for depth in range(300):
        if nested(depth, faults_of_calls) >= CALLS:
            return depth
    pytest.skip("this Python keeps its chunks of frames")


@pytest.mark.parametrize("deeper", range(-8, 3))
def test_with_room_no_call_needs_a_chunk_of_its_own(at_the_end: int, deeper: int) -> None:
    assert nested(at_the_end + deeper, lambda: with_room(faults_of_calls)) < CALLS / 10


def test_versions_are_timed_with_room(at_the_end: int) -> None:
    """Wherever the caller stands: one of these depths puts the calls that are timed at the end of a chunk."""
    found = []

    def timed() -> int:
        interleave({"one": version, "two": version}, baseline="one", max_rounds=1, min_rounds=1, sample_us=0)
        return 0

    def version() -> None:
        found.append(faults_of_calls())

    for depth in range(at_the_end, at_the_end + 150):  # a chunk and more
        found.clear()
        nested(depth, timed)
        assert sorted(found)[len(found) // 2] < CALLS / 10, depth


def test_what_a_function_returns_or_raises_comes_through() -> None:
    assert with_room(lambda: 7) == 7
    with pytest.raises(KeyError):
        with_room(lambda: {}["absent"])
