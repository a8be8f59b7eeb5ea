"""Many coroutines on one driver: few connections, each reply to its caller, and a fault of one is no other's."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from jobrunner import AsyncClient
from jobrunner.broker.call import Call, command
from jobrunner.broker.exchange_queue import CONFIRMED, CONNECTIONS, ExchangeQueue
from jobrunner.client.client import keys_of
from jobrunner.errors import ClientClosed, OutcomeUnknown


def echo(word: str, *, repeatable: bool = True) -> Call[Any]:
    return command("ECHO", word, read=bytes, repeatable=repeatable)


class Held:
    """A `send` whose exchanges end when the test says so."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self._ends: list[asyncio.Future[None]] = []
        self.queue = ExchangeQueue(self._send)

    async def _send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        words = [str(call.words[1]) for call in calls]
        self.sent.append(words)
        self._ends.append(asyncio.get_running_loop().create_future())
        await self._ends[-1]
        return words

    async def end(self, number: int, error: BaseException | None = None) -> None:
        """Ends an exchange, and lets the next one begin."""
        self._ends[number].set_exception(error) if error else self._ends[number].set_result(None)
        for _ in range(4):
            await asyncio.sleep(0)

    async def ask(self, *requests: Sequence[Call[Any]]) -> "list[asyncio.Task[list[Any]]]":
        """Requests behind as many as fill the connections."""
        first = [asyncio.create_task(self.queue.replies([echo(f"first{n}")])) for n in range(CONNECTIONS)]
        tasks = [asyncio.create_task(self.queue.replies(calls)) for calls in requests]
        await asyncio.sleep(0)
        assert len(self.sent) == len(first)
        return tasks


def held(test: Callable[[Held], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Held())

    asyncio.run(run())


def test_what_waits_is_sent_together_and_each_caller_has_its_own_replies() -> None:
    async def test(send: Held) -> None:
        tasks = await send.ask([echo("a")], [echo("b"), echo("c")], [], [echo("d")])
        await send.end(3)
        assert send.sent[-1] == ["a", "b", "c", "d"]
        await send.end(CONNECTIONS)
        assert [await task for task in tasks] == [["a"], ["b", "c"], [], ["d"]]

    held(test)


def test_more_than_one_exchange_holds_goes_with_the_next() -> None:
    async def test(send: Held) -> None:
        tasks = await send.ask(*[[echo(str(n))] for n in range(150)])
        await send.end(0)
        await send.end(1)
        await send.end(2)
        assert [len(words) for words in send.sent[CONNECTIONS:]] == [64, 64, 22]
        for number in range(CONNECTIONS, CONNECTIONS + 3):
            await send.end(number)
        assert [(await task)[0] for task in tasks] == [str(n) for n in range(150)]

    held(test)


def test_what_may_be_repeated_does_not_share_the_fate_of_what_may_not() -> None:
    async def test(send: Held) -> None:
        tasks = await send.ask([echo("a")], [echo("once", repeatable=False)], [echo("b")])
        for number in range(2):
            await send.end(number)
        assert send.sent[CONNECTIONS:] == [["a", "b"], ["once"]]
        await send.end(CONNECTIONS)
        await send.end(CONNECTIONS + 1, OutcomeUnknown("lost"))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[0::2] == [["a"], ["b"]]
        assert isinstance(found[1], OutcomeUnknown)

    held(test)


def test_reads_and_reports_do_not_share_the_fate_of_what_may_be_repeated_for_some_seconds_only() -> None:
    """With one enqueue among them, reports were given up after nine seconds, whatever retry_timeout said."""

    async def test(send: Held) -> None:
        report, enqueue = structs.replace(echo("report"), unsure=(b"lost",)), structs.replace(echo("new"), repeat_s=9)
        await send.ask([enqueue], [report], [echo("read")], [echo("read"), report], [enqueue], [echo("read"), enqueue])
        for number in range(3):
            await send.end(number)
        assert send.sent[CONNECTIONS:] == [["new", "new", "read", "new"], ["report", "read", "report"], ["read"]]

    held(test)


def test_a_long_line_of_one_kind_is_passed_over_in_part_and_keeps_its_order() -> None:
    async def test(send: Held) -> None:
        line = [[echo(str(n), repeatable=False)] for n in range(100)]
        await send.ask([echo("a")], *line, [echo("b")])
        for number in range(4):
            await send.end(number)
        assert [words[0] for words in send.sent[CONNECTIONS:]] == ["a", "0", "64", "b"]
        assert send.sent[CONNECTIONS + 1] + send.sent[CONNECTIONS + 2] == [str(n) for n in range(100)]

    held(test)


WAIT = command("WAIT", "1", "0", read=int)


def test_writes_share_a_confirmation_and_each_caller_has_its_own_replies() -> None:
    async def test(send: Held) -> None:
        once = echo("once", repeatable=False)
        asked = [[echo("a"), WAIT], [WAIT], [echo("b"), echo("c"), WAIT], [once, WAIT]]
        tasks = [asyncio.create_task(send.queue.replies(calls)) for calls in asked]
        for _ in range(4):
            await asyncio.sleep(0)
        assert send.sent == [["a", "b", "c", "1"], ["once", "1"]]
        await send.end(0)
        await send.end(1, OSError("gone"))
        assert [await task for task in tasks[:3]] == [["a", "1"], ["1"], ["b", "c", "1"]]
        with pytest.raises(OSError, match="gone"):
            await tasks[3]

    held(test)


def test_those_who_wait_for_a_confirmation_keep_no_other_call_waiting() -> None:
    async def test(send: Held) -> None:
        tasks = []
        for n in range(CONFIRMED + 2):
            tasks.append(asyncio.create_task(send.queue.replies([echo(f"{n}"), WAIT])))
            for _ in range(4):
                await asyncio.sleep(0)
        assert len(send.sent) == CONFIRMED
        plain = [asyncio.create_task(send.queue.replies([echo("plain")])) for _ in range(CONNECTIONS)]
        await asyncio.sleep(0)
        assert send.sent[CONFIRMED:] == [["plain"]] * CONNECTIONS
        tasks[-1].cancel()
        await send.end(CONFIRMED)
        assert await plain[0] == ["plain"]
        await send.end(0)
        assert send.sent[-1] == [str(CONFIRMED), "1"], "and who was cancelled is not sent"

    held(test)


def test_a_caller_that_is_cancelled_is_not_sent_or_costs_no_other_its_reply() -> None:
    async def test(send: Held) -> None:
        tasks = await send.ask([echo("a")], [echo("b")], [echo("c")])
        tasks[0].cancel()
        await send.end(0)
        assert send.sent[-1] == ["b", "c"]
        tasks[1].cancel()
        await send.end(CONNECTIONS)
        assert await tasks[2] == ["c"]
        assert tasks[0].cancelled()
        assert tasks[1].cancelled()

    held(test)


def test_an_error_is_that_of_all_who_shared_the_exchange_and_the_next_begins() -> None:
    async def test(send: Held) -> None:
        tasks = await send.ask([echo("a")], [echo("b")])
        await send.end(0, OSError("gone"))
        await send.end(CONNECTIONS, OSError("gone, too"))
        assert [str(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == ["gone, too"] * 2
        later = asyncio.create_task(send.queue.replies([echo("later")]))
        await asyncio.sleep(0)
        await send.end(CONNECTIONS + 1)
        assert await later == ["later"]

    held(test)


def test_thousands_of_coroutines_enqueue_over_a_few_connections(server, client) -> None:
    with server.connect() as raw:
        before = raw.info("stats")["total_connections_received"]

    async def push(count: int) -> list[str]:
        # On a busy machine the turn of all these takes longer than it may take to connect.
        async with AsyncClient(server.url, keys_of(client).prefix, retry_timeout=60) as many:
            return await asyncio.gather(*(many.queue("q").push({"n": n}) for n in range(count)))

    ids = asyncio.run(push(3_000))
    assert len(set(ids)) == 3_000
    assert client.queue("q").counts()["waiting"] == 3_000
    with server.connect() as raw:
        more = raw.info("stats")["total_connections_received"] - before
    assert more <= CONNECTIONS + 2, "that of `client` and this one beside them"


def test_a_connection_that_breaks_among_many_callers_loses_and_doubles_nothing(fault_proxy, client) -> None:
    async def push() -> list[Any]:
        async with AsyncClient(fault_proxy.url, keys_of(client).prefix) as many:
            await many.queue("q").push("first")
            fault_proxy.cut_reply = 400
            return await asyncio.gather(
                *(many.queue("q").push({"n": n}, id=f"id-{n}") for n in range(1_000)), return_exceptions=True
            )

    told = asyncio.run(push())
    assert fault_proxy.cut_reply is None, "it broke"
    unknown = [one for one in told if isinstance(one, BaseException)]
    assert [one for one in unknown if not isinstance(one, OutcomeUnknown)] == []
    waiting = client.queue("q").counts()["waiting"] - 1
    assert 1_000 - len(unknown) <= waiting <= 1_000


@pytest.mark.parametrize("count", [1, 200])
def test_a_client_that_is_closed_says_so_to_those_who_wait(server, client, count) -> None:
    async def close_meanwhile() -> list[Any]:
        many = AsyncClient(server.url, keys_of(client).prefix)
        pushes = [asyncio.create_task(many.queue("q").push(n)) for n in range(CONNECTIONS + count)]
        await asyncio.sleep(0)
        await many.close()
        return await asyncio.gather(*pushes, return_exceptions=True)

    found = asyncio.run(close_meanwhile())
    assert all(isinstance(one, str | ClientClosed) for one in found)
    assert any(isinstance(one, ClientClosed) for one in found[CONNECTIONS:])
