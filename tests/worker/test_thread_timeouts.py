"""A timeout reaches a thread between two steps of Python, so not while it is in a call into C."""

import threading
import time
from typing import Any

import pytest

from jobrunner import Client, job
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
