"""A client refuses a value that is no task with a clear error, and sends nothing."""

import asyncio
from typing import Any

import pytest

from jobrunner.client.async_client import AsyncClient
from jobrunner.client.async_queue import AsyncQueue
from jobrunner.client.client import Client
from jobrunner.client.queue import Queue
from jobrunner.errors import UsageError


@pytest.mark.parametrize("given", ["add", ("add", 1), {"job": "add"}, None, print])
def test_a_client_says_what_it_sends(client: Client, given: Any, raw: Any) -> None:
    async def enqueue() -> None:
        async with AsyncClient.like(client.settings) as twin:
            await twin.enqueue(given)

    with pytest.raises(UsageError, match=r"enqueue\(.*\): a client sends Tasks; a job sends itself: add\.enqueue"):
        client.enqueue(given)
    with pytest.raises(UsageError, match="a client sends Tasks"):
        client.enqueue_many([given])
    with pytest.raises(UsageError, match="a client sends Tasks"):
        asyncio.run(enqueue())
    assert raw.dbsize() == 0


def test_the_name_of_a_job_is_taken_for_its_function(client: Client) -> None:
    with pytest.raises(UsageError, match=r"greet\.enqueue\(…\)"):
        client.enqueue("greet")  # type: ignore[arg-type]


@pytest.mark.parametrize(("made", "client"), [(Queue, "Client"), (AsyncQueue, "AsyncClient")])
def test_a_queue_that_is_made_of_its_name_is_answered_with_the_client(made: Any, client: str) -> None:
    """The first line of a program with RQ. It ended in a TypeError about a broker and a ref."""
    told = rf"\('low'\): .* {client}\(\)\.queue\('low'\); a job names its own, @job\(queue='low'\)"
    for options in ({}, {"connection": None}):
        with pytest.raises(UsageError, match=told):
            made("low", **options)
    with pytest.raises(UsageError, match=rf"\(\): a queue comes from a client, {client}\(\)\.queue\('mail'\)"):
        made()
