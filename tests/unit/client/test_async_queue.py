"""Behaviour of asyncio alone: many coroutines at once, and cancellation at any moment."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from jobrunner.broker.call import command
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.async_queue import AsyncQueue
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.lease import AsyncLease
from jobrunner.client.operations import lease as lease_operations
from jobrunner.errors import ClientClosed, ServerUnavailable

Story = Callable[[AsyncQueue], Any]


@pytest.fixture
def play(client: Client) -> Callable[[Story], Any]:
    """play(story): runs a coroutine function on the queue mail of an asyncio client, in a loop of its own."""

    async def run(story: Story) -> Any:
        async with asyncio.timeout(60), AsyncClient(client.settings.url, client.settings.prefix) as twin:
            return await story(twin.queue("mail"))

    return lambda story: asyncio.run(run(story))


async def until(fact: Callable[[], Any]) -> None:
    """Returns when the fact is true; the time limit is that of `play`."""
    while not fact():
        await asyncio.sleep(0.002)


@asynccontextmanager
async def held_answers(queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, Any]]:
    """(reached, gate): answers of the server are kept back, once the first has come, until the gate is opened."""
    reached, gate = asyncio.Event(), asyncio.Event()
    run_each = broker_of(queue).run_each

    async def keep_back(calls: Any) -> Any:
        answers = await run_each(calls)
        reached.set()
        await gate.wait()
        return answers

    with monkeypatch.context() as patched:
        patched.setattr(broker_of(queue), "run_each", keep_back)
        yield reached, gate


def test_many_coroutines_share_a_queue_and_none_gets_what_another_has(play: Any, audit: Any) -> None:
    async def consume(queue: AsyncQueue, seen: list[int]) -> None:
        done: list[AsyncLease] = []
        while done or len(seen) < 400:
            done = await queue.reserve(3, wait=0.5, committing=done)
            seen += [lease.payload for lease in done]

    async def story(queue: AsyncQueue) -> list[int]:
        seen: list[int] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(consume(queue, seen))
            for start in range(0, 400, 20):
                group.create_task(queue.push_many(range(start, start + 20)))
        return seen

    assert sorted(play(story)) == list(range(400))
    assert audit("mail") | {"done": 0} == {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


def test_a_cancelled_wait_ends_and_the_next_item_goes_to_another(play: Any, raw: Any) -> None:
    async def story(queue: AsyncQueue) -> Any:
        waiting = asyncio.create_task(queue.reserve(wait=30))
        await until(lambda: raw.info("clients")["blocked_clients"] == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: raw.info("clients")["blocked_clients"] == 0)
        await queue.push("a")
        assert (await queue.counts())["pending"] == 0
        return [lease.payload for lease in await queue.reserve(wait=30)]

    assert play(story) == ["a"]


def test_a_lease_whose_answer_was_on_its_way_goes_back_before_the_cancellation_goes_on(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(queue: AsyncQueue) -> None:
        ids = await queue.push_many(list("ab"))
        async with held_answers(queue, monkeypatch) as (reached, gate):
            taking = asyncio.create_task(queue.reserve(2))
            await reached.wait()
            assert (await broker_of(queue).run(pending(queue))) == 2
            taking.cancel()
            await asyncio.sleep(0)
            assert not taking.done(), "it waits for the answer, to give back what it brings"
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await taking
        assert await queue.ids("waiting") == ids
        assert [lease.attempts for lease in await queue.reserve(2)] == [1, 1]

    play(story)


def test_a_second_cancellation_is_not_kept_waiting_and_the_lease_goes_back_all_the_same(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.push("a")
        async with held_answers(queue, monkeypatch) as (reached, gate):
            taking = asyncio.create_task(queue.reserve())
            await reached.wait()
            taking.cancel()
            await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            gate.set()
        async with asyncio.timeout(10):  # less than a lease lasts
            while (await queue.counts())["pending"]:
                await asyncio.sleep(0.002)
        assert (await queue.counts())["waiting"] == 1

    play(story)


def test_wherever_a_cancellation_comes_the_item_is_had_or_back(play: Any) -> None:
    async def story(queue: AsyncQueue) -> set[str]:
        await queue.push("a")
        outcomes = set[str]()
        for turns in (*range(60), 1000):  # the last are enough on a busy machine, too
            taking = asyncio.create_task(queue.reserve(wait=0.01))
            for _ in range(turns):
                await asyncio.sleep(0 if turns % 2 else 0.0001)  # the instant of the cancellation varies
            taking.cancel()
            try:
                (lease,) = await taking
            except asyncio.CancelledError:
                outcomes.add("cancelled")
            else:
                outcomes.add("had")
                await lease.release()
            found = await queue.counts()
            assert (found["waiting"], found["pending"]) == (1, 0), f"after {turns} turns"
        assert (await queue.reserve())[0].attempts == 1
        return outcomes

    assert play(story) == {"cancelled", "had"}


def test_a_time_limit_around_a_reserve_loses_nothing(play: Any) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.push_many(range(30))
        had = 0
        for n in range(30):
            with suppress(TimeoutError):
                had += len(await asyncio.wait_for(queue.reserve(), timeout=n * 0.00005))
            assert (await queue.counts())["pending"] == had

    play(story)


def test_a_cancellation_stays_one_when_the_server_is_away(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(queue: AsyncQueue) -> None:
        started = asyncio.Event()

        async def fail(calls: Any) -> Any:
            started.set()
            await asyncio.sleep(0.01)  # a server that answers late, so that the cancellation comes first
            raise ServerUnavailable("no server")

        with monkeypatch.context() as patched:
            patched.setattr(broker_of(queue), "run_each", fail)
            taking = asyncio.create_task(queue.reserve())
            await started.wait()
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking

    play(story)


def test_waiting_ends_when_the_client_is_closed(client: Client, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_operations, "_RECHECK_S", 0.1)

    async def story() -> None:
        twin = AsyncClient(client.settings.url, client.settings.prefix)
        waiting = asyncio.create_task(twin.queue("mail").reserve(wait=30))
        await until(lambda: raw.info("clients")["blocked_clients"] == 1)
        await twin.close()
        with pytest.raises(ClientClosed):
            await waiting

    asyncio.run(story())


def pending(queue: AsyncQueue) -> Any:
    return command("ZCARD", keys_of(queue).pending, read=int)
