"""The driver for asyncio: awaits the calls that Broker blocks on. A driver serves one event loop at a time."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from jobrunner.broker.async_cluster_nodes import AsyncClusterNodes
from jobrunner.broker.broker import Idle, ignore, server_clock
from jobrunner.broker.call import (
    BROKEN,
    NOTED_S,
    Call,
    attempt_to_interpret,
    has_errors,
    interpret,
    needs_live_connection,
    pack_calls,
    pack_unknown,
    read_reply_async,
    told_again,
    waits_for_disk,
)
from jobrunner.broker.confirmed_writes import (
    Steps,
    confirmation_marks,
    confirmed,
    outlast_sync,
    send_again,
    written,
)
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.exchange_queue import ExchangeQueue
from jobrunner.broker.reconnect import Demoted, ReconnectPolicy
from jobrunner.broker.redis_errors import BusyLoadingError, RedisError, is_demoted, raise_if_loading, server_error
from jobrunner.errors import ClientClosed, ServerError, UsageError

T = TypeVar("T")


async def has_died_async(connection: Any) -> bool:
    """Whether the server closed an idle connection, or left something unread on it. A cancellation closes the
    connection, whose state is then unknown."""
    try:
        for _ in range(2):
            await asyncio.sleep(0)  # an event loop that was blocked has not yet processed the end
        return bool(await connection.can_read())
    except BROKEN:
        return True
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


class AsyncBroker:
    """Runs calls on pooled connections. Connections open when needed, stay for the next call, and end on `close`."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        retry_timeout_s: float = 2.0,
        now_ms: Callable[[], bytes] = server_clock,
        confirmation: Call[None] | None = None,
        greeting: Call[None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._confirmation = confirmation
        self._greeting = greeting
        self.now_ms = now_ms
        self._retry_timeout_s = retry_timeout_s
        self._is_patient = retry_timeout_s > NOTED_S
        """Whether retries outlast the note of a call. Idle connections are then checked before a send: on a dead
        connection nothing is sent, so the calls do not become too old to repeat."""
        self._on_dead: Callable[[], None] = ignore
        """Called when an idle connection has died; the exchange continues on another connection."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle = Idle()
        self._exchanges = ExchangeQueue(self._carried_out)
        self._has_sentinels = endpoint.sentinels is not None
        self._closed = False
        self._nodes: AsyncClusterNodes | None = None
        if endpoint.cluster is not None:
            self._nodes = AsyncClusterNodes(
                endpoint, endpoint.cluster, retry_timeout_s, self._node, confirmation=confirmation, greeting=greeting
            )
            self._replies = self._nodes.replies  # type: ignore[method-assign]  # one server pays nothing for many

    async def run(self, call: Call[T]) -> T:
        """The value of one call. Raises ServerError, or the errors of the call's reader."""
        return interpret(call, (await self._replies((call,)))[0])

    async def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The values of several calls, in order, in one round trip. Raises the error of the first refused call."""
        replies = await self._replies(calls)
        return [interpret(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def run_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Like run_many, but the value of a refused call is its error."""
        replies = await self._replies(calls)
        return [attempt_to_interpret(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def replies(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The raw replies of the server, errors as values."""
        return await self._replies(calls)

    async def open_blocking(self, key: bytes) -> Any:
        """A new connection for commands that block in the server on `key`; the caller disconnects it."""
        return await self.endpoint.open_async(blocking=True, key=key)

    def check_open(self) -> None:
        """Raises ClientClosed after `close`."""
        if self._closed:
            raise ClientClosed("this client is closed; open a new one")

    async def write(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Like run_many, but returns only when the writes have the configured durability.

        Raises OutcomeUnknown when the server does not confirm that in time, and in place of ServerUnavailable when some
        calls were applied.
        """
        if self._confirmation is None:
            return await self.run_many(calls) if len(calls) == 1 else written(await self.run_each(calls))
        marks = confirmation_marks(calls, everywhere=self._nodes is not None)
        return confirmed(await self.run_each([*calls, *marks, self._confirmation]), len(calls))

    async def close(self) -> None:
        """Disconnects; further calls raise ClientClosed."""
        self._closed = True
        self._serve(running_loop())
        await self._drop_idle()
        if self._nodes is not None:
            await self._nodes.close()

    async def _drop_idle(self) -> None:
        # Concurrently: each may wait as long as the connect timeout for a server that does not answer.
        await asyncio.gather(*(connection.disconnect() for connection in self._idle.take_all()))

    def _node(self, endpoint: Endpoint) -> "AsyncBroker":
        node = AsyncBroker(endpoint, retry_timeout_s=0, now_ms=self.now_ms)
        node._is_patient = self._is_patient
        node._on_dead = ignore if self._nodes is None else self._nodes.note_failure
        return node

    async def _replies(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self._serve(running_loop())
        return await self._exchanges.replies(calls)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts with new connections in another event loop: exchanges of a closed loop never end. Raises UsageError
        while the previous loop is open."""
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise UsageError(
                    "an AsyncClient serves one event loop, and this one serves another that is not closed: make a "
                    "client in each loop, or use async_client()"
                )
            self._idle, self._exchanges = Idle(), ExchangeQueue(self._carried_out)
        self._loop = loop

    async def _carried_out(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The replies of one exchange, which is repeated as far as its calls allow."""
        policy = ReconnectPolicy(self._retry_timeout_s, self.endpoint)
        try:
            return await self._tried(policy, calls)
        except Demoted as error:
            return await self._tried_again(policy, error)

    async def _tried_again(self, policy: ReconnectPolicy, refused: Demoted) -> list[Any]:
        while True:
            try:
                await asyncio.sleep(policy.pause_to_connect(refused))
                return refused.completed(await self._tried(policy, refused.left))
            except Demoted as error:
                if error is refused:
                    return refused.replies
                refused = refused.followed_by(error)
            except ServerError as error:
                return refused.given_up(error)

    async def _tried(self, policy: ReconnectPolicy, calls: Sequence[Call[Any]]) -> list[Any]:
        while True:
            self.check_open()
            connection: Any = await self._take()
            fresh = connection is None
            try:
                if fresh:
                    connection = await self._connect()
                elif needs_live_connection(calls, is_patient=self._is_patient) and await has_died_async(connection):
                    await connection.disconnect()
                    self._on_dead()
                    continue
            except BROKEN as error:
                await asyncio.sleep(policy.pause_to_connect(error))
                continue
            except RedisError as error:
                raise server_error(error, server=self.endpoint) from error
            try:
                exchange = self._exchange if policy.lost is None else partial(self._exchange_again, policy)
                return await exchange(connection, calls)
            except BusyLoadingError as error:
                await connection.disconnect()
                await asyncio.sleep(policy.pause_to_connect(error))
            except BROKEN as error:
                await connection.disconnect()
                await asyncio.sleep(policy.pause_to_repeat(error, calls, stale=not fresh))
            except BaseException:
                await connection.disconnect(nowait=True)
                raise

    async def _take(self) -> Any | None:
        """An idle connection; None when there is none, or when the sentinels name another primary."""
        connection, sentinels = self._idle.take(), self.endpoint.sentinels
        if connection is None or sentinels is None:
            return connection
        if sentinels.is_due:
            try:
                has_moved = await asyncio.to_thread(sentinels.name_another, connection)
            except asyncio.CancelledError:
                await connection.disconnect(nowait=True)
                raise
        else:
            has_moved = sentinels.name_another(connection)
        if not has_moved:
            return connection
        await connection.disconnect()
        await self._drop_idle()
        return None

    async def _connect(self) -> Any:
        connection = await self.endpoint.open_async()
        await connection.connect()
        await self._greet(connection)
        return connection

    async def _greet(self, connection: Any) -> None:
        """Sends the greeting on a new connection. Raises the errors of the greeting's reader."""
        if self._greeting is None:
            return
        try:
            await connection.send(pack_calls([self._greeting], b""))
            reply = await read_reply_async(connection)
            raise_if_loading([reply])
            interpret(self._greeting, reply)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise

    async def _exchange_again(self, policy: ReconnectPolicy, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        policy.check_age(calls)
        return list(map(told_again, calls, await self._exchange(connection, calls)))

    async def _exchange(self, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        now_ms = self.now_ms()
        await connection.send(pack_calls(calls, now_ms))
        replies = [await read_reply_async(connection) for _ in calls]
        if has_errors(replies):
            raise_if_loading(replies)
            await _carry_out(connection, send_again(calls, replies, self._retry_timeout_s), now_ms)
        if calls and calls[-1].script is None and waits_for_disk(calls):
            replies[-1] = await _carry_out(connection, outlast_sync(calls, replies[-1]), now_ms)
        if has_errors(replies) and any(map(is_demoted, replies)):
            await self._drop_idle()
            raise Demoted(calls, replies, waits=self._has_sentinels)
        if self._closed:  # during the exchange
            await connection.disconnect(nowait=True)
        else:
            self._idle.rest(connection)
        return replies


async def _carry_out(connection: Any, steps: Steps, now_ms: bytes) -> Any:
    """Sends the calls and makes the pauses of the steps; returns the result of the steps."""
    replies: Any = None  # a generator starts with send(None)
    try:
        while True:
            step = steps.send(replies)
            replies = []
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                await connection.send(pack_unknown(step, now_ms))
                replies = [await read_reply_async(connection) for _ in step]
    except StopIteration as over:
        return over.value


def running_loop() -> asyncio.AbstractEventLoop:
    """The running event loop. Raises UsageError outside asyncio, such as under trio, also through anyio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "the asyncio calls (aenqueue, async_client, AsyncClient) need a running event loop of asyncio, and there is"
            " none here: elsewhere, as under trio, call enqueue() and Client in a thread"
        ) from None
