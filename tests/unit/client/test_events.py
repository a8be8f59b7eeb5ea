"""The actor that an event names; and many who follow events."""

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.broker.calls.events import note, who
from jobrunner.broker.exchange_queue import CONNECTIONS
from jobrunner.client import events
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import ClientClosed
from tests.support.server import topology_name


def _who(_: int) -> tuple[str, int]:
    return who(), os.getpid()


def test_a_forked_child_is_not_taken_for_its_parent() -> None:
    mine = who()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        ((theirs, pid),) = pool.map(_who, [0])
    assert theirs != mine
    assert theirs.endswith(f".{pid}")


@pytest.mark.skipif(topology_name() == "cluster", reason="asks one server who waits in it")
def test_those_who_follow_events_keep_no_other_call_waiting(
    client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., Any]
) -> None:
    monkeypatch.setattr(events, "_WAIT_MS", 60_000)
    keys = keys_of(client)

    def waiting() -> int:
        return int(raw.info("clients")["blocked_clients"])

    async def follow(followed: AsyncClient) -> str:
        async for event in followed.events(follow=True):
            return event.kind
        return "none"

    async def call_meanwhile() -> list[str]:
        async with AsyncClient(client.settings.url, keys.prefix) as followed, asyncio.timeout(50):
            followers = [asyncio.create_task(follow(followed)) for _ in range(CONNECTIONS + 1)]
            cut = asyncio.create_task(follow(followed))
            await asyncio.to_thread(wait_until, lambda: waiting() == CONNECTIONS + 2)
            await followed.queue("q").push("x")
            cut.cancel()
            await asyncio.to_thread(wait_until, lambda: waiting() == CONNECTIONS + 1)
            broker_of(client).run(note(keys, "worker_started"))
            return await asyncio.gather(*followers)

    assert asyncio.run(call_meanwhile()) == ["worker_started"] * (CONNECTIONS + 1)
    wait_until(lambda: waiting() == 0)


def test_who_follows_events_of_a_client_that_is_closed_hears_of_it(client: Client) -> None:
    broker_of(client).run(note(keys_of(client), "worker_started"))

    async def close_meanwhile() -> None:
        followed = AsyncClient(client.settings.url, client.settings.prefix)
        found = followed.events(follow=True)
        await anext(found)
        broker_of(client).run(note(keys_of(client), "worker_stopped"))
        await anext(found)
        await followed.close()
        await anext(found)

    with pytest.raises(ClientClosed):
        asyncio.run(close_meanwhile())
