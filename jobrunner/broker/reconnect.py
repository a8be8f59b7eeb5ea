"""Connections between calls: those that rest, how long to try one that failed, and which calls may be sent again."""

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from jobrunner.broker.call import Call, is_demoted, server_error
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import OutcomeUnknown, ServerUnavailable

BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)
"""Errors after which a connection cannot be used any more."""
_ANSWERED = (AuthenticationError, BusyLoadingError)
"""Errors that redis-py derives from BROKEN ones although the server has answered."""
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class Idle:
    """Idle connections of one process. A fork starts with none: a socket must not be shared."""

    def __init__(self) -> None:
        self._resting: deque[Any] = deque()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._resting) if self._pid == os.getpid() else 0

    def take(self) -> Any | None:
        """The connection used last, or None."""
        if self._pid != os.getpid():
            self._resting, self._pid = deque(), os.getpid()
        try:
            return self._resting.pop()
        except IndexError:
            return None

    def rest(self, connection: Any) -> None:
        """Puts a connection back after a complete exchange."""
        self._resting.append(connection)

    def take_all(self) -> list[Any]:
        """Empties it."""
        taken = []
        while (connection := self.take()) is not None:
            taken.append(connection)
        return taken


def has_died(connection: Any) -> bool:
    """Whether the server closed an idle connection, or left something unread on it."""
    try:
        return bool(connection.can_read(timeout=0))
    except (RedisConnectionError, RedisTimeoutError, OSError):
        return True


async def has_died_async(connection: Any) -> bool:
    """The same for asyncio."""
    for _ in range(2):
        await asyncio.sleep(0)  # lets a loop that did not run meanwhile hear of the end
    look = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before redis-py 8
    try:
        return bool(await look())
    except (RedisConnectionError, RedisTimeoutError, OSError):
        return True


class Demoted(RedisConnectionError):
    """A server is a replica now, and did nothing of what may not be repeated."""


def raise_if_demoted(calls: Sequence[Call[Any]], replies: Sequence[object]) -> None:
    """Raises Demoted when a server took no writes and all of the calls may be sent again, to the new primary."""
    refused = [is_demoted(reply) for reply in replies]
    if any(refused) and all(call.repeatable or was for call, was in zip(calls, refused, strict=True)):
        raise Demoted("the server is a replica now")


def may_repeat(calls: Sequence[Call[Any]]) -> bool:
    """Whether the calls may be sent again when it is not known if they were applied."""
    return all(call.repeatable for call in calls)


class ReconnectPolicy:
    """The tries of one exchange: pauses that double, until the time is up."""

    def __init__(self, limit_s: float, server: object) -> None:
        self._ends = monotonic() + limit_s
        self._server = server
        self._pause_s = _FIRST_PAUSE_S

    def wait_to_connect(self, error: Exception) -> None:
        """Pauses before the next try to connect; raises ServerUnavailable when the time is up."""
        sleep(self.pause_to_connect(error))

    def wait_to_repeat(self, error: Exception, calls: Sequence[Call[Any]], *, stale: bool) -> None:
        """Pauses before the calls are sent again; raises OutcomeUnknown when they may not be."""
        sleep(self.pause_to_repeat(error, calls, stale=stale))

    def pause_to_connect(self, error: Exception) -> float:
        """Seconds to pause before the next try to connect, or before a server that is loading is asked again.

        Raises ServerUnavailable when the time is up, ServerRefused for a wrong user or password.
        """
        for cause in (error, error.__cause__):  # redis-py's asyncio side wraps what the server says to a greeting
            if isinstance(cause, (AuthenticationError, ResponseError)):
                raise server_error(cause) from error
        if monotonic() >= self._ends:
            raise ServerUnavailable(
                f"no server at {self._server}: {error}; start it, or name another with --url or JOBRUNNER_URL"
            ) from error
        return self._next_pause()

    def pause_to_repeat(self, error: Exception, calls: Sequence[Call[Any]], *, stale: bool) -> float:
        """Seconds to pause before the calls are sent again; raises OutcomeUnknown when they may not be.

        `stale` means the connection had rested: then the first repetition costs no pause.
        """
        once = next((call for call in calls if not call.repeatable), None)
        if once is not None or monotonic() >= self._ends:
            name = once.script.name if once is not None and once.script else "the command"
            raise OutcomeUnknown(
                f"the connection to {self._server} broke during {name}: {error}; it was applied or it was not"
            ) from error
        return 0.0 if stale else self._next_pause()

    def _next_pause(self) -> float:
        pause, self._pause_s = self._pause_s, min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return pause


def read_reply(connection: Any) -> Any:
    """The next reply, an error of the server as a value. Raises BROKEN when the connection is."""
    try:
        return connection.read_response()
    except (RedisError, OSError) as error:
        return _answered(error)


async def read_reply_async(connection: Any) -> Any:
    """The same of a connection of asyncio."""
    try:
        return await connection.read_response()
    except (RedisError, OSError) as error:
        return _answered(error)


def _answered(error: Exception) -> Exception:
    if isinstance(error, BROKEN) and not isinstance(error, _ANSWERED):
        raise error
    return error
