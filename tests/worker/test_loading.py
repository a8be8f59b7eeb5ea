"""A worker that starts while its server is loading its data, or takes no writes, waits for it."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import structlog

from jobrunner import Client, Worker, job
from jobrunner.errors import ServerRefused, ServerUnavailable
from jobrunner.task import Task, new_id
from tests.support import full_disk
from tests.support.loading_server import LoadingServer
from tests.support.server import Server
from tests.support.waiting import wait_for

WAITS = "the worker waits for its server"


@job(name="loading.add", queue="loading")
def add(x: int, y: int) -> int:
    return x + y


def _task(x: int, y: int) -> Task:
    payload = json.dumps({"x": x, "y": y}).encode()
    return Task(id=new_id("loading"), type="loading.add", queue="loading", payload=payload)


@pytest.fixture
def loading() -> Iterator[LoadingServer]:
    """A server that is loading its data."""
    made = LoadingServer()
    made.load()
    yield made
    made.remove()


@pytest.fixture
def begin() -> Iterator[Callable[..., Any]]:
    """begin(url): a worker in a thread of its own, and what its `run` returned or raised."""
    begun: list[tuple[Worker, threading.Thread, Client]] = []

    def start(url: str, **options: Any) -> tuple[Worker, threading.Thread, list[Any]]:
        client = Client(url, "loading")
        worker, ended = Worker(queues=["loading"], client=client, concurrency=1, **options), []

        def run() -> None:
            try:
                ended.append(worker.run())
            except Exception as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        begun.append((worker, thread, client))
        return worker, thread, ended

    yield start
    for worker, thread, client in begun:
        worker.ask_to_stop()
        worker.ask_to_stop()
        thread.join(30)
        client.close()


def test_a_worker_waits_for_a_server_that_is_loading_says_so_once_and_works(
    loading: LoadingServer, begin: Callable[..., Any]
) -> None:
    with structlog.testing.capture_logs() as logged:
        worker, thread, _ = begin(loading.url)
        wait_for(lambda: any(line["event"] == WAITS for line in logged))
        is_well, said = worker.health()
        assert is_well
        assert "is loading its data" in said["waits"]

        loading.finish()

        wait_for(lambda: worker.health() == (True, {"worker": worker.id, "in_hand": 0}))
        assert worker.client.enqueue(_task(1, 2)).result(timeout=30) == 3
        assert thread.is_alive()
    assert [line["event"] for line in logged].count(WAITS) == 1
    assert any(line["event"] == "the server answers" for line in logged)


def test_a_worker_that_waits_for_its_server_stops_when_it_is_asked(
    loading: LoadingServer, begin: Callable[..., Any]
) -> None:
    worker, thread, ended = begin(loading.url)
    wait_for(lambda: "waits" in worker.health()[1])

    worker.ask_to_stop()

    thread.join(30)
    assert ended
    assert (ended[0].finished, ended[0].released) == (0, 0)
    assert not worker.health()[0]
    with loading.connect() as connection, pytest.raises(redis.exceptions.BusyLoadingError):
        connection.ping()


def test_a_worker_waits_for_a_server_that_runs_a_long_script(
    start_server: Callable[..., Server], begin: Callable[..., Any]
) -> None:
    own = start_server(lua_time_limit="1")
    with own.connect() as raw, own.connect() as other:

        def run_script() -> None:
            with pytest.raises(redis.ResponseError, match="killed"):
                raw.eval("while true do end", 0)

        script = threading.Thread(target=run_script)
        script.start()

        def is_busy() -> bool:
            try:
                return not other.ping()
            except redis.ResponseError as error:
                return str(error).startswith("BUSY")

        wait_for(is_busy)
        worker, _, _ = begin(own.url)
        wait_for(lambda: "waits" in worker.health()[1])

        other.script_kill()

        wait_for(lambda: worker.health() == (True, {"worker": worker.id, "in_hand": 0}))
        script.join()


def test_a_worker_waits_for_a_server_whose_disk_is_full(
    start_server: Callable[..., Server], begin: Callable[..., Any]
) -> None:
    own = start_server(**full_disk.OPTIONS)
    full_disk.fill(own)
    worker, _, ended = begin(own.url)
    wait_for(lambda: ended or "takes no writes at present" in worker.health()[1].get("waits", ""))

    full_disk.free(own)

    wait_for(lambda: ended or worker.health() == (True, {"worker": worker.id, "in_hand": 0}))
    assert not ended
    assert worker.client.enqueue(_task(1, 2)).result(timeout=30) == 3


def test_a_worker_starts_while_its_server_lacks_replicas_and_works_when_it_has_them(
    start_server: Callable[..., Server], begin: Callable[..., Any]
) -> None:
    own = start_server(min_replicas_to_write="1")
    with structlog.testing.capture_logs() as logged:
        worker, thread, ended = begin(own.url)
        wait_for(lambda: ended or any("takes no writes at present" in line.get("error", "") for line in logged))
        with own.connect() as raw:
            raw.config_set("min-replicas-to-write", 0)

        assert worker.client.enqueue(_task(1, 2)).result(timeout=30) == 3
    assert thread.is_alive()


def test_no_worker_waits_for_a_server_that_is_away_or_refuses_it(
    start_server: Callable[..., Server], begin: Callable[..., Any]
) -> None:
    own = start_server(requirepass="secret")
    for url, error in ((own.url, ServerRefused), (f"{own.url}.none", ServerUnavailable)):
        _, thread, ended = begin(url)
        thread.join(60)
        assert isinstance(ended[0], error)
