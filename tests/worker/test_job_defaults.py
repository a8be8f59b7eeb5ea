"""A worker runs jobs with the options that hold for all of them."""

from pathlib import Path
from typing import Any

import pytest

from jobrunner import Backoff, Client, Worker, job, job_defaults
from jobrunner.errors import InvalidOption
from tests.support.waiting import wait_for
from tests.worker.conftest import Start


@job(name="job_defaults.slow", queue="jd")
def slow() -> None:
    while True:  # an error can come between two steps of it
        pass


@job(name="job_defaults.tick", queue="jd", every=3600)
def tick() -> None:
    raise ValueError("no")


@job(name="job_defaults.broken", queue="jd")
def broken() -> None:
    raise ValueError("no")


def test_a_default_timeout_and_number_of_attempts_hold_for_a_job_that_declares_neither(
    start: Start, current: Client
) -> None:
    job_defaults(timeout=0.05, max_attempts=1)
    task = slow.enqueue()
    start(queues=["jd"], concurrency=1)
    wait_for(lambda: task.record().state == "dead")
    assert task.error.startswith("AttemptTimeout: the attempt ran longer than timeout=0.05 s of job")


def test_a_default_backoff_delays_jobs_and_makes_no_periodic_job_try_again(start: Start, current: Client) -> None:
    job_defaults(backoff=Backoff(base=1000, jitter=0), retry_on=ValueError)
    task, ticked = broken.enqueue(), tick.enqueue()
    start(queues=["jd"], concurrency=1)
    wait_for(lambda: task.record().state == "scheduled" and ticked.record().state == "dead")
    record: Any = task.record()
    assert 900 < (record.when - record.enqueue_time).total_seconds() < 1100


@pytest.mark.usefixtures("current")
def test_a_wrong_default_in_the_file_keeps_a_worker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.jobrunner.job_defaults]\ntimeout = 'soon'\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOption, match="timeout = 'soon'"):
        Worker(queues=["jd"]).run(burst=True)
