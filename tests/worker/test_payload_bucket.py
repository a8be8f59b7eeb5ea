"""A payload store in a bucket of an S3-compatible server: what threads, coroutines and child processes write and read,
and what is said when an object, the bucket or the whole server is gone."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from jobrunner import Client, Worker, job
from jobrunner.broker.call import command
from jobrunner.client.client import broker_of, encryption_of, keys_of
from jobrunner.client.current import forget, use
from jobrunner.client.payload_sweep import store_of, sweeping
from jobrunner.errors import PayloadStoreUnavailable
from tests.support.object_store import Bucket
from tests.support.server import Server

pytestmark = pytest.mark.processes
LARGE = "large " * 20_000


@job(name="bucket.count", queue="bucket", result_ttl=60, max_attempts=1)
def count(text: str) -> int:
    """The length of a text."""
    return len(text)


@pytest.fixture
def place(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of the bucket that no other test has."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").clear_instance_cache()  # it has the address that it read first
    return f"s3://{bucket.name}/{uuid4().hex}"


@pytest.fixture
def client(server: Server, keys: Any, place: str) -> Iterator[Client]:
    forget()
    with use(Client(server.url, keys.prefix, payload_store=place)) as made:
        yield made
    forget()


def objects(place: str) -> list[str]:
    files = fsspec.filesystem("s3")
    files.invalidate_cache()
    return [str(path) for path in files.find(place)]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_threads_coroutines_and_children_write_and_read_it(client: Client, place: str, executor: str) -> None:
    async def enqueue() -> str:
        return (await count.aenqueue(text=LARGE)).id

    tasks = [count.enqueue(text=LARGE), *count.enqueue_many([count.bind(text=f"{LARGE}{n}") for n in range(20)])]
    ids = [*(task.id for task in tasks), asyncio.run(enqueue())]
    assert len(objects(place)) == 22

    modules = [__name__] if executor == "processes" else []
    Worker(client=client, queues=["bucket"], executor=executor, concurrency=2, modules=modules).run(burst=True)

    found = [client.task(one).result(timeout=0) for one in ids]
    assert (found[0], found[-1]) == (len(LARGE), len(LARGE))
    assert sum(found) == 22 * len(LARGE) + 10 + 20

    broker_of(client).run(command("UNLINK", *(keys_of(client).queue("bucket").task(one) for one in ids), read=int))
    *_, swept = sweeping(broker_of(client), keys_of(client), store_of(encryption_of(client)), grace_s=-1)
    assert (swept.unused, swept.left, objects(place)) == (22, 0, [])


@pytest.mark.parametrize("damage", ["missing", "empty", "shorter", "longer", "other"])
def test_an_object_that_is_not_what_was_written(client: Client, place: str, damage: str) -> None:
    task, neighbour = count.enqueue(text=LARGE), count.enqueue(text=LARGE)
    (path,) = [one for one in objects(place) if task.id in one]
    files = fsspec.filesystem("s3")
    raw = files.cat_file(path)
    if damage == "missing":
        files.rm_file(path)
    else:
        files.pipe_file(path, {"empty": b"", "shorter": raw[:-1], "longer": raw + b" ", "other": raw[::-1]}[damage])

    Worker(client=client, queues=["bucket"], concurrency=1).run(burst=True)

    kind = "PayloadObjectMissing" if damage == "missing" else "PayloadObjectChanged"
    assert client.task(task.id).record().error.startswith(f"{kind}: the payload of task {task.id}, object {place}/")
    assert neighbour.result(timeout=0) == len(LARGE)


def test_a_bucket_that_is_not_there_and_a_server_that_is_away(
    server: Server, keys: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    with use(Client(server.url, keys.prefix, payload_store="s3://misspelt/here")) as client:
        with pytest.raises(PayloadStoreUnavailable, match=r"s3://misspelt/here cannot be written to: .*not enqueued"):
            count.enqueue(text=LARGE)
        assert client.queue("bucket").counts()["waiting"] == 0
    forget()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    fsspec.filesystem("s3").clear_instance_cache()
    with use(Client(server.url, keys.prefix, payload_store=place)) as client:
        with pytest.raises(PayloadStoreUnavailable, match=rf"{place} cannot be written to: .*127\.0\.0\.1:1.*not enq"):
            count.enqueue(text=LARGE)
        assert client.queue("bucket").counts()["waiting"] == 0
    forget()
