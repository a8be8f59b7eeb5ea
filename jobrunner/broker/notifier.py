"""Waiting in the server for a hint that there may be work: a blocking pop on wake keys, on a connection of its own.

A hint may be lost with the listener that took it, so a listener also polls after a while. The server passes each hint
to the listener that has waited longest.
"""

import asyncio
import selectors
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import AskError, ClusterDownError, ReadOnlyError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, pack, pack_calls, read_reply, server_error
from jobrunner.broker.calls.queues import wake
from jobrunner.broker.cluster import slot_of
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import QueueKeys
from jobrunner.clock import sleep
from jobrunner.errors import JobrunnerError, ServerUnavailable

_LATE_S = 5.0
_SHORTEST_S = 0.01
_RESUBSCRIBE_S = 0.2
_BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)
_NOT_HERE = (AskError, ClusterDownError, ReadOnlyError, TryAgainError)
"""Replies of a server that does not serve these queues any more, or not at the moment."""


class WakeListener:
    """Blocks on the hints of some queues: of work, or with `of="capacity"` of capacity in full ones. On a cluster it
    has a connection for each slot.

    Invariant: after a wait no connection goes on waiting, as it would take a hint that is then lost.
    """

    def __init__(self, broker: Broker, queues: Iterable[QueueKeys], *, of: str = "wake") -> None:
        self._broker = broker
        self._queues = {queue.name: queue for queue in queues}
        lines = _by_slot(broker.endpoint, self._queues.values())
        self._ears = [_ListeningConnection(broker, _names(some, of)) for some in lines]

    @property
    def can_bring(self) -> bool:
        """Whether `wait_with` takes calls: it asks one server on one connection."""
        return len(self._ears) == 1

    def wait(self, at_most_s: float) -> str:
        """The name of the queue a hint came for; '' when none came in time. Raises the errors of ServerError."""
        return self.wait_with(at_most_s, ())[0]

    def wait_with(self, at_most_s: float, calls: Sequence[Call[Any]]) -> tuple[str, list[Any]]:
        """The same with `calls` pipelined behind the wait, so that one reply has the hint and theirs.

        Returns the name and the replies, errors as values. Calls are sent once, and applied even when a reply is lost.
        """
        at_most_s = max(at_most_s, _SHORTEST_S)
        try:
            return self._ears[0].wait(at_most_s, calls) if self.can_bring else (self._wait_for_any(at_most_s), [])
        except (*_BROKEN, RedisError) as error:
            self.close()
            raise _failure(error, self._broker.endpoint) from error
        except BaseException:
            self.close()
            raise

    def leave(self) -> None:
        """Ends a wait, whose reply is still read when there is one; nothing more is sent on the connections."""
        for ear in self._ears:
            ear.leave()

    def close(self) -> None:
        """Ends the connections; a thread that waits on them gets an error.

        One that is just about to wait may open its connection once more: close again until it has ended.
        """
        for ear in self._ears:
            ear.close()

    def _wait_for_any(self, at_most_s: float) -> str:
        with selectors.DefaultSelector() as selector:
            for ear in self._ears:
                selector.register(ear.ask(at_most_s), selectors.EVENT_READ, ear)
            ready: list[_ListeningConnection] = [key.data for key, _ in selector.select(at_most_s + _LATE_S)]
        if not ready:
            raise TimeoutError(f"no answer to a wait of {at_most_s:g} s")
        heard = [ear.answer() for ear in ready] + self._silence([ear for ear in self._ears if ear not in ready])
        first, *others = [name for name in heard if name] or [""]
        if others:
            self._broker.run_many([wake(self._queues[name]) for name in others])
        return first

    def _silence(self, ears: "list[_ListeningConnection]") -> list[str]:
        """Ends what still waits; returns what came meanwhile."""
        ended = self._broker.run_each([ear.unblocking() for ear in ears]) if ears else []
        return [ear.end(is_told=not isinstance(said, Exception)) for ear, said in zip(ears, ended, strict=True)]


class _ListeningConnection:
    """One connection that waits."""

    def __init__(self, broker: Broker, names: dict[bytes, str]) -> None:
        self._broker = broker
        self._names = names
        self._key = next(iter(names), b"")
        self._id = 0
        self._connection: Any = None
        self._in_use: Any = None

    def wait(self, at_most_s: float, calls: Sequence[Call[Any]]) -> tuple[str, list[Any]]:
        connection = self._in_use = self._send(_question(self._names, at_most_s) + pack_calls(calls, b""))
        if not connection.can_read(timeout=at_most_s + _LATE_S):  # the way to the server is cut, silently
            raise TimeoutError(f"no answer to a wait of {at_most_s:g} s")
        return self.answer(), [read_reply(connection) for _ in calls]

    def ask(self, at_most_s: float) -> socket.socket:
        """Asks and does not wait; returns what becomes readable with the answer."""
        connection = self._in_use = self._send(_question(self._names, at_most_s), with_id=True)
        asked: socket.socket = connection._sock  # noqa: SLF001  redis-py waits for one connection at a time
        return asked

    def answer(self) -> str:
        return _answer(self._names, self._in_use.read_response())

    def unblocking(self) -> Call[int]:
        """A command that the server answers at once."""
        return Call(words=("CLIENT", "UNBLOCK", self._id), keys=(self._key,), read=int)

    def end(self, *, is_told: bool) -> str:
        """Interrupts the wait of a connection and returns its reply; closes a connection that cannot be interrupted."""
        if is_told and self._in_use.can_read(timeout=_LATE_S):
            return self.answer()
        self.close()
        return ""

    def leave(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(AttributeError, OSError):  # it is not open
                connection._sock.shutdown(socket.SHUT_WR)  # noqa: SLF001  redis-py closes both ways or none

    def close(self) -> None:
        connection, self._connection = self._connection or self._in_use, None
        if connection is not None:
            connection.disconnect()

    def _send(self, command: bytes, *, with_id: bool = False) -> Any:
        if self._connection is not None:
            with suppress(*_BROKEN):  # it rested, and the server may have been restarted since
                self._connection.send_packed_command([command], check_health=False)
                return self._connection
            self.close()
        connection = self._connection = self._broker.endpoint.open(key=self._key)  # its time limit is for the greeting
        connection.connect()
        if with_id:
            connection.send_command("CLIENT", "ID")
            self._id = connection.read_response()
        connection.send_packed_command([command], check_health=False)
        return connection


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
        except _BROKEN:
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
    """The same for asyncio, on a cluster for queues of one slot.

    A wait that is cancelled ends its connection, and the hint it had taken is lost.
    """

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
        connection = self._connection = await self._broker.open_blocking(next(iter(self._names), b""))
        await connection.connect()
        await connection.send_packed_command([command], check_health=False)
        return connection


def _by_slot(endpoint: Endpoint, queues: Iterable[QueueKeys]) -> list[list[QueueKeys]]:
    found: dict[int, list[QueueKeys]] = {}
    for queue in queues:
        found.setdefault(slot_of(queue.wake) if endpoint.cluster is not None else 0, []).append(queue)
    return list(found.values()) or [[]]


def _names(queues: Iterable[QueueKeys], of: str) -> dict[bytes, str]:
    return {getattr(queue, of): queue.name for queue in queues}


def _question(names: dict[bytes, str], at_most_s: float) -> bytes:
    return pack(["BZPOPMIN", *names, f"{at_most_s:.3f}"])


def _answer(names: dict[bytes, str], reply: Any) -> str:
    return names[reply[0]] if reply else ""


def _failure(error: Exception, endpoint: Endpoint) -> JobrunnerError:
    if endpoint.cluster is not None:
        endpoint.cluster.is_stale = True
    if isinstance(error, (*_BROKEN, *_NOT_HERE)) or "UNBLOCKED" in str(error):
        return ServerUnavailable(f"no server at {endpoint}: {error}")
    return server_error(error)
