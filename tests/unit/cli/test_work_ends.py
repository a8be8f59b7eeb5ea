"""A worker's process ends after an error of the worker, whatever threads its jobs left behind."""

import queue

import pytest

from jobrunner.cli import work
from jobrunner.errors import DriverFailed, InvalidOption, JobrunnerError, NewerFormat, WorkerBroken


@pytest.mark.parametrize(
    ("error", "code"),
    [(DriverFailed("x"), 1), (NewerFormat("x"), 1), (InvalidOption("x"), 2), (WorkerBroken("x"), 1)],
    ids=lambda one: type(one).__name__,
)
def test_after_an_error_the_process_does_not_wait_for_threads_for_ever(
    monkeypatch: pytest.MonkeyPatch, error: JobrunnerError, code: int
) -> None:
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(work.os, "_exit", codes.put)
    monkeypatch.setattr(work, "_BROKEN_FAREWELL_S", 0.0)

    with pytest.raises(type(error)), work._ending_after_errors(0.0):
        raise error

    assert codes.get(timeout=30) == code
