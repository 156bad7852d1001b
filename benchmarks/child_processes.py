"""Tasks in child processes, so that one which kills its process, its GPU context or the clock costs only itself.

A CUDA error such as an illegal address stays with the process: whatever runs after it fails too. So a child that says
it is broken, dies or takes too long is replaced, and the next task starts clean. Tasks and answers are lines of JSON;
whatever else a child prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TextIO

Task = dict[str, Any]
Answer = dict[str, Any]


class Child:
    """One process that answers tasks, started when it is first asked."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def ask(self, task: Task, timeout_s: float) -> Answer:
        """The answer, or ``{"error": …}`` where there was none."""
        process = self._alive()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(max(0.0, timeout_s), process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            in_time = late.is_alive()
            late.cancel()
        if line:
            answer: Answer = json.loads(line)
            if answer.pop("broken", False):
                self.close()
            return answer
        code = self.close()
        return {"error": f"the process died with exit code {code}" if in_time else f"it took over {timeout_s:.0f} s"}

    def _alive(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._process

    def close(self) -> int | None:
        """End the process, and return its exit code; the next task gets a new one."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.communicate()  # closes the pipes
        return process.returncode


def run(
    tasks: Iterable[Task], command: Sequence[str], *, children: int, deadline: float, task_limit_s: float,
    say: Callable[[Task, Answer], None],
) -> tuple[list[tuple[Task, Answer]], list[Task]]:  # fmt: skip
    """Answers in the order of ``tasks``, and the tasks for which there was no time.

    ``command`` starts a child that calls ``answer_tasks``; so many of them work at once. What runs at ``deadline``, in
    terms of ``time.monotonic()``, is stopped and counts as without time; a single task that takes longer than
    ``task_limit_s`` is an error. ``say`` is told of each answer as it comes, by several threads.
    """
    listed = list(tasks)
    waiting: SimpleQueue[int] = SimpleQueue()
    for place in range(len(listed)):
        waiting.put(place)
    answers: dict[int, Answer] = {}

    def work() -> None:
        child = Child(command)
        while (left := deadline - time.monotonic()) > 0:
            try:
                place = waiting.get_nowait()
            except Empty:
                break
            answer = child.ask(listed[place], min(left, task_limit_s))
            if "error" in answer and time.monotonic() >= deadline:
                break
            answers[place] = answer
            say(listed[place], answer)
        child.close()

    threads = [threading.Thread(target=work) for _ in range(min(children, len(listed)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [(task, answers[place]) for place, task in enumerate(listed) if place in answers]
    return done, [task for place, task in enumerate(listed) if place not in answers]


def answer_tasks(answer: Callable[[Task], Answer], healthy: Callable[[], bool]) -> None:
    """A child's life: one answer for each line of stdin, until it is closed or no longer healthy."""
    out = _own_stdout()
    for line in sys.stdin:
        try:
            answered = answer(json.loads(line))
        except Exception as error:
            answered = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        if not healthy():
            answered["broken"] = True
        print(json.dumps(answered), file=out, flush=True)
        if "broken" in answered:
            return


def _own_stdout() -> TextIO:
    """The pipe to the parent; from here on ``print`` and C code write to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out
