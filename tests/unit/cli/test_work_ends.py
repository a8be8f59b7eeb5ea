"""A worker's process ends after an error of the worker, whatever threads its jobs left behind."""

import queue
import signal
import threading
from collections.abc import Iterator

import pytest

from jobrunner.cli import signals, work
from jobrunner.errors import DriverFailed, JobrunnerError, WorkerBroken


@pytest.mark.parametrize("error", [DriverFailed("x"), WorkerBroken("x")], ids=lambda one: type(one).__name__)
def test_after_an_error_the_process_does_not_wait_for_threads_for_ever(
    monkeypatch: pytest.MonkeyPatch, error: JobrunnerError
) -> None:
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(signals.os, "_exit", codes.put)
    monkeypatch.setattr(signals, "_farewells", [])
    monkeypatch.setattr(work, "_BROKEN_FAREWELL_S", 0.0)

    with pytest.raises(type(error)), work._ending_after_errors(0.0):
        raise error
    assert codes.empty(), "a program that called the command goes on"
    with pytest.raises(SystemExit):
        signals.exit_with(7)

    assert codes.get(timeout=30) == 7


@pytest.fixture
def _alarm_as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_alarm_as_it_was")
def test_the_exit_code_is_that_of_the_error_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(signals.os, "_exit", codes.put)
    monkeypatch.setattr(signals, "_farewells", [0.0])
    monkeypatch.setattr(threading.Thread, "start", start)

    with pytest.raises(SystemExit) as ended:
        signals.exit_with(2)

    assert ended.value.code == 2
    assert codes.get(timeout=30) == 2, "and it does not wait for threads for ever"
