"""Waiting for work without asking for it: a thread that listens for the hints of all queues.

A wake-up is a hint. A worker listens only while it has free slots and knows of no work, and hands a hint on that it
cannot use; a lost hint costs at most one poll interval.

Reserve commands are pipelined behind the wait (BZPOPMIN), so an idle worker gets the wake-up and its first tasks in one
reply. A worker that is cut off or suspended while it listens takes these few along until their leases end.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobrunner.broker.broker import Broker, server_clock
from jobrunner.broker.call import Call, attempt_to_interpret
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.keys import Keys
from jobrunner.broker.notifier import WakeListener
from jobrunner.errors import JobrunnerError
from jobrunner.lease_number import LeaseNumbers
from jobrunner.loop import Complaints, Loop, Signal

_LISTEN_S = 60.0
_LONGEST_WAIT_S = 3600.0
_FAREWELL_S = 0.5
_CLOSE_TRIES = 20
_CLOSE_PAUSE_S = 0.05
_MOST = 2
"""Two tasks of a queue: the second shows whether the queue has more. A worker that loses its connection strands at most
this many tasks until their leases expire."""
_QUEUES = 4
"""Workers that serve more queues than this poll instead."""

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
        on_wake: OnWake = lambda _queue, _brought: None,
        complaints: Complaints | None = None,
    ) -> None:
        self._listener = WakeListener(broker, [keys.queue(name) for name in queues])
        # With an injected clock the age of a reply is unknown.
        self.can_bring = self._listener.can_bring and broker.now_ms is server_clock
        self._plan: Plan = tuple
        self.on_wake = on_wake
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
            self.on_wake(None, [])
            raise
        with self._lock:
            self.is_armed = False
        self.on_wake(queue, [attempt_to_interpret(call, reply) for call, reply in zip(calls, replies, strict=True)])
        return 0.0


class ReserveAhead:
    """The reserve commands behind the wait. Its length is how many answers came that were not taken in. The wake-up
    thread calls `plan` and `take_replies`, the fetch loop everything else.

    Invariant: they reserve no more than the worker could take when it began to block, and it hands back what it cannot
    take any more; a task counts as held since the server handed it out.
    """

    def __init__(self, keys: Keys, numbers: LeaseNumbers) -> None:
        self._keys = keys
        self._numbers = numbers
        self._planned: list[tuple[str, int]] = []
        self._brought: deque[tuple[str, int, Reservation]] = deque()

    def __len__(self) -> int:
        return len(self._brought)

    def plan(self, queues: Sequence[str], wanted: int) -> list[Call[Reservation]]:
        """Reserves from these queues, together at most `wanted`; nothing where they are too many."""
        count = min(wanted // max(len(queues), 1), _MOST)
        self._planned = [(queue, count) for queue in queues] if count > 0 and len(queues) <= _QUEUES else []
        return [
            leases.reserve(
                self._keys.queue(queue), count, token=self._numbers.first_of(count), most_bytes=leases.REPLY_BYTES
            )
            for queue, count in self._planned
        ]

    def take_replies(self, brought: Sequence[Reservation | JobrunnerError]) -> set[str]:
        """Takes in the replies to the calls; returns the queues that need no poll now."""
        polled = set()
        for (queue, count), one in zip(self._planned, brought, strict=False):
            if isinstance(one, Reservation):
                self._brought.append((queue, count, one))
                polled.add(queue)
        return polled

    def first(self) -> tuple[str, int, Reservation]:
        """The oldest answer: the queue, how many were asked for, and what came. It counts until it is `done`."""
        return self._brought[0]

    def done(self) -> None:
        """The oldest answer is taken in."""
        self._brought.popleft()
