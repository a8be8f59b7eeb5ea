"""Waiting in the server for a hint that there may be work: a blocking pop on wake keys, on a connection of its own.

A hint may be lost with the listener that took it, so nobody relies on hints alone: who waits looks for itself again
after a while. The server hands each hint to the listener that waits longest.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from jobrunner.broker.aio import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import pack, server_error
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import QueueKeys
from jobrunner.errors import JobrunnerError, ServerUnavailable

_LATE_S = 5.0
_SHORTEST_S = 0.01
_BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)


class WakeListener:
    """Listens for the hints of some queues: of work, or with `of="room"` of room in full ones."""

    def __init__(self, broker: Broker, queues: Iterable[QueueKeys], *, of: str = "wake") -> None:
        self._broker = broker
        self._names = _names(queues, of)
        self._connection: Any = None
        self._in_use: Any = None

    def wait(self, at_most_s: float) -> str:
        """The name of the queue a hint came for; '' when none came in time. Raises the errors of ServerError."""
        try:
            return self._wait(max(at_most_s, _SHORTEST_S))
        except (*_BROKEN, RedisError) as error:
            self.close()
            raise _failure(error, self._broker.endpoint) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection; a thread that waits on it gets an error.

        One that is just about to wait may open its connection once more: close again until it has ended.
        """
        connection, self._connection = self._connection or self._in_use, None
        if connection is not None:
            connection.disconnect()

    def _wait(self, at_most_s: float) -> str:
        connection = self._in_use = self._send(_question(self._names, at_most_s))
        if not connection.can_read(timeout=at_most_s + _LATE_S):  # the way to the server is cut, silently
            raise TimeoutError(f"no answer to a wait of {at_most_s:g} s")
        return _answer(self._names, connection.read_response())

    def _send(self, command: bytes) -> Any:
        if self._connection is not None:
            with suppress(*_BROKEN):  # it rested, and the server may have been restarted since
                self._connection.send_packed_command([command], check_health=False)
                return self._connection
            self.close()
        connection = self._connection = self._broker.endpoint.open()  # its time limit is for the greeting
        connection.connect()
        connection.send_packed_command([command], check_health=False)
        return connection


class AsyncWakeListener:
    """The same for asyncio. A wait that is cancelled ends its connection, and the hint it had taken is lost."""

    def __init__(self, broker: AsyncBroker, queues: Iterable[QueueKeys], *, of: str = "wake") -> None:
        self._broker = broker
        self._names = _names(queues, of)
        self._connection: Any = None

    async def wait(self, at_most_s: float) -> str:
        """The name of the queue a hint came for; '' when none came in time. Raises the errors of ServerError."""
        try:
            return await self._wait(max(at_most_s, _SHORTEST_S))
        except (*_BROKEN, RedisError) as error:
            await self.close()
            raise _failure(error, self._broker.endpoint) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the connection without waiting for anything, so that it may be called while being cancelled."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _wait(self, at_most_s: float) -> str:
        question = _question(self._names, at_most_s)
        async with asyncio.timeout(at_most_s + _LATE_S):  # the way to the server is cut, silently
            connection = await self._send(question)
            return _answer(self._names, await connection.read_response())

    async def _send(self, command: bytes) -> Any:
        if self._connection is not None:
            with suppress(*_BROKEN):
                await self._connection.send_packed_command([command], check_health=False)
                return self._connection
            await self.close()
        connection = self._connection = await self._broker.open_blocking()
        await connection.connect()
        await connection.send_packed_command([command], check_health=False)
        return connection


def _names(queues: Iterable[QueueKeys], of: str) -> dict[bytes, str]:
    return {getattr(queue, of): queue.name for queue in queues}


def _question(names: dict[bytes, str], at_most_s: float) -> bytes:
    return pack(["BZPOPMIN", *names, f"{at_most_s:.3f}"])


def _answer(names: dict[bytes, str], reply: Any) -> str:
    return names[reply[0]] if reply else ""


def _failure(error: Exception, endpoint: Endpoint) -> JobrunnerError:
    if isinstance(error, _BROKEN):
        return ServerUnavailable(f"no server at {endpoint}: {error}")
    return server_error(error)
