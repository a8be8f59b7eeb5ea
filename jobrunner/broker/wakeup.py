"""Waiting in the server for a hint that there may be work: a blocking pop on wake keys, on a connection of its own."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import pack, server_error
from jobrunner.broker.keys import QueueKeys
from jobrunner.errors import ServerUnavailable

_LATE_S = 5.0
_BROKEN = (RedisConnectionError, RedisTimeoutError, OSError)


class WakeListener:
    """Listens for the hints of some queues. The server hands each hint to the listener that waits longest.

    A hint may be lost with the listener that took it, so nobody relies on hints alone.
    """

    def __init__(self, broker: Broker, queues: Iterable[QueueKeys]) -> None:
        self._broker = broker
        self._names = {queue.wake: queue.name for queue in queues}
        self._connection: Any = None

    def wait(self, at_most_s: float) -> str:
        """The name of the queue a hint came for; '' when none came in time. Raises the errors of ServerError."""
        try:
            return self._wait(max(at_most_s, 0.01))
        except _BROKEN as error:
            self.close()
            raise ServerUnavailable(f"no server at {self._broker.endpoint}: {error}") from error
        except RedisError as error:
            self.close()
            raise server_error(error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection; a thread that waits on it gets an error."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _wait(self, at_most_s: float) -> str:
        connection = self._send(pack(["BZPOPMIN", *self._names, f"{at_most_s:.3f}"]))
        if not connection.can_read(timeout=at_most_s + _LATE_S):  # the way to the server is cut, silently
            raise TimeoutError(f"no answer to a wait of {at_most_s:g} s")
        reply = connection.read_response()
        return self._names[reply[0]] if reply else ""

    def _send(self, command: bytes) -> Any:
        if self._connection is not None:
            with suppress(*_BROKEN):  # it rested, and the server may have been restarted since
                self._connection.send_packed_command([command], check_health=False)
                return self._connection
            self.close()
        connection = self._connection = self._broker.open_blocking()
        connection.connect()
        connection.send_packed_command([command], check_health=False)
        return connection
