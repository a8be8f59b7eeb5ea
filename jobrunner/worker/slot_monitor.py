"""Detects that tasks of one queue hold all slots of a worker while its other queues wait."""

from collections.abc import Sequence

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.queues import QueueCounts, counts
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import whole_queue
from jobrunner.clock import perf_counter
from jobrunner.errors import JobrunnerError
from jobrunner.jobs.declared_queues import cap_advice
from jobrunner.logs import SafeLogger

_MOST_ASKED = 50
"""The most queues that are counted in one round trip."""
_NAMED = 5
_log = SafeLogger("jobrunner.worker")


class SlotMonitor:
    """Checks at each heartbeat. It asks the server only while one queue has held all slots for `patience_s`: short
    tasks take turns, so only long ones keep other queues waiting."""

    def __init__(self, broker: Broker, keys: Keys, queues: Sequence[str], slots: int, patience_s: float) -> None:
        self._broker = broker
        self._keys = keys
        self._queues = list(queues)
        self._slots = slots
        self._patience_s = patience_s
        self._warned_of = ""

    def check(self, begun: Sequence[Attempt]) -> str:
        """The queue that holds all slots while others wait, '' for none; logs when that changes. `begun`: the running
        attempts."""
        queue = self._holder(begun)
        waiting = self._waiting(queue) if queue else {}
        found = queue if waiting else ""
        if found and found != self._warned_of:
            some = dict(sorted(waiting.items(), key=lambda one: -one[1])[:_NAMED])
            _log.warning("one queue holds all slots while others wait", queue=found, slots=self._slots, waiting=some,
                         hint=cap_advice(found, self._slots))  # fmt: skip
        elif self._warned_of and not found:
            _log.info("slots are free for other queues again", queue=self._warned_of)
        self._warned_of = found
        return found

    def _holder(self, begun: Sequence[Attempt]) -> str:
        if len(self._queues) < 2 or len(begun) < self._slots:
            return ""
        if len({whole_queue(attempt.queue) for attempt in begun}) != 1:
            return ""
        since = max(attempt.began_s for attempt in begun)
        return whole_queue(begun[0].queue) if perf_counter() - since >= self._patience_s else ""

    def _waiting(self, holder: str) -> dict[str, int]:
        """How many tasks wait in other queues, without those that are paused."""
        names = [name for name in self._queues if name != holder][:_MOST_ASKED]
        try:
            found = self._broker.run_each([counts(self._keys.queue(name)) for name in names])
        except JobrunnerError:  # the heartbeat reports the error itself
            return {}
        waiting = {name: one.waiting for name, one in zip(names, found, strict=True)
                   if isinstance(one, QueueCounts) and not one.paused}  # fmt: skip
        return {name: count for name, count in waiting.items() if count}
