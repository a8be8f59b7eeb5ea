"""Waiting for work without asking for it: a thread that listens for the hints of all queues.

A wake-up is a hint. A worker listens only while it has free slots and knows of no work, and hands a hint on that it
cannot use; what is lost all the same costs at most one poll interval.
"""

import threading
from collections.abc import Callable, Iterable

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.broker.wakeup import WakeListener
from jobrunner.loop import Complaints, Loop, Signal

_LISTEN_S = 60.0
_LONGEST_WAIT_S = 3600.0
_CLOSE_TRIES = 20
_CLOSE_PAUSE_S = 0.05


class Wakeup:
    """A thread that blocks on the server while it is armed, and tells which queue woke it ('' for none, None for: all
    may have, as hints were lost with the connection)."""

    def __init__(
        self,
        broker: Broker,
        keys: Keys,
        queues: Iterable[str],
        on_wake: Callable[[str | None], None],
        complaints: Complaints | None = None,
    ) -> None:
        self._listener = WakeListener(broker, [keys.queue(name) for name in queues])
        self._on_wake = on_wake
        self._armed = Signal()
        self.is_armed = False
        self._closing = False
        self._loop = Loop("wakeup", self.step, complaints)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread."""
        self._loop.start()

    def arm(self) -> None:
        """Listens until a hint comes, across polls, which need no command of their own. Arming twice is arming once."""
        with self._lock:
            if self.is_armed:
                return
            self.is_armed = True
        self._armed.set()

    def close(self) -> None:
        """Ends the thread and its connection."""
        self._closing = True
        self._loop.stop(0)
        self._armed.set()
        for _ in range(_CLOSE_TRIES):  # the thread may be opening its connection just now
            self._listener.close()
            if self._loop.stop(_CLOSE_PAUSE_S):
                return

    def step(self) -> float:
        """One wait in the server."""
        if not self._armed.wait(_LONGEST_WAIT_S) or self._closing:
            return 0.0
        try:
            queue = self._listener.wait(_LISTEN_S)
        except Exception:
            self._armed.set()
            self._on_wake(None)
            raise
        with self._lock:
            self.is_armed = False
        self._on_wake(queue)
        return 0.0
