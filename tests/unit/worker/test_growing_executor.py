"""An executor that follows the load: it grows while attempts wait, and shrinks when threads have nothing to do."""

import threading

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.outcome import Succeeded
from jobrunner.worker.run import growing_executor
from jobrunner.worker.run.executor import FinishedAttempts
from jobrunner.worker.run.growing_executor import GrowingExecutor
from jobrunner.worker.settings import WorkerSettings
from tests.support.waiting import wait_for
from tests.unit.worker.attempts import attempt_at


class Slots:
    """Each thread has a function of its own; `ended` are those of threads that ended."""

    def __init__(self, run):
        self.run, self.ended = run, []

    def new_run(self):
        return lambda attempt: self.run(attempt)

    def end(self, run):
        self.ended.append(run)

    def close(self):
        pass


@pytest.fixture
def gate():
    """Attempts run until it is released; `gate.running` counts them."""
    opened = threading.Semaphore(0)
    opened.running = []

    def run(attempt):
        opened.running.append(attempt.id)
        assert opened.acquire(timeout=60)
        opened.running.remove(attempt.id)
        return Succeeded()

    opened.run = run
    yield opened
    opened.release(1000)


def grown(gate, least, most, monkeypatch, idle_s=60.0):
    monkeypatch.setattr(growing_executor, "_IDLE_S", idle_s)
    finished = FinishedAttempts()
    slots = Slots(gate.run)
    executor = GrowingExecutor(least, most, slots, finished)
    wait_for(lambda: len(executor._parked) == least)  # a thread that does not wait yet is not counted on
    return executor, slots, finished


def attempts(count):
    return [attempt_at("growing.job", id=f"t{n}") for n in range(count)]


def test_it_begins_with_few_threads_and_starts_as_many_as_the_load_needs(gate, monkeypatch):
    executor, _, finished = grown(gate, 1, 6, monkeypatch)
    assert executor.threads == 1
    executor.submit(attempts(4))
    wait_for(lambda: len(gate.running) == 4)
    assert executor.threads == 4
    executor.submit(attempts(5))
    wait_for(lambda: len(gate.running) == 6)
    assert (executor.threads, executor.backlog) == (6, 3), "no more than the most"
    gate.release(100)
    wait_for(lambda: len(finished) == 9)
    executor.close()


def test_it_shrinks_to_the_least_and_grows_again(gate, monkeypatch):
    executor, slots, finished = grown(gate, 2, 6, monkeypatch, idle_s=0.05)
    gate.release(6)
    executor.submit(attempts(6))
    wait_for(lambda: len(finished) == 6 and executor.threads == 2)
    wait_for(lambda: len(slots.ended) == 4)
    executor.submit(attempts(3))
    wait_for(lambda: len(gate.running) == 3)
    gate.release(3)
    wait_for(lambda: len(finished) == 9)
    executor.close()


def test_a_nudge_starts_a_thread_for_what_waits_behind_short_tasks(gate, monkeypatch):
    executor, _, _ = grown(gate, 1, 3, monkeypatch)
    executor._typical_s = 0.0
    executor.submit(attempts(2))
    wait_for(lambda: len(gate.running) == 1)
    assert executor.threads == 1
    wait_for(lambda: executor.nudge() or len(gate.running) == 2)
    executor.close()


def test_a_nudge_without_work_starts_nothing(gate, monkeypatch):
    executor, _, _ = grown(gate, 1, 3, monkeypatch)
    for _ in range(5):
        executor.nudge()
    assert executor.threads == 1
    executor.close()


def test_a_thread_that_the_system_refuses_is_not_counted_and_ends_nothing(gate, monkeypatch):
    executor, _, finished = grown(gate, 1, 3, monkeypatch)

    def refused(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        executor.submit(attempts(3))
    assert executor.threads == 1
    gate.release(3)
    wait_for(lambda: len(finished) == 3)
    executor.close()


def test_no_attempt_is_lost_while_threads_come_and_go(gate, monkeypatch):
    executor, _, finished = grown(gate, 1, 8, monkeypatch, idle_s=0.0005)
    gate.release(3000)
    for _ in range(300):
        executor.submit(attempts(5))
        executor.nudge()
    wait_for(lambda: executor.nudge() or len(finished) == 1500)
    wait_for(lambda: executor.threads == 1)
    executor.close()


def test_the_least_is_checked():
    assert WorkerSettings(concurrency=4, min_concurrency=4).min_concurrency == 4
    with pytest.raises(InvalidOption, match="min_concurrency=5 is above concurrency=4"):
        WorkerSettings(concurrency=4, min_concurrency=5)
    with pytest.raises(InvalidOption, match="min_concurrency=-1"):
        WorkerSettings(min_concurrency=-1)
