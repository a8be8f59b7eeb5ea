"""Connections on which a coroutine waits in the server: for a hint, or for events."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.call import BROKEN
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.notifier import LATE_S, SHORTEST_S, listening_error, names_of, pop_hint, queue_in
from jobrunner.broker.redis_errors import RedisError


class AsyncBlockingConnection:
    """Sends blocking commands about one key on a connection of its own. A cancelled wait closes that connection."""

    def __init__(self, broker: AsyncBroker, key: bytes) -> None:
        self._broker = broker
        self._key = key
        self._connection: Any = None

    async def reply(self, command: bytes, at_most_s: float) -> Any:
        """The reply to a packed command that blocks for `at_most_s` at most. Raises the errors of ServerError."""
        try:
            async with asyncio.timeout(at_most_s + LATE_S):  # the network may drop packets silently
                connection = await self._send(command)
                return await connection.read_response()
        except (*BROKEN, RedisError) as error:
            await self.close()
            raise listening_error(error, self._broker.endpoint) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the connection without waiting for anything, so a coroutine may call it while being cancelled."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _send(self, command: bytes) -> Any:
        if self._connection is not None:
            with suppress(*BROKEN):
                await self._connection.send(command)
                return self._connection
            await self.close()
        connection = self._connection = await self._broker.open_blocking(self._key)
        await connection.connect()
        await connection.send(command)
        return connection


class AsyncWakeListener(AsyncBlockingConnection):
    """`WakeListener` for asyncio; on a cluster its queues share one slot. A cancelled wait loses the hint that it
    took."""

    def __init__(self, broker: AsyncBroker, queues: Iterable[QueueKeys], *, of: str = "wake") -> None:
        self._names = names_of(queues, of)
        super().__init__(broker, next(iter(self._names), b""))

    async def wait(self, at_most_s: float) -> str:
        """The name of the queue that a hint came for; '' for no hint in time. Raises the errors of ServerError."""
        at_most_s = max(at_most_s, SHORTEST_S)
        return queue_in(self._names, await self.reply(pop_hint(self._names, at_most_s), at_most_s))
