"""The recorder in this process: models that other threads call, one at a time and together."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from recorder_runs import Net, check_complete, recorder
from torch import nn


def test_models_on_one_other_thread(tmp_path: Path) -> None:
    # GIVEN a worker that owns the model, as in a server
    model = Net()

    def work() -> None:
        for _ in range(5):
            model(torch.randn(2, 8))

    # WHEN
    with recorder(tmp_path) as rec:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    # THEN
    check_complete(tmp_path, rec.recording)
    assert not rec.recording.graph_is_first_step


def test_a_thread_for_every_call(tmp_path: Path) -> None:
    model = Net()

    with recorder(tmp_path) as rec:
        for _ in range(4):
            thread = threading.Thread(target=model, args=(torch.randn(2, 8),))
            thread.start()
            thread.join()

    check_complete(tmp_path, rec.recording)
    assert rec.recording.steps == 4


def test_several_threads_at_once(tmp_path: Path) -> None:
    # GIVEN two threads that are both alive
    model, second_done = Net(), threading.Event()

    def work() -> None:
        for _ in range(5):
            model(torch.randn(2, 8))
        second_done.set()

    # WHEN
    with recorder(tmp_path) as rec:
        model(torch.randn(2, 8))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for _ in range(4):
            model(torch.randn(2, 8))

    # THEN the first is recorded and the reader is told
    check_complete(tmp_path, rec.recording)
    assert second_done.is_set()
    assert any("other threads" in note for note in rec.recording.notes)


def test_one_model_that_many_threads_call_at_the_same_time(tmp_path: Path) -> None:
    # GIVEN other threads inside the very module whose call is recorded
    model, stop = Net(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            model(torch.randn(2, 8))

    threads = [threading.Thread(target=work) for _ in range(3)]

    # WHEN
    with recorder(tmp_path, steps=3) as rec:
        model(torch.randn(2, 8))
        for thread in threads:
            thread.start()
        for _ in range(8):
            model(torch.randn(2, 8))
        stop.set()
        for thread in threads:
            thread.join()

    # THEN
    check_complete(tmp_path, rec.recording)
    assert len(rec.recording.timing_us) == 3


def test_a_thread_that_is_in_the_middle_of_a_step_at_the_end(tmp_path: Path) -> None:
    # GIVEN a thread that waits inside its model
    entered, leave = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor, wait: bool) -> torch.Tensor:
            if wait:
                entered.set()
                leave.wait(10)
            return x + 1

    model, x = Waits(), torch.randn(2)
    thread = threading.Thread(target=lambda: [model(x, wait) for wait in (False, False, True)])

    # WHEN the recording ends meanwhile
    with recorder(tmp_path) as rec:
        thread.start()
        entered.wait(10)
    leave.set()
    thread.join()

    # THEN what was complete is kept
    check_complete(tmp_path, rec.recording)
    assert rec.recording.graph_is_first_step
