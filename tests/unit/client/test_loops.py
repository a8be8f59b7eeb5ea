"""The asyncio client over the lives of many event loops, and cancellations between any two steps of a call."""

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobrunner.broker.redis_py import _cancellable
from jobrunner.client import loop_clients
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client, broker_of
from jobrunner.client.current import configure, forget, pinned
from jobrunner.client.loop_clients import async_client, current_async_client
from jobrunner.errors import ClientClosed, UsageError
from jobrunner.task import Task, TaskState
from tests.support.server import Server


def open_files() -> int:
    gc.collect()
    return len(list(Path("/dev/fd").iterdir()))


async def push(number: int = 0) -> str:
    return await current_async_client().queue("mail").push(number)


def test_outside_of_asyncio_the_error_names_the_remedy(client: Client) -> None:
    """As under trio, whose coroutines are driven by no event loop of asyncio."""
    with pinned(client):
        for call in (push(), AsyncClient(client.settings.url, client.settings.prefix).queues()):
            with pytest.raises(UsageError, match=r"need a running event loop of asyncio, .* in a thread"):
                call.send(None)


async def closed(client: AsyncClient) -> None:
    """Returns when the loop has closed the client."""
    async with asyncio.timeout(10):
        while not broker_of(client)._closed:
            await asyncio.sleep(0)


def test_a_program_that_makes_a_loop_for_each_call_keeps_no_connections(client: Client) -> None:
    with pinned(client):
        asyncio.run(push())
        before = open_files()
        for number in range(5):
            asyncio.run(push(number))
        assert open_files() == before
    assert not loop_clients._of_loops


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_is_closed_with_nothing_ended_before_is_forgotten_by_the_next(client: Client) -> None:
    def run() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(push())
        loop.close()

    with pinned(client):
        run()
        before = open_files()
        for _ in range(3):
            run()
        assert open_files() == before
        asyncio.run(push())
    assert not loop_clients._of_loops


def test_clients_of_other_settings_are_closed_when_they_are_many(server: Server, keys: Any) -> None:
    async def configured_again() -> tuple[str, int]:
        first = current_async_client()
        ids = [await push()]
        for number in range(12):
            configure(server.url, f"{keys.prefix}-{number}")
            ids.append(await push())
        await closed(first)
        return len(set(ids)), len(loop_clients._of_loops[asyncio.get_running_loop()])

    configure(server.url, keys.prefix)
    assert asyncio.run(configured_again()) == (13, loop_clients._MOST_OF_A_LOOP)
    forget()


def test_the_client_of_a_block_outlasts_all_that_come_after_it(server: Server, keys: Any) -> None:
    async def configured_again() -> None:
        async with async_client() as mine:
            others = []
            for number in range(12):
                configure(server.url, f"{keys.prefix}-{number}")
                await push()
                others.append(current_async_client())
            await closed(others[0])
            assert await mine.queues() == []
        with pytest.raises(ClientClosed):
            await mine.queues()

    configure(server.url, keys.prefix)
    asyncio.run(configured_again())
    forget()


def test_the_client_of_a_loop_is_closed_with_the_last_of_several_blocks(client: Client) -> None:
    """As two requests of an application that open one each."""

    async def requests() -> None:
        async with async_client() as outer:
            async with async_client() as inner:
                assert inner is outer
                await push()
            assert len(await outer.queue("mail").reserve()) == 1
            await push()
        with pytest.raises(ClientClosed):
            await outer.queues()
        async with async_client() as later:
            assert await later.queues() == ["mail"]
        with pytest.raises(ClientClosed):
            await later.queues()

    with pinned(client):
        asyncio.run(requests())
    assert not loop_clients._blocks


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_client_serves_a_loop_after_the_other_whatever_was_under_way(client: Client) -> None:
    one = AsyncClient(client.settings.url, client.settings.prefix)

    async def push_here() -> str:
        async with asyncio.timeout(10):
            return await one.queue("mail").push("a")

    async def leave_under_way() -> "list[asyncio.Task[str]]":
        pushes = [asyncio.create_task(push_here()) for _ in range(40)]  # more than it has connections for
        await asyncio.sleep(0)
        return pushes

    ended = asyncio.new_event_loop()
    pushes = ended.run_until_complete(leave_under_way())
    ended.close()
    assert asyncio.run(push_here()) != asyncio.run(push_here())
    asyncio.run(one.close())
    for abandoned in pushes:
        abandoned._log_destroy_pending = False  # type: ignore[attr-defined]
    del abandoned, pushes
    gc.collect()  # coroutines of a loop that is closed end with an error, here and in no later test


def test_connections_are_closed_at_the_same_time(client: Client) -> None:
    """A server that does not answer holds up each for as long as a connect; a loop now waits for it as it ends."""

    class Meets:
        async def disconnect(self) -> None:
            await both.wait()

    async def close() -> None:
        nonlocal both
        both = asyncio.Barrier(2)
        one = AsyncClient(client.settings.url, client.settings.prefix)
        await one.queue("mail").counts()
        for _ in range(2):
            broker_of(one)._idle.rest(Meets())
        async with asyncio.timeout(10):
            await one.close()

    both: asyncio.Barrier
    asyncio.run(close())


def test_one_client_in_two_loops_that_both_run_is_refused(client: Client) -> None:
    async def push_to(one: AsyncClient) -> None:
        await one.queue("mail").push("a")

    async def both() -> None:
        async with AsyncClient(client.settings.url, client.settings.prefix) as one:
            await push_to(one)
            with pytest.raises(UsageError, match="make a client in each loop"):
                await asyncio.to_thread(asyncio.run, push_to(one))
            await push_to(one)

    asyncio.run(both())


def test_an_enqueue_needs_none_of_the_threads_that_the_application_uses(client: Client) -> None:
    """With every thread of the loop's executor taken it waited, and hung when one of these waited for the enqueue."""

    async def story() -> str:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))

        def view() -> str:
            return asyncio.run_coroutine_threadsafe(push(), loop).result(20)

        return await asyncio.to_thread(view)

    with pinned(client):
        asyncio.run(story())
    assert client.queue("mail").counts()["waiting"] == 1


def cancelled_at_each_step(call: Callable[[int], Coroutine[Any, Any, Any]]) -> list[bool]:
    """Calls, and cancels before its first step, before its second, until it ends first; each time says whether the
    cancellation came through.

    A step is a turn of the event loop in which something happens. Turns that only wait for the server would be some
    on an idle machine and thousands on a busy one, so a turn in which nothing is ready waits for its answer.
    """
    selector = selectors.DefaultSelector()
    loop: Any = asyncio.SelectorEventLoop(selector)
    select = selector.select
    counted: asyncio.Task[Any] | None = None

    def select_something(timeout: float | None = None) -> Any:
        waits = counted is not None and not counted.done() and len(loop._ready) == 1  # the step of `play`
        return select(1.0 if waits else timeout)

    async def play() -> list[bool]:
        nonlocal counted
        came_through: list[bool] = []
        for steps in range(200):
            asked = counted = asyncio.create_task(call(steps))
            for _ in range(steps):
                await asyncio.sleep(0)
            counted = None
            if asked.done():
                await asked
                return came_through
            asked.cancel()
            await asyncio.wait([asked])
            came_through.append(asked.cancelled())
        raise AssertionError("it never ended")

    with pytest.MonkeyPatch.context() as patched, asyncio.Runner(loop_factory=lambda: loop) as runner:
        patched.setattr(selector, "select", select_something)
        return runner.run(play())


def test_a_cancellation_between_any_two_steps_of_an_enqueue_comes_through(client: Client) -> None:
    """Python 3.11's wait_for, in which redis-py sends, forgot it: `asyncio.timeout` around a result had no effect."""

    async def enqueue(steps: int) -> None:
        handle = await current_async_client().enqueue(Task(id=f"own-{steps}", queue="mail", payload=b"1"))
        assert (await handle.record()).state is TaskState.WAITING

    with pinned(client):
        found = cancelled_at_each_step(enqueue)
    assert len(found) > 3
    assert all(found)
    waiting = client.queue("mail").ids("waiting")  # each was added once, or not at all
    assert len(set(waiting)) == len(waiting) <= len(found) + 1


def test_a_cancellation_while_a_connection_is_opened_comes_through(client: Client) -> None:
    async def enqueue(steps: int) -> None:
        async with AsyncClient(client.settings.url, client.settings.prefix) as one:
            await one.queue("mail").push(steps, id=f"own-{steps}")

    found = cancelled_at_each_step(enqueue)
    assert len(found) > 5
    assert all(found)


def test_a_cancellation_that_was_swallowed_is_raised_and_no_earlier_one() -> None:
    async def swallow() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "swallowed"
        return "slept"

    async def after_an_earlier_one() -> str:
        await swallow()
        return await _cancellable(asyncio.sleep(0, "fine"))

    async def play(call: Coroutine[Any, Any, str]) -> str:
        asked = asyncio.create_task(call)
        await asyncio.sleep(0)
        asked.cancel()
        return await asked

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(play(_cancellable(swallow())))
    assert asyncio.run(play(after_an_earlier_one())) == "fine"
