"""Payloads are data, names are of a small alphabet, sizes are limited, and a URL is in no list of processes."""

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from jobrunner import Client, Job, Worker, job
from jobrunner.client.client import keys_of
from jobrunner.errors import InvalidName, PayloadTooLarge, QueueFull
from tests.security.conftest import Connect

ran: list[Any] = []


@job(name="payloads.sum", queue="sums", max_attempts=1)
class Sum(Job):
    """Adds."""

    numbers: list[int]

    def run(self) -> int:
        ran.append(self.numbers)
        return sum(self.numbers)


@job(name="payloads.fail", queue="sums", max_attempts=1)
class Fails(Job):
    """Fails with a long text."""

    def run(self) -> None:
        raise ValueError("x" * 5_000_000)


class _Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def work(client: Client) -> None:
    Worker(client=client, queues=["sums"]).run(burst=True)


def test_bytes_that_are_a_pickle_are_no_parameters(connect: Connect, raw: redis.Redis, tmp_path: Path) -> None:
    client = connect()
    mark = tmp_path / "made"
    bad, good = Sum(numbers=[1]).enqueue(), Sum(numbers=[2]).enqueue()
    forged = {"payload": pickle.dumps(_Bomb(mark)), "encoding": b"pickle"}
    raw.hset(keys_of(client).queue("sums").task(bad.id), mapping=forged)
    work(client)

    assert not mark.exists()
    assert bad.state == "dead"
    assert good.result(timeout=0) == 2


@pytest.mark.parametrize("payload", [b'{"numbers":"12"}', b"[1,2]", b"{}", b"null", b'{"numbers":[1e400]}', b"\xff"])
def test_parameters_that_do_not_fit_their_types_never_reach_the_job(
    connect: Connect, raw: redis.Redis, payload: bytes
) -> None:
    client = connect()
    bad, good = Sum(numbers=[1]).enqueue(), Sum(numbers=[2]).enqueue()
    raw.hset(keys_of(client).queue("sums").task(bad.id), "payload", payload)

    work(client)

    assert ran == [[2]]
    assert bad.error.startswith("ParameterError: ")
    assert good.result(timeout=0) == 2


@pytest.mark.parametrize("name", ["antigravity", "os.system", "this:zen", "builtins.exec"])
def test_a_type_that_names_code_imports_and_runs_nothing(connect: Connect, raw: redis.Redis, name: str) -> None:
    client = connect()
    bad, good = Sum(numbers=[1]).enqueue(), Sum(numbers=[2]).enqueue()
    raw.hset(keys_of(client).queue("sums").task(bad.id), "type", name)

    work(client)

    assert ran == [[2]]
    assert "antigravity" not in sys.modules
    assert good.result(timeout=0) == 2


def test_limits_of_size_names_and_errors_hold(connect: Connect) -> None:
    client = connect()
    queue = client.queue("mail")
    with pytest.raises(PayloadTooLarge):
        queue.push(b"x" * (1024 * 1024 + 1))
    queue.push(b"x" * (1024 * 1024))
    for name in ("a{b}", "a\nb", "ä", "a b", "a/b/c", "", "x" * 129):
        with pytest.raises(InvalidName):
            client.queue(name)
    task = Fails().enqueue()
    work(client)
    assert len(task.error) < 100_000


def test_a_queue_with_a_size_takes_no_more(connect: Connect) -> None:
    queue = connect().queue("mail")
    queue.configure(max_size=3)
    queue.push_many([1, 2])
    with pytest.raises(QueueFull):
        queue.push_many([3, 4])
    queue.push(3)
    assert queue.counts()["waiting"] == 3


def test_no_child_has_the_url_in_its_arguments(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect()
    worker = Worker(client=client, queues=["sums"], executor="processes", concurrency=1, modules=[__name__])
    worker.start()
    try:
        told = list(_arguments_of_children())
    finally:
        worker.stop(grace=5)
    assert told
    assert not [line for line in told if client.settings.url in line]


def _arguments_of_children() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended
            if f"PPid:\t{os.getpid()}\n" in (folder / "status").read_text():
                yield (folder / "cmdline").read_text().replace("\0", " ")
