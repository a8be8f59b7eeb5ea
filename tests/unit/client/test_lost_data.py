"""Servers that lost data or refuse writes: the edges of the failures that docs/reliability.md lists."""

from collections.abc import Callable

import pytest

from jobrunner import Client, job
from jobrunner.client.current import pinned
from jobrunner.errors import ServerRefused
from tests.support.server import Server


@job(name="lost_data.noop", queue="jobs")
def noop() -> None:
    """Nothing."""


@pytest.fixture
def own(start_server: Callable[..., Server]) -> Server:
    """A server without an append-only file, that the test may kill: it begins again with its last RDB file."""
    return start_server(dbfilename="dump.rdb")


def test_what_was_popped_or_finished_since_the_older_file_is_there_again(own: Server) -> None:
    with Client(own.url, retry_timeout=20) as client, own.connect() as raw:
        queue = client.queue("q")
        queue.push_many([1, 2])
        raw.save()
        queue.pop()
        queue.reserve()[0].commit()
        later = queue.push(3)
        own.kill()
        own.start()

        assert [one.payload for one in queue.pop(9)] == [1, 2]
        assert later not in queue.ids("waiting")


def test_a_queue_that_the_older_file_does_not_list_is_listed_with_the_next_enqueue(own: Server) -> None:
    with Client(own.url, retry_timeout=20) as client, own.connect() as raw, pinned(client):
        raw.save()
        client.queue("items").push(1)
        noop.enqueue()
        own.kill()
        own.start()
        assert client.queues() == []

        client.queue("items").push(2)
        noop.enqueue()
        assert client.queues() == ["items", "jobs"]


def test_a_primary_without_its_replica_takes_nothing_where_the_server_is_told_so(
    start_server: Callable[..., Server],
) -> None:
    alone = start_server(min_replicas_to_write="1")
    with Client(alone.url, retry_timeout=0.2) as client, alone.connect() as raw:
        for _ in range(2):
            with pytest.raises(ServerRefused, match=r"takes no writes at present: .*; attach replicas"):
                client.queue("q").push(1)
        raw.config_set("min-replicas-to-write", 0)
        assert client.queue("q").counts()["waiting"] == 0
        assert client.queue("q").push(2)
