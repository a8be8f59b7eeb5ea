"""Listeners of clients: a hint awaited in a coroutine, and a message on a channel, each on a connection of its own."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import BROKEN
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.notifier import LATE_S, SHORTEST_S, listening_error, names_of, pop_hint, queue_in
from jobrunner.clock import sleep

_RESUBSCRIBE_S = 0.2


class ChannelListener:
    """Waits for a message on one channel, on a connection of its own."""

    def __init__(self, broker: Broker, channel: bytes) -> None:
        self._broker = broker
        self._channel = channel
        self._connection: Any = None

    def wait(self, at_most_s: float) -> None:
        """Returns when a message came, or after so many seconds.

        Subscribes at the first wait, and after the connection broke, and comes back at once then: a message may have
        been missed.
        """
        try:
            if self._connection is None:
                self._subscribe()
            elif self._connection.can_read(timeout=at_most_s):
                self._connection.read_response()
        except BROKEN:
            self.close()
            sleep(min(at_most_s, _RESUBSCRIBE_S))  # who waits looks for itself then, and hears what is wrong

    def close(self) -> None:
        """Ends the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _subscribe(self) -> None:
        connection = self._broker.open_blocking(self._channel)
        connection.connect()
        self._connection = connection
        connection.send_command("SUBSCRIBE", self._channel)
        connection.read_response()


class AsyncWakeListener:
    """As `WakeListener`, for asyncio: on a cluster for queues of one slot.

    A wait that is cancelled ends its connection, and the hint it had taken is lost.
    """

    def __init__(self, broker: AsyncBroker, queues: Iterable[QueueKeys], *, of: str = "wake") -> None:
        self._broker = broker
        self._names = names_of(queues, of)
        self._connection: Any = None

    async def wait(self, at_most_s: float) -> str:
        """The name of the queue a hint came for; '' when none came in time. Raises the errors of ServerError."""
        try:
            return await self._wait(max(at_most_s, SHORTEST_S))
        except (*BROKEN, RedisError) as error:
            await self.close()
            raise listening_error(error, self._broker.endpoint) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the connection without waiting for anything, so that it may be called while being cancelled."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _wait(self, at_most_s: float) -> str:
        question = pop_hint(self._names, at_most_s)
        async with asyncio.timeout(at_most_s + LATE_S):  # the way to the server is cut, silently
            connection = await self._send(question)
            return queue_in(self._names, await connection.read_response())

    async def _send(self, command: bytes) -> Any:
        if self._connection is not None:
            with suppress(*BROKEN):
                await self._connection.send_packed_command([command], check_health=False)
                return self._connection
            await self.close()
        connection = self._connection = await self._broker.open_blocking(next(iter(self._names), b""))
        await connection.connect()
        await connection.send_packed_command([command], check_health=False)
        return connection
