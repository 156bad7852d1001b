"""How far a fix is, as the process says that waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.collect.launch import _steps
from auditor.fix import stages
from auditor.fix.stages import Stages, write


def test_a_stage_is_said_when_it_begins_and_then_every_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(stages.time, "monotonic", lambda: now_s)
    say = Stages(tmp_path, "waiting")
    assert say() == ""

    # sites follow one another fast: they are one stage
    for number in (1, 2, 3):
        write(tmp_path, f"trying sites: {number} of 3")
        assert say() == "trying sites: 1 of 3"
    now_s = 112.0
    assert say() == "trying sites: 3 of 3, 10 s"
    now_s = 119.0
    assert say() == "trying sites: 3 of 3, 10 s"
    write(tmp_path, "measuring the step")
    assert say() == "measuring the step, 10 s"


def test_a_step_is_one_step() -> None:
    assert (_steps(1), _steps(2)) == ("1 step", "2 steps")
