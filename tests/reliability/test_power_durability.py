"""`durability="fsync"` returns when a power cut would lose nothing, whatever the server says of its disk."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from jobrunner import AsyncClient, Client
from jobrunner.errors import OutcomeUnknown
from jobrunner.task import Task, new_id
from tests.reliability import sync_filter
from tests.reliability.power import PoweredServer
from tests.support.server import version_of
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(sync_filter.unsupported()), reason=sync_filter.unsupported()),
]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PoweredServer]:
    server = PoweredServer(2, appendfsync=getattr(request, "param", "everysec"))
    with server.connect() as raw:
        if version_of(raw) < (7, 2):
            server.remove()
            pytest.skip("WAITAOF came with Redis 7.2")
    yield server
    server.remove()


def task() -> Task:
    return Task(id=new_id("q"), queue="q", payload=b"{}")


def enqueue(url: str) -> str:
    with Client(url, "power", durability="fsync") as client:
        return client.enqueue(task()).id


def enqueue_async(url: str) -> str:
    async def main() -> str:
        async with AsyncClient(url, "power", durability="fsync") as client:
            return (await client.enqueue(task())).id

    return asyncio.run(main())


@pytest.mark.parametrize("server", ["everysec", "always"], indirect=True)
@pytest.mark.parametrize(("enqueue", "rewrites"), [(enqueue, False), (enqueue_async, True)])
def test_what_was_enqueued_survives_a_cut_at_once(
    server: PoweredServer, enqueue: Callable[[str], str], *, rewrites: bool
) -> None:
    with Client(server.url, "power") as client, server.connect() as raw:
        client.enqueue(task())
        if rewrites:
            raw.bgrewriteaof()
        mine = enqueue(server.url)
        server.cut(is_exact=True)
        server.start()

        assert mine in client.queue("q").ids("waiting")


def test_nothing_is_confirmed_while_a_sync_takes_long(server: PoweredServer) -> None:
    with Client(server.url, "power", durability="fsync", durability_timeout=0.5) as client:
        server.disk.stall()

        with pytest.raises(OutcomeUnknown, match="not on the server's disk"):
            client.enqueue(task())


@pytest.mark.reliability
def test_a_call_is_sent_again_to_a_server_that_lost_it_before_it_was_confirmed(server: PoweredServer) -> None:
    """The client waits for the next sync then: the server that starts again would confirm the mark alone."""
    with Client(server.url, "power", durability="fsync", retry_timeout=20) as client:
        client.queue("q").push(0)
        thread = threading.Thread(target=lambda: client.queue("q").push(1, id="mine"))
        thread.start()
        wait_for(lambda: client.queue("q").counts()["waiting"] == 2)
        server.cut(is_exact=True)
        server.start()
        thread.join()
        server.cut(is_exact=True)
        server.start()

        assert "mine" in client.queue("q").ids("waiting")
