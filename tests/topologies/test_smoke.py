"""The least that must work everywhere, in every run: a URL of each topology, from an enqueue to a report."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from jobrunner import AsyncClient, Client
from jobrunner.inspector.doctor import Check
from jobrunner.inspector.doctor.environment import check_server
from jobrunner.inspector.snapshot import overview
from tests.topologies.servers import Behind, Spread

QUEUES = ["a", "b", "c", "orders/raw"]


@contextmanager
def started(make: Callable[[], Behind | Spread]) -> Iterator[str]:
    topology = make()
    try:
        yield topology.url
    finally:
        topology.remove()


@pytest.mark.parametrize(
    ("make", "nodes"), [(lambda: Behind(replicas=0, sentinels=1), 1), (Spread, 3)], ids=["sentinel", "cluster"]
)
def test_a_queue_works_and_is_looked_at_on_each_topology(make: Callable[[], Behind | Spread], nodes: int) -> None:
    with started(make) as url, Client(url, "t") as client:
        for name in QUEUES:
            client.queue(name).push(name)
        assert client.queues() == QUEUES
        for name in QUEUES:
            (lease,) = client.queue(name).reserve(1)
            lease.commit()
        seen = overview(client)
        assert seen.server is not None
        assert (seen.server.nodes, seen.url) == (nodes, url)
        assert {queue.name: queue.totals["succeeded"] for queue in seen.queues} == dict.fromkeys(QUEUES, 1)
        told: list[Check] = list(check_server(client))
        assert {one.what for one in told} >= {"server", "version", "eviction", "memory", "durability", "clock"}
        assert asyncio.run(_pushed(url)) == QUEUES


async def _pushed(url: str) -> list[str]:
    async with AsyncClient(url, "u") as client:
        for name in QUEUES:
            await client.queue(name).push(name)
        return await client.queues()
