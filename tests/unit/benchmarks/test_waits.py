"""The tasks that wait or compute, and how many of them a process has in hand."""

import time

import pytest

from benchmarks import waits


def test_tasks_that_wait_or_compute_say_how_many_at_once_and_others_leave_it_to_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(waits.VARIABLE, raising=False)
    assert waits.at_once(16) == 16

    monkeypatch.setenv(waits.VARIABLE, "wait")
    assert waits.at_once(16) == waits.AT_ONCE

    monkeypatch.setenv(waits.VARIABLE, "spin")
    assert waits.at_once(16) == waits.SPINS_AT_ONCE


def test_a_task_that_computes_takes_ten_milliseconds_of_its_thread() -> None:
    before = time.thread_time()

    waits.compute()

    assert 0.01 <= time.thread_time() - before < 0.05
