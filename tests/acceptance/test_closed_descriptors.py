"""A job that closes the descriptors of its worker: the worker ends with an error, and tasks go on elsewhere."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.errors import TaskFailed
from jobrunner.task import Task, new_id
from tests.acceptance.fleet import Fleet
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

_JOBS = """
import os, time
from jobrunner import job

@job(name="closing.close", queue="closing")
def close():
    open(BEGAN, "w").close()
    while not os.path.exists(GO):
        time.sleep(0.01)
    os.closerange(3, 64)
    time.sleep(LAST)

@job(name="closing.other", queue="closing")
def other():
    time.sleep(0.01)
"""


def _jobs(began: Path, go: Path, last: int) -> str:
    return _JOBS.replace("BEGAN", repr(str(began))).replace("GO", repr(str(go))).replace("LAST", str(last))


def enqueue(client: Client, name: str) -> Any:
    attempts = 1 if name == "close" else 5
    made = Task(
        id=new_id("closing"), queue="closing", type=f"closing.{name}", payload=b"{}", max_attempts=attempts,
        keepalive_ms=8_000,
    )  # fmt: skip
    return client.enqueue(made)


@pytest.mark.parametrize("last", [0, 60])
def test_the_worker_notices_and_ends_with_an_error(fleet: Fleet, current: Client, tmp_path: Path, last: int) -> None:
    """Also while the job that did it runs on."""
    module = fleet.module(f"closing{last}", _jobs(tmp_path / "began", tmp_path, last))
    worker = fleet.start_one(modules=[module], queues=["closing"], grace=1)
    assert enqueue(current, "other").result(timeout=30) is None
    culprit = enqueue(current, "close")
    others = [enqueue(current, "other") for _ in range(20)]
    assert worker.wait(60) not in (0, None)
    assert "a job took away" in worker.log.read_text()
    fleet.start_one(modules=[module], queues=["closing"])
    for task in others:
        task.result(timeout=60)
    if last:
        assert str(culprit.state) == "dead", "else it would break one worker after the other"
        assert "a job took away" in culprit.error


def test_one_that_does_it_while_its_worker_stops_is_not_handed_back(
    fleet: Fleet, current: Client, tmp_path: Path
) -> None:
    """It would break the next worker."""
    began, go = tmp_path / "began", tmp_path / "go"
    module = fleet.module("closing_late", _jobs(began, go, 60))
    worker = fleet.start_one(modules=[module], queues=["closing"], grace=3)
    culprit = enqueue(current, "close")
    wait_for(began.exists)
    others = [enqueue(current, "other") for _ in range(3)]
    worker.stop()
    wait_for(lambda: "worker stopping" in worker.log.read_text())
    go.touch()
    worker.wait(60)
    successor = fleet.start_one(modules=[module], queues=["closing"])
    for task in others:
        task.result(timeout=60)
    with pytest.raises(TaskFailed):
        culprit.result(timeout=60)
    assert enqueue(current, "other").result(timeout=60) is None
    assert successor.alive


_PRINTS = """
import os
from jobrunner import job

@job(name="printing.jot", queue="printing", max_attempts=1)
def jot():
    print("said")
    os.system("echo shouted; echo complained >&2")
    return [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
"""


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-"])
def test_a_worker_whose_streams_are_closed_works_and_no_job_prints_into_its_pipes(
    current: Client, tmp_path: Path, closed: str, executor: str
) -> None:
    (tmp_path / "printing.py").write_text(_PRINTS)
    task = current.enqueue(Task(id=new_id("printing"), queue="printing", type="printing.jot", payload=b"{}"))
    words = [sys.executable, "-m", "jobrunner", "work", "printing", "--burst", "--executor", executor]
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.join(words)} {closed}"], cwd=tmp_path, timeout=60, check=False,
        env={**os.environ, "JOBRUNNER_URL": current.settings.url, "JOBRUNNER_PREFIX": current.settings.prefix,
             "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0
    found = task.result(timeout=5)
    closed_here = [number for number in (1, 2) if f"{number if number > 1 else ''}>&-" in closed.split()]
    assert {found[number] for number in closed_here} == {"/dev/null"}
