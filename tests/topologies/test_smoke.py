"""The least that must work everywhere, in every run: a URL of each topology, from an enqueue to a report."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobrunner import AsyncClient, Client
from jobrunner.errors import ServerUnavailable
from jobrunner.inspector.doctor import Check
from jobrunner.inspector.doctor.environment import check_server
from jobrunner.inspector.snapshot import overview
from tests.support.tls import Authority, TlsProxy
from tests.support.waiting import wait_for
from tests.topologies.servers import MASTER, Behind, Spread

QUEUES = ["a", "b", "c", "orders/raw"]


@contextmanager
def started(make: Callable[[], Behind | Spread]) -> Iterator[str]:
    topology = make()
    try:
        yield topology.url
    finally:
        topology.remove()


@contextmanager
def behind_tls(certificate: Path) -> Iterator[str]:
    """A primary and a sentinel, each behind TLS. The sentinel itself reaches the primary there, without TLS."""
    made = Behind(replicas=0, sentinels=1)
    (sentinel,) = made.sentinels
    ends = [TlsProxy(("127.0.0.1", one.port), certificate, takes_plain=True) for one in (made.servers[0], sentinel)]
    try:
        sentinel.ask("SENTINEL", "REMOVE", MASTER)
        sentinel.ask("SENTINEL", "MONITOR", MASTER, "127.0.0.1", ends[0].port, 1)
        yield f"rediss+sentinel://127.0.0.1:{ends[1].port}/{MASTER}"
    finally:
        for end in ends:
            end.close()
        made.remove()


@contextmanager
def spread_over_tls(certificate: Path) -> Iterator[str]:
    """A cluster whose nodes tell clients a port with TLS."""
    made = Spread()
    ends = [TlsProxy(("127.0.0.1", one.port), certificate) for one in made.nodes]
    try:
        for node, end in zip(made.nodes, ends, strict=True):
            node.ask("CONFIG", "SET", "cluster-announce-port", end.port)
        told = {end.port for end in ends}
        wait_for(lambda: all({row[2][1] for row in one.ask("CLUSTER", "SLOTS")} == told for one in made.nodes))
        yield f"rediss+cluster://127.0.0.1:{ends[0].port},127.0.0.1:{ends[1].port}"
    finally:
        for end in ends:
            end.close()
        made.remove()


def test_a_primary_that_no_sentinel_knows_is_told_with_those_that_they_know() -> None:
    told = "the sentinels know no primary 'other'; they know m; "
    with started(lambda: Behind(replicas=0, sentinels=1)) as url, pytest.raises(ServerUnavailable, match=told):
        Client(url.replace(f"/{MASTER}", "/other"), retry_timeout=0.1).queues()


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


@pytest.mark.parametrize("over_tls", [behind_tls, spread_over_tls])
def test_a_queue_works_on_each_topology_over_tls(tmp_path: Path, over_tls: Any) -> None:
    authority = Authority(tmp_path)
    with over_tls(authority.issue()) as place, Client(f"{place}?ssl_ca_certs={authority.file}", "t") as client:
        for name in QUEUES:
            client.queue(name).push(name)
        for name in QUEUES:
            (lease,) = client.queue(name).reserve(1)
            lease.commit()
            assert client.queue(name).totals()["succeeded"] == 1
        assert asyncio.run(_pushed(f"{place}?ssl_ca_certs={authority.file}")) == QUEUES


async def _pushed(url: str) -> list[str]:
    async with AsyncClient(url, "u") as client:
        for name in QUEUES:
            await client.queue(name).push(name)
        return await client.queues()
