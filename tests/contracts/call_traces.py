"""Counts the files of the package that one action runs through: those that a reader opens to follow it.

A profiler notes the file of every function that is called, after the action was done a few times, so that imports and
what is made once do not count. Other threads of a worker do their own work meanwhile: of several turns the one with the
fewest files counts.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType

from jobrunner import Client, Worker, job
from jobrunner.client.current import within
from tests.contracts.sources import PACKAGE
from tests.support.server import Server
from tests.support.waiting import wait_for

_TURNS = 5
TARGETS = {
    "one enqueue": 10, "one fetch, run and report": 16, "one periodic tick": 8, "one item of a Spark station": 14,
    "one action of the dashboard": 10,
}  # fmt: skip


class _Calls:
    """A profile function: the files of the package whose functions are called while `is_on`.

    `below` limits it to what a function calls: (the end of its file's path, its name).
    """

    def __init__(self) -> None:
        self.is_on = False
        self.files: set[str] = set()
        self._below: tuple[str, str] | None = None
        self._without: int | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or code.co_name == "<module>":
            return
        if threading.get_ident() == self._without or not code.co_filename.startswith(str(PACKAGE)):
            return
        if self._below is None or self._is_below(frame):
            self.files.add(str(Path(code.co_filename).relative_to(PACKAGE)))

    def _is_below(self, frame: FrameType | None) -> bool:
        assert self._below is not None
        path, name = self._below
        while frame is not None:
            if frame.f_code.co_name == name and frame.f_code.co_filename.endswith(path):
                return True
            frame = frame.f_back
        return False

    def fewest(
        self, act: Callable[[], object], *, before: Callable[[], object] = lambda: None,
        below: tuple[str, str] | None = None, elsewhere: bool = False,
    ) -> list[str]:  # fmt: skip
        """The files of the turn with the fewest. `before` prepares each; `elsewhere`: only other threads count."""
        self._below, self._without = below, threading.get_ident() if elsewhere else None
        found = []
        for _ in range(_TURNS):
            before()
            self.files = set()
            self.is_on = True
            act()
            self.is_on = False
            found.append(sorted(self.files))
        return min((files for files in found if files), key=len, default=[])


@contextmanager
def _profiled() -> Iterator[_Calls]:
    calls = _Calls()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


@job(name="house.noop", queue="house")
def _noop() -> int:
    return 0


def trips(*, spark: bool = True) -> dict[str, list[str]]:
    """The files of each action. Spark takes a session of its own, some fifteen seconds."""
    server = Server()
    try:
        with redirect_stdout(sys.stderr), _profiled() as calls, Client(server.url, "house") as client, within(client):
            found = {
                "one enqueue": _enqueue(calls),
                "one fetch, run and report": _run(calls, client),
                "one periodic tick": _tick(calls, client),
                "one action of the dashboard": _act(calls, client),
            }
            if spark:
                found["one item of a Spark station"] = _on_spark(calls, client)
        return {name: found[name] for name in TARGETS if name in found}
    finally:
        server.remove()


def _enqueue(calls: _Calls) -> list[str]:
    _noop.enqueue()
    return calls.fewest(_noop.enqueue)


def _run(calls: _Calls, client: Client) -> list[str]:
    worker = Worker(client=client, queues=["house"], concurrency=2)
    worker.start()
    queue = client.queue("house")

    def run() -> None:
        before = queue.totals().get("succeeded", 0)
        _noop.enqueue()
        wait_for(lambda: queue.totals().get("succeeded", 0) > before and not worker.in_hand)

    run()
    try:
        return calls.fewest(run, elsewhere=True)
    finally:
        worker.stop(grace=5)


def _tick(calls: _Calls, client: Client) -> list[str]:
    ticked = threading.Semaphore(0)

    @job(name="house.tick", queue="ticks", every=timedelta(seconds=0.2))
    def tick() -> None:
        ticked.release()

    worker = Worker(client=client, queues=["ticks"], concurrency=1)
    worker.start()
    for _ in range(3):
        assert ticked.acquire(timeout=30)
    try:
        return calls.fewest(lambda: ticked.acquire(timeout=30), below=("coordinator/cron.py", "step"), elsewhere=True)
    finally:
        worker.stop(grace=5)


def _act(calls: _Calls, client: Client) -> list[str]:
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback
    from tests.unit.web.conftest import Browser

    browser = Browser(create_app(client, auth=Loopback()))
    client.queue("house").push(1)

    def pause() -> None:
        answer = browser.post_form("/queues/house/pause", {"for": "60"}, headers={"accept": "application/json"})
        assert answer.is_success

    pause()
    return calls.fewest(pause)


def _on_spark(calls: _Calls, client: Client) -> list[str]:
    """Without the code that runs in Spark's own processes for Python, which no profiler of this one sees."""
    from jobrunner.etl import Pipeline
    from jobrunner.spark.session import spark_session
    from jobrunner.spark.station.driver import StationDriver

    flights = Pipeline("house", client)

    @flights.spark_station("clean", to="end", max_wait=0, schema="n int")
    def clean(df, spark):  # type: ignore[no-untyped-def]
        return df

    flights.declare("end")
    driver = StationDriver(flights.spark_stations["house/clean"], client)
    spark = spark_session("house", "local[1]")

    def push() -> None:
        flights.push("clean", {"n": 1})

    try:
        push()
        assert driver.step(spark)
        return calls.fewest(lambda: driver.step(spark), before=push)
    finally:
        driver.stop(20)
        with suppress(Exception):
            spark.stop()
