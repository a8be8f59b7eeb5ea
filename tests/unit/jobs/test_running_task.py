"""The attributes of a running task that its job can read."""

from typing import Any

import pytest

from jobrunner.broker.keys import Keys
from jobrunner.errors import ClientClosed, ServerUnavailable
from jobrunner.jobs import running_task
from jobrunner.jobs.running_task import JobRun, ProgressNotes
from tests.unit.worker.attempts import attempt_at


class Server:
    """Answers progress notes with the set answer."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def run(self, call: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run_with(server: Any, notes: ProgressNotes | None = None) -> JobRun:
    return JobRun(attempt_at("job"), "job", server, Keys("t"), notes or ProgressNotes(server), lambda token: False)


@pytest.mark.parametrize("error", [ServerUnavailable("away"), ClientClosed("the worker ended")])
def test_a_note_that_cannot_be_written_fails_no_attempt_and_the_next_are_not_tried_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Of no run of the worker: with a server that is silent each try takes five seconds."""
    now = 1000.0
    monkeypatch.setattr(running_task, "monotonic", lambda: now)
    server: Any = Server(error, "stop")
    notes = ProgressNotes(server)
    runs = [run_with(server, notes) for _ in range(2)]
    for _ in range(3):
        for run in runs:
            run.progress(1, 1)
        now += 3
    assert len(server.answers) == 1

    now += 3
    runs[1].progress(1, 1)
    assert [run.cancelled for run in runs] == [False, True]


@pytest.mark.parametrize(
    ("answer", "stops"), [("ok", False), ("stop", True), ("lost", True), ("not_reserved", True), ("gone", False)]
)
def test_the_answer_to_a_note_tells_whether_to_stop(answer: str, stops: bool) -> None:
    """`gone` is the answer for a task that was acknowledged early: it runs on."""
    run = run_with(Server(answer))
    assert not run.cancelled
    run.progress(1, 2)
    assert run.cancelled is stops


def test_notes_are_written_at_most_ten_times_a_second_and_always_at_the_end() -> None:
    server = Server("ok", "ok")
    run = run_with(server)
    for done in range(100):
        run.progress(done, 100)
    assert len(server.answers) == 1
    run.progress(100, 100)
    assert server.answers == []
