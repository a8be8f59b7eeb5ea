"""Jobs on threads and coroutines that fork: a copy that comes back from the job is no second worker."""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client, job
from tests.acceptance.fleet import children_of
from tests.support.waiting import wait_for
from tests.worker.conftest import Start


def _note(path: str, word: str) -> None:
    with open(path, "a") as notes:  # noqa: PTH123  one write, also of a copy
        notes.write(f"{word}\n")


def _fork(path: str, how: str) -> int:
    pid = os.fork()
    if pid:
        _note(path, "first")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _note(path, "copy")
    if how == "exits":
        sys.exit(4)
    return -1


@job(name="forks.plain", queue="fk", max_attempts=1)
def plain(path: str, how: str) -> int:
    return _fork(path, how)


@job(name="forks.coroutine", queue="fk", max_attempts=1)
async def coroutine(path: str, how: str) -> int:
    while Counter(Path(path).read_text().split())["neighbour"] < 3:
        await asyncio.sleep(0.01)
    return _fork(path, how)


@job(name="forks.awaiting", queue="fk", max_attempts=1)
async def awaiting(path: str) -> int:
    """The copy does not come back by itself: it waits for something on the copy of the loop."""
    going = asyncio.get_running_loop().create_future()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    await going
    return -1


@job(name="forks.neighbour", queue="fk", max_attempts=1)
async def neighbour(path: str) -> None:
    _note(path, "neighbour")
    while "first" not in Path(path).read_text():
        await asyncio.sleep(0.001)
    _note(path, "ended")


@pytest.mark.usefixtures("either_loop")
@pytest.mark.parametrize("kind", [plain, coroutine])
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("exits", 4)])
def test_a_copy_that_comes_back_ends_and_runs_nothing_else(
    start: Start, current: Client, tmp_path: Path, kind: Any, how: str, code: int
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    worker = start(queues=["fk"], concurrency=5)
    keeper = children_of(os.getpid())
    others = [neighbour.enqueue(path=str(notes)) for _ in range(3)]
    assert kind.enqueue(path=str(notes), how=how).result(timeout=60) == code
    for task in others:
        task.result(timeout=60)
    assert Counter(notes.read_text().split()) == {"first": 1, "copy": 1, "neighbour": 3, "ended": 3}
    assert worker.health()[0]
    assert current.queue("fk").totals()["succeeded"] == 4
    wait_for(lambda: children_of(os.getpid()) == keeper, timeout_s=60)


@pytest.mark.usefixtures("either_loop")
def test_a_copy_of_an_event_loop_does_not_turn(start: Start, current: Client, tmp_path: Path) -> None:
    start(queues=["fk"], concurrency=2)
    assert awaiting.enqueue(path="").result(timeout=60) == 0
