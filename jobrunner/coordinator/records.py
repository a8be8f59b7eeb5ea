"""The leader's records of queues and workers: samples of their stats, and events that no other process can write.

1. Samples once a minute. A sample holds the depth and the totals of a queue; the growth of totals includes changes that
no worker counted. Once an hour the records of queues that are gone are removed. 2. Events of workers whose heartbeats
stopped, and of tasks that died on any queue. A task dies in a script of its queue, which cannot write the common stream
(on a cluster they are on different servers). So the script writes a record into a list of the queue, whether the task
is kept or not, and an exact count; the leader writes the events of both.
"""

import math
from collections.abc import Mapping
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command, fields, texts, whole
from jobrunner.broker.calls import events, queues
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.leader import ScanReply, together
from jobrunner.broker.calls.queues import QueueCounts, counts
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.shards import whole_queue
from jobrunner.coordinator.put_aside import ErrorsPutAside
from jobrunner.coordinator.scan import Interval, ScanBudget
from jobrunner.errors import JobrunnerError

_AT_ONCE = 100
_OF_A_TURN = 1000


class StatsSampler:
    """A maintenance task of the leader: one sample in every minute of the server's clock, two round trips for 100
    queues.

    It samples queues in which a scan found tasks or changed totals; other queues have not changed.
    """

    def __init__(self, broker: Broker, keys: Keys, budget: ScanBudget | None = None) -> None:
        self._broker = broker
        self._keys = keys
        self._budget = budget or ScanBudget()
        self._found: set[str] = set()
        self._left: list[str] = []
        self._minute = -1

    def take(self, found: ScanReply) -> None:
        """Handles the result of a scan."""
        self._found.update(found.holding, found.changed)

    def step(self, now_ms: float) -> float:
        """Takes the sample of this minute, unless it was taken; returns the seconds to the next."""
        minute = int(now_ms // stats_calls.MINUTE_MS)
        if minute != self._minute:
            self._left = sorted(self._found.union(self._left))
            self._found = set()
            self._minute = minute
            self._take_some(now_ms)
        elif self._left and not self._budget.pause:
            with self._budget.spending():
                self._take_some(now_ms)
        until_next = ((minute + 1) * stats_calls.MINUTE_MS - now_ms) / 1000
        return min(self._budget.pause, until_next) if self._left else until_next

    def _take_some(self, now_ms: float) -> None:
        """Samples the first thousand queues. Queues without a reply have another turn: no later scan may find them."""
        count = min(len(self._left), _OF_A_TURN)
        for _ in range(0, max(count, 1), _AT_ONCE):  # an empty sample shows that a leader was active
            some = self._left[:_AT_ONCE]
            found = self._broker.run_each([counts(self._keys.queue(name)) for name in some]) if some else []
            readable = {name: one for name, one in zip(some, found, strict=True) if isinstance(one, QueueCounts)}
            self._broker.run(stats_calls.sample(self._keys, now_ms, readable))
            self._found.update(set(some) - readable.keys())
            del self._left[:_AT_ONCE]


_EVERY_S = 3600.0
_FIELDS_AT_ONCE = 500
_NO_QUEUES = ("", "-", "#sampled")
"""Values in the field for a queue's name that name no queue."""


class StatsCleanup:
    """A maintenance task of the leader, once an hour: goes through hashes that are keyed by queue (the stats, and the
    cursors of events), slice by slice, and deletes the fields of queues that are gone.

    A queue that is used again in that moment loses its earlier counts, as its deletion intended.
    """

    def __init__(self, broker: Broker, keys: Keys, budget: ScanBudget) -> None:
        self._broker = broker
        self._keys = keys
        self._budget = budget
        self._rounds = Interval(_EVERY_S)
        self._left: list[bytes] = []
        self._cursor = 0

    def step(self) -> float:
        """Trims one slice when it is due; returns the seconds to the next."""
        if not self._left:
            if pause := self._rounds.begin():
                return pause
            self._left = [self._keys.events_cursor, self._keys.stats_sampled, self._keys.stats_total]
        if not self._budget.pause:
            with self._budget.spending():
                self._trim_some(self._left[-1])
        return self._budget.pause

    def _trim_some(self, key: bytes) -> None:
        scan = command("HSCAN", key, self._cursor, "COUNT", _FIELDS_AT_ONCE, read=lambda reply: reply)
        try:
            cursor, found = self._broker.run(scan)
            self._cursor = int(cursor)
        except BaseException:
            self._next()  # a damaged key must not keep the others from being trimmed
            raise
        of_queue: dict[str, list[bytes]] = {}
        for field in found[::2]:
            name = field.decode("utf-8", "replace").partition(" ")[0]
            if name not in _NO_QUEUES:
                of_queue.setdefault(name, []).append(field)
        if of_queue:
            known = self._broker.run(queues.are_registered(self._keys, list(of_queue)))
            doomed = [one for name, is_known in zip(of_queue, known, strict=True) if not is_known
                      for one in of_queue[name]]  # fmt: skip
            if doomed:
                self._broker.run(command("HDEL", key, *doomed, read=int))
        if not self._cursor:
            self._next()

    def _next(self) -> None:
        self._left.pop()
        self._cursor = 0


_NAMED = 100
"""The most deaths of a queue for which one scan writes single events; more are counted, as the event stream is
limited."""
_LONGEST_LIST = 1000


class DeathEvents:
    """A maintenance task of the leader: writes events of lost workers and dead tasks. The server keeps a cursor of the
    reported deaths, from which the next leader goes on: a death is reported at least once, and twice only when a leader
    dies in between, or its connection breaks. Only a leader writes the cursor, so it is read when leadership begins,
    and after an error."""

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._found = ScanReply()
        self._reported: dict[str, int] | None = None

    def forget(self) -> None:
        """Forgets earlier results, which may be stale. Called when leadership begins."""
        self._found, self._reported = ScanReply(), None

    def take(self, found: ScanReply) -> None:
        """Handles the result of a scan."""
        self._found = together((self._found, found))

    def step(self) -> float:
        """Reports the deaths that the last scan found, once; returns infinity."""
        found, self._found = self._found, ScanReply()
        if found.silent:
            self._report_lost(found.silent)
        if found.dead:
            self._report_deaths(found.dead)
        return math.inf

    def _report_lost(self, silent: list[str]) -> None:
        # A worker that removed itself from the list since the scan is not lost.
        removed = self._broker.run_many([command("ZREM", self._keys.workers, one, read=int) for one in silent])
        lost = [worker for worker, was_there in zip(silent, removed, strict=True) if was_there]
        if lost:
            self._broker.run_many([events.note(self._keys, "worker_lost", worker=worker) for worker in lost])

    def _report_deaths(self, dead: Mapping[str, int]) -> None:
        reported, self._reported = self._reported, None  # unknown after an error, as events may have been written
        if reported is None:
            reported = self._broker.run(command("HGETALL", self._keys.events_cursor, read=_counts))
        errors = ErrorsPutAside(self._broker)
        for name, total in dead.items():
            before = reported.get(name, 0)
            if total == before:
                continue
            try:
                reported[name] = self._report_of_queue(self._keys.queue(name), total, total - before)
            except JobrunnerError as error:
                errors.put(error)
        errors.raise_first()
        self._reported = reported

    def _report_of_queue(self, queue: QueueKeys, total: int, grown: int) -> int:
        """Writes events of deaths; returns how many deaths of the queue are reported then."""
        died = self._broker.run(command("LRANGE", queue.deaths, 0, _LONGEST_LIST - 1, read=texts))
        named, count = died[:_NAMED], max(grown, len(died))
        calls: list[Call[Any]] = [self._death(queue, word) for word in named]
        if count > len(named):
            name = whole_queue(queue.name)
            calls.append(events.note(self._keys, "tasks_died", queue=name, count=count - len(named)))
        # The list may have deaths newer than the total. A total that fell back (an older backup) is the new start.
        early = max(0, len(died) - grown) if grown > 0 else 0
        reported = total + early
        note = command("HSET", self._keys.events_cursor, queue.name, reported, read=int)
        self._broker.run_many([*calls, command("LTRIM", queue.deaths, len(died), -1, read=bool), note])
        return reported

    def _death(self, queue: QueueKeys, word: str) -> Call[None]:
        task, type_, attempts, fate, error = (word.split("\t", 4) + [""] * 4)[:5]
        return events.note(
            self._keys, "task_died", queue=whole_queue(queue.name), task=task, job=type_, error=error,
            attempts=attempts, fate=fate,
        )  # fmt: skip


def _counts(reply: list[bytes]) -> dict[str, int]:
    return {name: whole(count) for name, count in fields(reply).items()}
