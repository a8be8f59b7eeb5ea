"""Workers in the process of the test, on its server and prefix."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import Client, Worker
from jobrunner.jobs.registry import driven_queues

Start = Callable[..., Worker]


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps workers that serve all queues from those of Spark's stations, which other modules of a run declared: each
    would start a Java, for half a minute."""
    of_others = set(driven_queues())
    monkeypatch.setattr(
        "jobrunner.worker.queues.driven_queues", lambda: [one for one in driven_queues() if one not in of_others]
    )


@pytest.fixture
def start(current: Client) -> Iterator[Start]:
    """start(queues=[…], concurrency=…, …): a worker that works; it stops with the test."""
    started: list[Worker] = []

    def begin(**options: Any) -> Worker:
        started.append(Worker(client=current, **options))
        started[-1].start()
        return started[-1]

    yield begin
    for worker in started:
        worker.stop(grace=0)


@pytest.fixture
def run(current: Client) -> Callable[..., Any]:
    """run(queues=[…], …): a worker that works until nothing is waiting or pending; returns its summary."""

    def work(*, drain: bool = False, **options: Any) -> Any:
        return Worker(client=current, **options).run(burst=not drain, drain=drain)

    return work


@pytest.fixture(params=["uvloop", "asyncio"])
def either_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With uvloop, and as if it were not installed."""
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    else:
        pytest.importorskip("uvloop")
