"""Renews leases whose reserve reply the worker has not read, while a job holds its interpreter.

A reply to a reserve may come right after a job has begun to hold the interpreter lock. No thread of the worker reads
it, so the keeper gets no line for these leases, and they would end unrenewed: an attempt spent on each task, though no
worker began it. The keeper detects the standstill, as a thread of the worker writes heartbeats while the interpreter
runs, and asks the server for all leases with numbers of this worker.
"""

import threading
from collections.abc import Callable

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.worker.lease_keeper.keeper_link import HeldWork, SharedMemory

AFTER_S = 0.5
"""The time without a heartbeat, which comes four times a second, after which the interpreter counts as standing
still."""
LOOK_EVERY_S = 0.5
KEPT_MS = 5_000
"""How long such leases last from each look, if they do not last longer anyway."""


class Standstill:
    """Detects, for the keeper, that the interpreter of the worker stands still. `is_known` tells by a token whether the
    worker has reported the lease."""

    def __init__(self, broker: Broker, keys: Keys, memory: SharedMemory, is_known: Callable[[str], bool]) -> None:
        self._broker = broker
        self._keys = keys
        self._memory = memory
        self._is_known = is_known
        self._signs = memory.signs_of_worker
        self._since = self._looked_at = monotonic()
        self._looking: threading.Thread | None = None

    def has_begun(self) -> bool:
        """Whether the interpreter has stood still for a while. Call it a few times a second."""
        signs, now = self._memory.signs_of_worker, monotonic()
        if signs != self._signs:
            self._signs, self._since = signs, now
        return signs > 0 and now - self._since >= AFTER_S

    def keep_unread(self) -> None:
        """Renews the leases that the worker has not read, in a thread: the caller must go on with its heartbeats,
        whether the server answers or not."""
        now = monotonic()
        if now - self._looked_at < LOOK_EVERY_S or (self._looking is not None and self._looking.is_alive()):
            return
        self._looked_at = now
        self._looking = threading.Thread(target=self._look, name="jobrunner-standstill", daemon=True)
        self._looking.start()

    def _look(self) -> None:
        text = self._memory.read()
        if not text:
            return
        queues = [self._keys.queue(name) for name in msgspec.json.decode(text, type=HeldWork).queues]
        try:
            found = self._broker.run_each([leases.taken_in(queue, *self._memory.taken) for queue in queues])
            calls = []
            for queue, held in zip(queues, found, strict=True):
                unread = [] if isinstance(held, Exception) else [
                    (task_id, str(number), KEPT_MS) for task_id, number in held if not self._is_known(str(number))
                ]  # fmt: skip
                if unread:
                    calls.append(leases.extend(queue, unread))
            if calls:
                self._broker.run_each(calls)
        except JobrunnerError:
            return  # the next look comes soon
