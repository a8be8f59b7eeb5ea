"""The attributes of a running task that its job can read."""

import asyncio
import json
import threading
from typing import Any

import pytest

from jobrunner.broker.keys import Keys
from jobrunner.errors import ClientClosed, ServerUnavailable
from jobrunner.jobs import progress_notes, running_task
from jobrunner.jobs.progress_notes import ProgressNotes
from jobrunner.jobs.running_task import JobRun
from tests.unit.worker.attempts import attempt_at


class Server:
    """Answers progress notes with the set answers. An exchange with several ends when it may."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.exchanges: list[list[dict[str, Any]]] = []
        self.goes_on = threading.Event()

    def run(self, call: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run_each(self, calls: Any) -> list[Any]:
        assert self.goes_on.wait(30)
        self.exchanges.append([json.loads(call.words[-1]) for call in calls])
        return [self.run(call) for call in calls]


def run_with(server: Any, notes: ProgressNotes | None = None) -> JobRun:
    return JobRun(attempt_at("job"), "job", server, Keys("t"), notes or ProgressNotes(server), lambda token: False)


@pytest.mark.parametrize("error", [ServerUnavailable("away"), ClientClosed("the worker ended")])
def test_a_note_that_cannot_be_written_fails_no_attempt_and_the_next_are_not_tried_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Of no run of the worker: with a server that is silent each try takes five seconds."""
    now = 1000.0
    monkeypatch.setattr(progress_notes, "monotonic", lambda: now)
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


def test_coroutines_wait_for_no_note_and_those_that_wait_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each note held up all jobs of the event loop for a round trip."""
    monkeypatch.setattr(running_task, "_PROGRESS_PAUSE_S", 0.0)
    server: Any = Server("ok", "ok", "stop")
    notes = ProgressNotes(server)
    one, other = run_with(server, notes), run_with(server, notes)

    async def story() -> None:
        for done in range(4):
            one.progress(done, 4)
        other.progress(1, 2)
        other.progress(2, 2)
        ends = asyncio.gather(one.notes_written(), other.notes_written())
        await asyncio.sleep(0)
        assert not ends.done(), "the report that follows would end the task before its note"
        server.goes_on.set()
        await ends

    asyncio.run(story())
    written = [note["done"] for exchange in server.exchanges for note in exchange]
    assert (written[-2:], written[:-2]) in (([3, 2], [0]), ([3, 2], [])), "the last of each run, in one exchange"
    assert [one.cancelled, other.cancelled] == [False, len(server.answers) == 0]


def test_a_note_of_a_thread_comes_behind_those_of_its_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_task, "_PROGRESS_PAUSE_S", 0.0)
    server: Any = Server("ok", "ok", "ok")
    run = run_with(server)

    async def story() -> None:
        run.progress(1, 3)
        in_thread = asyncio.create_task(asyncio.to_thread(run.progress, 2, 3))
        await asyncio.sleep(0)
        server.goes_on.set()
        await in_thread

    asyncio.run(story())
    assert [note["done"] for exchange in server.exchanges for note in exchange][-1] == 2


@pytest.mark.parametrize(
    "error", [ServerUnavailable("away"), ClientClosed("the worker ended"), ValueError("not foreseen")]
)
def test_a_note_of_a_coroutine_that_cannot_be_written_fails_no_attempt(error: Exception) -> None:
    server: Any = Server(error, "stop")
    server.goes_on.set()
    runs = [run_with(server, notes := ProgressNotes(server)), run_with(server, notes)]

    async def story() -> None:
        for run in runs:
            run.progress(1, 1)
            await run.notes_written()

    asyncio.run(story())
    assert server.answers == ["stop"], "the next one is not tried at once"
    assert not any(run.cancelled for run in runs)


def test_an_attempt_that_is_cancelled_while_its_note_is_written_has_ended() -> None:
    server: Any = Server("ok")
    run = run_with(server)

    async def attempt() -> str:
        run.progress(1, 2)
        await run.notes_written()
        return "its outcome"

    async def story() -> str:
        running = asyncio.create_task(attempt())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        server.goes_on.set()
        return await running

    assert asyncio.run(story()) == "its outcome"
    assert run._noting is not None
    assert run._noting.result(30) is None


def test_a_note_of_a_coroutine_is_written_though_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise RuntimeError("can't start new thread")

    server: Any = Server("ok", "stop")
    server.goes_on.set()
    run = run_with(server)

    async def story() -> None:
        run.progress(1, 1)
        run.progress(1, 1)

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refused)
        asyncio.run(story())
    assert run.cancelled
