"""A worker's process ends after an error of the worker, whatever threads its jobs left behind."""

import queue

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
