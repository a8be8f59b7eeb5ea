"""Waiting for work without asking for it: a blocking pop on the wake keys of all queues, on a connection of its own.

A wake-up is a hint. A worker listens only while it has free slots and knows of no work, and hands a hint on that it
cannot use; what is lost all the same costs at most one poll interval.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import pack
from jobrunner.broker.keys import Keys
from jobrunner.loop import Loop, Signal

_LONGEST_WAIT_S = 3600.0


class Wakeup:
    """A thread that blocks on the server while it is armed, and tells which queue woke it."""

    def __init__(self, broker: Broker, keys: Keys, queues: Iterable[str], on_wake: Callable[[str], None]) -> None:
        self._broker = broker
        self._on_wake = on_wake
        self._names = {keys.queue(name).wake: name for name in queues}
        self._armed = Signal()
        self.is_armed = False
        self._until_s = 1.0
        self._connection: Any = None
        self._closing = False
        self._loop = Loop("wakeup", self.step)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread."""
        self._loop.start()

    def arm(self, at_most_s: float) -> None:
        """Listens until a hint comes or `at_most_s` passed. Arming twice is arming once."""
        with self._lock:
            if self.is_armed:
                return
            self.is_armed = True
            self._until_s = at_most_s
        self._armed.set()

    def close(self) -> None:
        """Ends the thread and its connection."""
        self._closing = True
        self._loop.stop(0)
        self._armed.set()
        connection = self._connection
        if connection is not None:
            connection.disconnect()
        self._loop.stop(1.0)

    def step(self) -> float:
        """One wait in the server."""
        if not self._armed.wait(_LONGEST_WAIT_S) or self._closing:
            return 0.0
        try:
            queue = self._wait(max(self._until_s, 0.01))
        except Exception:
            self._disconnect()
            self._armed.set()
            raise
        with self._lock:
            self.is_armed = False
        self._on_wake(queue)
        return 0.0

    def _wait(self, at_most_s: float) -> str:
        if self._connection is None:
            self._connection = self._broker.open_blocking()
            self._connection.connect()
        command = pack(["BZPOPMIN", *self._names, f"{at_most_s:.3f}"])
        self._connection.send_packed_command([command], check_health=False)
        reply = self._connection.read_response()
        return self._names[reply[0]] if reply else ""

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
