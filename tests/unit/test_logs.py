"""Logs of a process that works."""

import sys
from pathlib import Path

import pytest
import structlog

from jobrunner.attempt import Attempt
from jobrunner.logs import SafeLogger, log_to_stderr
from jobrunner.loop import Loop
from jobrunner.outcome import Failed
from jobrunner.worker.run.executor import FinishedAttempts, RunAttempt, ThreadExecutor
from tests.support.waiting import wait_for
from tests.unit.worker.attempts import attempt_at


def test_a_log_that_cannot_be_written_ends_no_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = (tmp_path / "log").open("w")
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_stderr("console")
    stream.close()
    structlog.get_logger().warning("no reader")


class BrokenSlots:
    """Slots whose attempts cannot be run, which a slot logs."""

    def new_run(self) -> RunAttempt:
        def run(_: Attempt) -> Failed:
            raise ValueError("no")

        return run

    def close(self) -> None:
        """Nothing to end."""


def _fails(*_: object) -> str:
    raise RuntimeError("this log is broken")


@pytest.fixture(params=["closed stream", "broken processor"])
def _broken_log(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """structlog as a program set it up that does not run under the command line."""
    if request.param == "broken processor":
        structlog.configure(processors=[_fails])
        return
    stream = (tmp_path / "log").open("w")
    stream.close()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(stream))


@pytest.mark.usefixtures("_broken_log")
def test_a_log_that_somebody_else_set_up_ends_no_loop() -> None:
    def step() -> float:
        SafeLogger("jobrunner.any").info("a turn")
        raise ValueError("and the loop tells of this")

    assert Loop("any", step).turn() > 0


@pytest.mark.usefixtures("_broken_log")
def test_a_log_that_somebody_else_set_up_ends_no_slot() -> None:
    finished = FinishedAttempts(lambda: None)
    executor = ThreadExecutor(1, BrokenSlots(), finished)
    try:
        for _ in range(2):
            executor.submit([attempt_at("any")])
            ((_, outcome),) = wait_for(finished.drain)
            assert isinstance(outcome, Failed)
    finally:
        executor.close()


def test_an_own_log_says_what_structlog_is_set_up_for() -> None:
    with structlog.testing.capture_logs() as lines:
        log = SafeLogger("jobrunner.any")
        log.info("one", number=1)
        log.warning("two")
        log.error("three")
        log.exception("four")
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("one", "info"), ("two", "warning"), ("three", "error"), ("four", "error"),
    ]  # fmt: skip
    assert lines[0]["number"] == 1
