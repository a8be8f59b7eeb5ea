"""Coroutine jobs that cancel, stop or block what they run on: each attempt is reported, and the worker works on."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import Backoff, Client, TaskHandle, Worker, job
from jobrunner.inspector.doctor.attention import problem_checks
from jobrunner.worker.run import event_loop
from tests.support.waiting import wait_for
from tests.worker.conftest import Start

pytestmark = pytest.mark.processes

QUICK = Backoff(base=0.01, factor=1)
began: list[str] = []
ended: list[str] = []
loops: list[asyncio.AbstractEventLoop] = []
freed = threading.Event()


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    for kept in (began, ended, loops):
        kept.clear()
    freed.clear()
    yield
    freed.set()


@job(name="loop.good", queue="lp", backoff=QUICK)
async def good(name: str = "good") -> str:
    began.append(name)
    await asyncio.sleep(0)
    return name


@job(name="loop.plain", queue="lp")
def plain() -> None:
    began.append("plain")


@job(name="loop.neighbour", queue="lp", timeout=30, keepalive=2, backoff=QUICK, retry_on=ConnectionError)
async def neighbour(name: str) -> str:
    """Waits in its first attempt; `retry_on` is about what jobs raise, not about what befalls them."""
    began.append(name)
    loops.append(asyncio.get_running_loop())
    while began.count(name) == 1:
        await asyncio.sleep(0.01)
    return name


@job(name="loop.all_cancelling", queue="lp", max_attempts=1)
async def all_cancelling() -> None:
    while len(began) < 3:
        await asyncio.sleep(0.01)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@job(name="loop.own_cancelling", queue="lp", max_attempts=2, backoff=QUICK)
async def own_cancelling() -> None:
    began.append("own")
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


@job(name="loop.own_cancelling_at_the_end", queue="lp", max_attempts=1)
async def own_cancelling_at_the_end() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@job(name="loop.stopping", queue="lp", max_attempts=1)
async def stopping(neighbours: int = 0) -> None:
    while len(began) < neighbours:
        await asyncio.sleep(0.01)
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


@job(name="loop.exiting", queue="lp", max_attempts=1)
async def exiting(neighbours: int = 0) -> None:
    """SystemExit in a task of its own goes through the event loop."""
    while len(began) < neighbours:
        await asyncio.sleep(0.01)

    async def leave() -> None:
        sys.exit(3)

    asyncio.get_running_loop().create_task(leave())
    await asyncio.sleep(60)


@job(name="loop.clinging", queue="lp", max_attempts=1)
async def clinging() -> None:
    """Stops the loop, and does not end when it is cancelled."""
    asyncio.get_running_loop().stop()
    while not freed.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            began.append("clung")


@job(name="loop.spinning", queue="lp", timeout=0.2, max_attempts=1)
async def spinning() -> None:
    began.append("spinning")
    while not freed.is_set():
        pass


@job(name="loop.blocking", queue="lp", timeout=0.2, max_attempts=1)
async def blocking() -> None:
    """In C, where nothing can end it."""
    began.append("blocking")
    freed.wait(60)


@job(name="loop.endlessly_blocking", queue="lp", max_attempts=1)
async def endlessly_blocking() -> None:
    freed.wait(60)
    ended.append("blocked")


@job(name="loop.deaf", queue="lp", timeout=0.2, max_attempts=1)
async def deaf() -> None:
    while not freed.is_set():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            began.append("deaf")


@job(name="loop.once_deaf", queue="lp", timeout=0.2, max_attempts=1)
async def once_deaf() -> None:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.sleep(30)


@job(name="loop.spinning_in_a_task", queue="lp", timeout=0.2, max_attempts=1)
async def spinning_in_a_task() -> None:
    async def spin() -> None:
        while not freed.is_set():
            time.sleep(0.001)

    await asyncio.get_running_loop().create_task(spin())


@job(name="loop.timed", queue="lp", timeout=0.2, max_attempts=1)
async def timed(name: str) -> None:
    began.append(name)
    await asyncio.sleep(30)


def error_of(task: TaskHandle[Any]) -> str:
    wait_for(lambda: str(task.record().state) in ("dead", "succeeded"), timeout_s=60)
    assert str(task.record().state) == "dead"
    return task.record().error or ""


def works_on(worker: Worker, *, slots: int) -> None:
    """All slots are free again, for coroutines and others, and the worker stops at once."""
    began.clear()
    held = [neighbour.enqueue(name=f"last{number}") for number in range(slots)]
    wait_for(lambda: len(began) == slots, timeout_s=60)
    began.extend(f"last{number}" for number in range(slots))
    assert [task.result(timeout=60) for task in held] == [f"last{number}" for number in range(slots)]
    plain.enqueue().result(timeout=60)
    asked = time.monotonic()
    worker.stop(grace=40)
    assert time.monotonic() - asked < 30


@pytest.mark.usefixtures("either_loop")
def test_neighbours_that_a_job_cancels_failed_and_are_tried_again(start: Start, current: Client) -> None:
    worker = start(queues=["lp"], concurrency=4)
    cancelled = [neighbour.enqueue(name=name) for name in "abc"]
    culprit = all_cancelling.enqueue()
    assert [task.result(timeout=60) for task in cancelled] == ["a", "b", "c"]
    assert culprit.result(timeout=60) is None
    assert sorted(began) == sorted("abcabc")
    assert all(task.record().attempts == 2 for task in cancelled)
    works_on(worker, slots=4)


def test_a_job_that_cancels_itself_failed_with_that_reason(start: Start, current: Client) -> None:
    worker = start(queues=["lp"], concurrency=4)
    tasks = [own_cancelling.enqueue() for _ in range(6)]
    for task in tasks:
        assert error_of(task).startswith("AttemptCancelled: the asyncio task of the attempt was cancelled")
    assert began.count("own") == 12, "each is tried again, as after any failure"
    assert own_cancelling_at_the_end.enqueue().result(timeout=60) is None, "it had ended"
    works_on(worker, slots=4)


def test_one_that_is_cancelled_before_its_first_step_spends_no_attempt(start: Start, current: Client) -> None:
    """All of them are begun in one turn of the loop: the culprit runs first and cancels tasks that never ran."""
    began.extend("xxx")
    worker = start(queues=["lp"], concurrency=4)
    culprit, *others = good.enqueue_many(
        [all_cancelling.bind(), *(good.bind(name=str(number)) for number in range(3))]
    )
    assert [task.result(timeout=60) for task in others] == ["0", "1", "2"]
    assert [task.record().attempts for task in others] == [1, 1, 1]
    assert culprit.result(timeout=60) is None
    works_on(worker, slots=4)


@pytest.mark.usefixtures("either_loop")
@pytest.mark.parametrize("culprit", [stopping, exiting])
def test_a_loop_that_ended_is_replaced_and_its_tasks_failed(start: Start, current: Client, culprit: Any) -> None:
    worker = start(queues=["lp"], concurrency=4)
    others = [neighbour.enqueue(name=name) for name in "abc"]
    wait_for(lambda: len(began) == 3)
    first = loops[0]
    ending = culprit.enqueue(neighbours=3)
    assert [task.result(timeout=60) for task in others] == ["a", "b", "c"]
    assert "AttemptCrashed: the event loop of the attempt" in error_of(ending)
    assert sorted(began) == sorted("abcabc")
    assert first not in loops[3:]
    for _ in range(3):
        assert "AttemptCrashed" in error_of(culprit.enqueue())
    works_on(worker, slots=4)


def test_a_job_that_outlives_the_loop_it_stopped_is_reported(start: Start, current: Client) -> None:
    worker = start(queues=["lp"], concurrency=2)
    assert "AttemptCrashed: the event loop of the attempt was stopped by a job" in error_of(clinging.enqueue())
    assert "clung" in began
    works_on(worker, slots=2)


@pytest.mark.usefixtures("either_loop")
@pytest.mark.parametrize("blocked", [spinning, spinning_in_a_task, deaf, once_deaf])
def test_timeouts_hold_whatever_a_coroutine_does(start: Start, current: Client, blocked: Any) -> None:
    worker = start(queues=["lp"], concurrency=4)
    asked = time.monotonic()
    tasks = [blocked.enqueue(), *(timed.enqueue(name=name) for name in "ab")]
    for task in tasks:
        assert error_of(task).startswith("AttemptTimeout: the attempt ran longer than timeout=0.2 s")
    assert time.monotonic() - asked < 30, "a coroutine would sleep for thirty seconds or spin for ever"
    freed.set()
    works_on(worker, slots=4)


def test_the_error_of_a_timeout_has_the_line_where_the_coroutine_was(start: Start, current: Client) -> None:
    start(queues=["lp"], concurrency=4)
    where = ", in timed\n    await asyncio.sleep(30)\n"
    errors: list[str] = []
    # Again where the machine is so busy that the coroutine had not begun.
    wait_for(lambda: errors.append(error_of(timed.enqueue(name="a"))) or where in errors[-1])
    error = errors[-1]
    assert error.rstrip().endswith(error.splitlines()[0])


def test_a_coroutine_that_blocks_in_c_costs_its_slot_and_nobody_else(start: Start, current: Client) -> None:
    worker = start(queues=["lp"], concurrency=2)
    assert error_of(blocking.enqueue()).startswith("AttemptTimeout")
    for number in range(3):
        assert good.enqueue(name=str(number)).result(timeout=60) == str(number)
    assert error_of(blocking.enqueue()).startswith("AttemptTimeout")
    waiting = good.enqueue(name="waiting")
    time.sleep(0.3)  # the span in which a free slot would begin it
    assert "waiting" not in began, "two threads are blocked, so no slot is free"
    freed.set()
    assert waiting.result(timeout=60) == "waiting"
    works_on(worker, slots=2)


def test_a_worker_whose_loops_are_blocked_ends_in_its_grace(start: Start, current: Client) -> None:
    worker = start(queues=["lp"], concurrency=2)
    for _ in range(2):
        error_of(blocking.enqueue())
    asked = time.monotonic()
    worker.stop(grace=40)
    assert time.monotonic() - asked < 30


def test_what_waits_behind_a_blocked_loop_is_not_pending_for_ever(
    start: Start, current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_BLOCKED_S", 0.5)
    worker = start(queues=["lp"], concurrency=4)
    others = [neighbour.enqueue(name=name) for name in "ab"]
    wait_for(lambda: len(began) == 2)
    timed.enqueue_many([timed.bind(name="timed"), endlessly_blocking.bind()])
    assert [task.result(timeout=60) for task in others] == ["a", "b"]
    assert sorted(name for name in began if name != "timed") == ["a", "a", "b", "b"]
    freed.set()
    works_on(worker, slots=4)


@pytest.mark.usefixtures("either_loop")
def test_a_worker_reports_the_job_that_blocks_its_event_loop(
    start: Start, current: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a timeout nothing else would: the worker looks alive, and its coroutine jobs stand still."""
    monkeypatch.setattr(event_loop, "_SILENT_S", 0.5)
    worker = start(queues=["lp"], concurrency=4, heartbeat=0.1)
    good.enqueue().result(timeout=60)
    culprit = endlessly_blocking.enqueue()
    problem = wait_for(lambda: current.workers()[0].problem)

    assert problem.startswith(f"job 'loop.endlessly_blocking', task {culprit.id}, blocks the event loop for ")
    assert "at worker/test_event_loop.py:" in problem
    assert [one.found for one in problem_checks(current.workers())] == [f"{worker.id}: {problem}"]
    assert caplog.text.count("a job blocks the event loop: all coroutine jobs of this worker wait") == 1
    freed.set()
    wait_for(lambda: not current.workers()[0].problem)
    works_on(worker, slots=4)


@pytest.mark.usefixtures("either_loop")
def test_what_had_not_begun_on_a_blocked_loop_runs_once_on_the_next(start: Start, current: Client) -> None:
    """The blocked loop turns again later, and finds it there."""
    worker = start(queues=["lp"], concurrency=4)
    asked = time.monotonic()
    _, behind = good.enqueue_many([blocking.bind(), good.bind(name="behind")])
    assert behind.result(timeout=60) == "behind"
    assert time.monotonic() - asked < event_loop._BLOCKED_S
    freed.set()
    wait_for(lambda: sum(thread.name == "jobrunner-coroutines" for thread in threading.enumerate()) == 1)
    assert began == ["blocking", "behind"]
    works_on(worker, slots=4)


def test_closing_hands_back_what_runs(start: Start, current: Client, audit: Callable[..., dict[str, int]]) -> None:
    worker = start(queues=["lp"], concurrency=2)
    task = neighbour.enqueue(name="a")
    wait_for(lambda: began == ["a"])
    worker.stop(grace=0)
    assert str(task.state) == "waiting"
    assert task.record().attempts == 0
    assert audit("lp") == {"waiting": 1, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}
