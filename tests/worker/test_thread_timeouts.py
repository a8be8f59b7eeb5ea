"""A timeout reaches a thread between two steps of Python, so not while it is in a call into C."""

import ctypes
import threading
import time
import traceback
from typing import Any

import pytest

from jobrunner import Client, job
from jobrunner.errors import AttemptTimeout
from jobrunner.inspector.error_groups import read_groups
from jobrunner.worker.run.watchdog import Watchdog
from tests.support.waiting import wait_for
from tests.worker.conftest import Start

began: list[str] = []
freed = threading.Event()


@job(name="thread_timeouts.blocking", queue="tt", timeout=0.2, max_attempts=1, keepalive=1)
def blocking() -> None:
    """Waits for a lock, which no exception interrupts in a thread."""
    began.append("blocking")
    freed.wait()


@job(name="thread_timeouts.good", queue="tt")
def good() -> str:
    """Runs."""
    began.append("good")
    return "good"


@job(name="thread_timeouts.holding", queue="tt", timeout=0.05, max_attempts=1)
def holding() -> str:
    """Sleeps without giving the interpreter lock away, as a long call into C does, so no other thread can act."""
    ctypes.PyDLL(None).usleep(100_000)
    return "in time"


@job(name="thread_timeouts.noting", queue="tt", timeout=0.2, max_attempts=1)
def noting() -> None:
    """Notes how the timeout reads, as an error tracker or the job's own log would write it."""
    try:
        while not freed.wait(0.01):
            pass
    except AttemptTimeout as error:
        began.extend(traceback.format_exception_only(error))
        raise


def work_that_hangs() -> None:
    while not freed.wait(0.01):
        pass


@job(name="thread_timeouts.hanging", queue="tt", timeout=0.2, max_attempts=1)
def hanging() -> None:
    work_that_hangs()


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    began.clear()
    freed.clear()
    yield
    freed.set()


def test_a_thread_in_a_call_into_c_keeps_its_slot_and_its_lease_until_the_call_returns(
    start: Start, current: Client
) -> None:
    start(queues=["tt"], concurrency=1)
    blocked, waiting = blocking.enqueue(), good.enqueue()
    wait_for(lambda: began)
    ends = time.monotonic() + 1.5
    wait_for(lambda: time.monotonic() > ends)  # beyond the timeout, and beyond a lease that nobody renews

    assert began == ["blocking"]
    assert blocked.record().state == "pending"
    freed.set()
    assert waiting.result(timeout=20) == "good"
    wait_for(lambda: blocked.record().state == "dead")
    assert blocked.error.startswith("AttemptTimeout")
    assert began == ["blocking", "good"], "the attempt ran once"


def test_a_timeout_says_in_a_thread_what_it_is(start: Start, current: Client) -> None:
    start(queues=["tt"], concurrency=1)
    task = noting.enqueue()
    wait_for(lambda: task.record().state == "dead")
    assert began == ["jobrunner.errors.AttemptTimeout: the attempt ran longer than its timeout\n"]
    assert task.error.startswith("AttemptTimeout: the attempt ran longer than timeout=0.2 s of job")


def test_the_error_of_a_timeout_has_the_line_where_the_job_was(start: Start, current: Client) -> None:
    """All time-outs of a job are one group of dead tasks, wherever they met it."""
    start(queues=["tt"], concurrency=1)
    tasks = [hanging.enqueue(), noting.enqueue()]
    for task in tasks:
        wait_for(lambda task=task: task.record().state == "dead")
    lines = tasks[0].error.splitlines()
    assert lines[0].startswith("AttemptTimeout: the attempt ran longer than timeout=0.2 s of job")
    assert lines[-1] == f"jobrunner.errors.{lines[0]}"
    assert any(line.endswith("in work_that_hangs") for line in lines)
    assert [group.place for group in read_groups(current, ["tt"]).groups] == ["", ""]


def test_a_job_that_held_the_interpreter_lock_beyond_its_timeout_fails_when_it_returns(
    start: Start, current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that watches timeouts waits for the lock, too, and may come behind the end of the attempt, as here."""
    monkeypatch.setattr(Watchdog, "_fire_due", lambda _: 60.0)
    start(queues=["tt"], concurrency=1)
    task = holding.enqueue()
    wait_for(lambda: task.record().state in ("dead", "succeeded"))
    assert task.state == "dead"
    assert task.error.startswith("AttemptTimeout: the attempt ran longer than timeout=0.05 s")
