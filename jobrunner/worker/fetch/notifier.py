"""Waiting for work without asking for it: a thread that listens for the hints of all queues.

A wake-up is a hint. A worker listens only while it has free slots and knows of no work, and hands a hint on that it
cannot use; a lost hint costs at most one poll interval.

Behind the wait the server finds reservations of a few tasks on the same connection. So it hands a task out in the
moment in which that came, without being asked once more. A worker that is cut off or suspended while it listens takes
these few along until their leases end.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobrunner.broker.broker import Broker, server_clock
from jobrunner.broker.call import Call, attempt_to_interpret
from jobrunner.broker.keys import Keys
from jobrunner.broker.notifier import WakeListener
from jobrunner.loop import Complaints, Loop, Signal

_LISTEN_S = 60.0
_LONGEST_WAIT_S = 3600.0
_FAREWELL_S = 0.5
_CLOSE_TRIES = 20
_CLOSE_PAUSE_S = 0.05


OnWake = Callable[[str | None, list[Any]], None]
"""Called with the queue that woke a worker ('' for none, None for: all may have, as hints were lost with the
connection), and the values of the calls that were to follow, or their errors."""
Plan = Callable[[], Sequence[Call[Any]]]


class Notifier:
    """A thread that blocks on the server while it is armed, and calls `on_wake` with what came."""

    def __init__(
        self,
        broker: Broker,
        keys: Keys,
        queues: Iterable[str],
        on_wake: OnWake,
        complaints: Complaints | None = None,
    ) -> None:
        self._listener = WakeListener(broker, [keys.queue(name) for name in queues])
        # With an injected clock the age of a reply is unknown.
        self.can_bring = self._listener.can_bring and broker.now_ms is server_clock
        self._plan: Plan = tuple
        self._on_wake = on_wake
        self._armed = Signal()
        self.is_armed = False
        self._closing = False
        self._loop = Loop("wakeup", self.step, complaints)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread."""
        self._loop.start()

    def arm(self, plan: Plan = tuple) -> None:
        """Listens until a hint comes, across polls, which need no command of their own. Arming twice is arming once.

        The calls of `plan`, which the thread asks for when it begins to wait, are carried out when the wait ends, where
        that `can_bring` their values along.
        """
        with self._lock:
            if self.is_armed:
                return
            self.is_armed = True
            self._plan = plan
        self._armed.set()

    def close(self) -> None:
        """Ends the thread and its connection."""
        self._closing = True
        self._loop.stop(0)
        self._armed.set()
        self._listener.leave()
        if self._loop.stop(_FAREWELL_S):
            self._listener.close()
            return
        for _ in range(_CLOSE_TRIES):  # the thread may be opening its connection just now
            self._listener.close()
            if self._loop.stop(_CLOSE_PAUSE_S):
                return

    def step(self) -> float:
        """One wait in the server."""
        if not self._armed.wait(_LONGEST_WAIT_S) or self._closing:
            return 0.0
        plan, self._plan = self._plan, tuple  # once: without the replies, the effects of the calls are unknown
        try:
            calls = plan()
            queue, replies = self._listener.wait_with(_LISTEN_S, calls)
        except Exception:
            self._armed.set()
            self._on_wake(None, [])
            raise
        with self._lock:
            self.is_armed = False
        self._on_wake(queue, [attempt_to_interpret(call, reply) for call, reply in zip(calls, replies, strict=True)])
        return 0.0
