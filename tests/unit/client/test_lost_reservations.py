"""The reply to a reserve is lost: what the server had handed out goes back to its place, with no attempt spent."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client
from jobrunner.errors import OutcomeUnknown
from tests.reliability.proxy import Proxy
from tests.support.server import topology_name

pytestmark = pytest.mark.skipif(topology_name() == "cluster", reason="a proxy leads to one server")
Reserve = Callable[..., Any]


@pytest.fixture(params=["threads", "asyncio"])
def reserve(request: pytest.FixtureRequest, proxy: Proxy, client: Client, clock: Any) -> Reserve:
    """Reserves from "mail" by a way that loses the next reply to a reserve."""
    prefix, in_threads = client.settings.prefix, request.param == "threads"

    def in_thread(n: int, **options: Any) -> Any:
        with Client(proxy.url, prefix, now_ms=clock) as made:
            queue = made.queue("mail")
            queue.counts()
            proxy.lose_replies("reserve", times=proxy.lost["reserve"] + 1)
            return queue.reserve(n, **options)

    async def in_coroutine(n: int, **options: Any) -> Any:
        async with AsyncClient(proxy.url, prefix, now_ms=clock) as made:
            queue = made.queue("mail")
            await queue.counts()
            proxy.lose_replies("reserve", times=proxy.lost["reserve"] + 1)
            return await queue.reserve(n, **options)

    def take(n: int, **options: Any) -> Any:
        return in_thread(n, **options) if in_threads else asyncio.run(in_coroutine(n, **options))

    return take


@pytest.mark.parametrize("partitions", [None, 3])
def test_items_go_back_to_their_places(reserve: Reserve, client: Client, partitions: int | None) -> None:
    queue = client.queue("mail")
    queue.configure(partitions=partitions)
    queue.push_many(range(4))
    with pytest.raises(OutcomeUnknown, match="during reserve"):
        reserve(2)

    assert (queue.counts()["waiting"], queue.counts()["pending"]) == (4, 0)
    again = [lease for _ in range(4) for lease in queue.reserve(4)]
    assert sorted((lease.payload, lease.attempts) for lease in again) == [(number, 1) for number in range(4)]


def test_nothing_was_handed_out_and_nothing_goes_back(reserve: Reserve, client: Client) -> None:
    queue = client.queue("mail")
    queue.push_many(range(2))
    held = queue.reserve(2)
    with pytest.raises(OutcomeUnknown):
        reserve(2)

    assert queue.counts()["pending"] == 2
    assert queue.commit_many(held) == [True, True]
