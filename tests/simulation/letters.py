"""Judges deaths: a task that did not begin in time is not handed out any more, what dies goes to the dead letter queue
in the same step, and nothing dies without a reason."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from jobrunner.broker.keys import QueueKeys
from jobrunner.queue_settings import QueueSettings
from tests.simulation.seen import Seen, Violation


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    tasks: dict[bytes, Seen]


@dataclass
class SeenLetters:
    """What the queues of a run do with tasks that are late or die."""

    goes_to: dict[bytes, bytes] = field(default_factory=dict)
    """The dead letter queue of each queue that has one."""
    expires_in_ms: dict[bytes, float] = field(default_factory=dict)
    """Of each queue with a time to begin."""
    most_attempts: dict[bytes, int] = field(default_factory=dict)
    """Of the queues with dead letters."""
    expired: int = 0
    """Tasks that were seen to die as they had not begun in time."""

    def expiry(self, queue: bytes, own_ms: bytes | None, now: float) -> float:
        """When a task that is enqueued now dies unless it has begun."""
        limit = self.expires_in_ms.get(queue, math.inf) if own_ms is None else float(own_ms)
        return now + limit

    def expires(self, seen: Seen, now: float) -> bool:
        """Whether a task that is found dead had not begun in time. Counts it."""
        if seen.outcome or not seen.has_expired(now):
            return False
        self.expired += 1
        return True

    def check_in_time(self, task_id: bytes, seen: Seen, now: float) -> None:
        """Takes in that a task is handed out. Raises Violation."""
        if seen.has_expired(now):
            raise Violation(f"{task_id.decode()} was handed out {now - seen.expires_at:.1f} ms after it expired")

    def bury(self, observer: _Observer, seen: Seen) -> None:
        """Notes that a task died by a report."""
        if to := self.goes_to.get(seen.queue):
            self._forward(seen, to)
        else:
            seen.outcome = "dead"

    def brings(self, observer: _Observer, seen: Seen, queue: bytes) -> bool:
        """Whether a task is in this queue because it died in its own, without a report: its lease ended, or it had not
        begun in time. Moves it there."""
        if self.goes_to.get(seen.queue) != queue or seen.outcome:
            return False
        now = observer.now()
        most = self.most_attempts[seen.queue] if seen.most_attempts is None else seen.most_attempts
        has_lapsed = 0 < seen.ends <= now and seen.spent + 1 >= most
        if not has_lapsed and not self.expires(seen, now):
            return False
        self._forward(seen, queue)
        return True

    def _forward(self, seen: Seen, to: bytes) -> None:
        payload, enqueued = seen.payload, seen.enqueued
        seen.enters(to)
        seen.payload, seen.hops = payload, seen.hops + 1
        seen.expires_at = enqueued + self.expires_in_ms.get(to, math.inf)
        seen.is_to_stop = False


def problems(observer: "_WithLetters", queues: Iterable[QueueKeys]) -> Iterator[str]:
    """Yields tasks that are dead without a reason, and a total of expired tasks that is wrong."""
    letters, expired = observer.letters, 0
    for keys in queues:
        most = 0
        for task_id in observer.ask("ZRANGE", keys.dead, 0, -1):
            most = most or int(observer.ask("HGET", keys.settings, "max_attempts") or QueueSettings().max_attempts)
            seen = observer.tasks[task_id]
            if seen.queue != keys.name.encode() and not letters.brings(observer, seen, keys.name.encode()):
                continue  # a batch moved it
            of_task = most if seen.most_attempts is None else seen.most_attempts
            if seen.outcome or not seen.is_counted or seen.spent + (seen.ends > 0) >= of_task:
                continue
            if not letters.expires(seen, observer.now()):
                yield f"{task_id.decode()} is dead in {keys.name}, and nothing has ended it"
        expired += int(observer.ask("HGET", keys.counters, "expired") or 0)
    unsure = sum(2 * (seen.outcome in ("cancelled", "removed", "dead")) for seen in observer.tasks.values())
    if not letters.expired <= expired <= letters.expired + unsure:  # those that were taken out may have expired before
        yield f"the totals have {expired} expired tasks, and {letters.expired} were seen to expire"


class _WithLetters(_Observer, Protocol):
    """The part of an Observer that is used here at the end of a run."""

    letters: SeenLetters
