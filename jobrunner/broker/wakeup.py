"""Waiting in the server for a hint that there may be work: a blocking pop on wake keys, on a connection of its own."""

from collections.abc import Iterable
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import pack
from jobrunner.broker.keys import QueueKeys


class WakeListener:
    """Listens for the hints of some queues. The server hands each hint to the listener that waits longest.

    A hint may be lost with the listener that took it, so nobody relies on hints alone.
    """

    def __init__(self, broker: Broker, queues: Iterable[QueueKeys]) -> None:
        self._broker = broker
        self._names = {queue.wake: queue.name for queue in queues}
        self._connection: Any = None

    def wait(self, at_most_s: float) -> str:
        """The name of the queue a hint came for; '' when none came in time. Raises when the connection breaks."""
        try:
            return self._wait(max(at_most_s, 0.01))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection; a thread that waits on it gets an error."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _wait(self, at_most_s: float) -> str:
        if self._connection is None:
            self._connection = self._broker.open_blocking()
            self._connection.connect()
        command = pack(["BZPOPMIN", *self._names, f"{at_most_s:.3f}"])
        self._connection.send_packed_command([command], check_health=False)
        reply = self._connection.read_response()
        return self._names[reply[0]] if reply else ""
