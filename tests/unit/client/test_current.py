"""The client of the process, and the one of an event loop."""

import asyncio
import subprocess
import sys

import pytest

from jobrunner.client.client import Client, broker_of
from jobrunner.client.current import configure, current_client, forget, pinned, use
from jobrunner.client.loop_clients import async_client, current_async_client
from jobrunner.errors import ClientClosed


def test_a_pinned_client_stays_whatever_is_configured(client: Client) -> None:
    before = use(Client("redis://127.0.0.1:1"))
    with pinned(client):
        other = configure("redis://127.0.0.1:2")
        assert other is not client
        assert current_client() is client
        with pinned(other):
            assert current_client() is other
        assert current_client() is client
    assert current_client() is before
    forget()


def test_the_client_of_a_loop_is_closed_with_its_block_and_made_anew(client: Client) -> None:
    async def lifespans() -> None:
        async with async_client() as first:
            assert first is current_async_client()
            assert await first.queues() == []
        with pytest.raises(ClientClosed):
            await first.queues()
        async with async_client() as second:
            assert await second.queues() == []

    with pinned(client):
        asyncio.run(lifespans())


def test_the_client_of_a_loop_has_the_clock_of_the_current_one(client: Client) -> None:
    async def clocks() -> bool:
        async with async_client() as mine:
            return broker_of(mine).now_ms is broker_of(client).now_ms

    with pinned(client):
        assert asyncio.run(clocks())


ENDS = """
import atexit, sys
from jobrunner import configure, job

@job(queue="ends")
def note(what: str) -> None: ...

atexit.register(lambda: print(note.enqueue("the end").is_new))
configure(sys.argv[1], sys.argv[2], buffer_tasks=int(sys.argv[3]))
note.enqueue("the beginning")
"""


@pytest.mark.parametrize("buffer_tasks", ["0", "9"])
def test_what_a_program_enqueues_as_it_ends_is_sent(client: Client, buffer_tasks: str) -> None:
    """Its handler was registered before the client was made, and would be called after one of the client."""
    settings = client.settings
    ran = subprocess.run(
        [sys.executable, "-c", ENDS, settings.url, settings.prefix, buffer_tasks],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")
    assert client.stats()["ends"].waiting == 2
