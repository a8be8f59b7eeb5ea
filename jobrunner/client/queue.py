"""Queues as queues: push, reserve, report. For programs that want the queue and not the job class."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases, queues, tasks
from jobrunner.broker.keys import Keys, check_id
from jobrunner.broker.wakeup import WakeListener
from jobrunner.client.item import (
    Item,
    Popped,
    check_verdict,
    milliseconds,
    read_headers,
    read_payload,
    write_headers,
    write_payload,
)
from jobrunner.client.lease import Lease, Line
from jobrunner.client.queue_settings import read_settings, write_settings
from jobrunner.client.relay import relay
from jobrunner.client.token import new_token
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption
from jobrunner.retry import seconds
from jobrunner.settings import Duration, QueueSettings, check_whole
from jobrunner.task import Task, check_priority, due, new_id

_RECHECK_S = 2.0
_STATES = ("waiting", "scheduled", "pending", "dead")


class Queue:
    """One queue by name. Reading a queue that was never used finds it empty and creates nothing."""

    def __init__(self, broker: Broker, keys: Keys, name: str, payload_limit: int) -> None:
        self.name = name
        self.broker = broker
        self.keys = keys.queue(name)
        self._all_keys = keys
        self._line = Line(broker, keys, name, payload_limit)
        self._registered = False

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def push(self, payload: Any, **options: Any) -> str:
        """Adds one item (bytes, or any JSON value) and returns its id. Options are those of `Item`.

        An id that is in the queue already is returned and its item left as it was.
        """
        return self.push_many([Item(payload, **options)])[0]

    def push_many(self, payloads: Iterable[Any]) -> list[str]:
        """Adds payloads or `Item`s in order, all or none, and returns their ids."""
        items = [self._task(item if isinstance(item, Item) else Item(item)) for item in payloads]
        if items:
            self._enqueue(tasks.enqueue(self.keys, items))
        return [item.id for item in items]

    def reserve(self, n: int = 1, *, keepalive: Duration | None = None, wait: Duration = 0) -> list[Lease]:
        """Up to `n` items, first in line, each under a lease; [] when empty or paused.

        With `wait` it waits so long for the first item, without asking the server again and again.
        """
        check_whole(n, "n", minimum=1)
        keepalive_ms = milliseconds(keepalive, "keepalive")
        ends = monotonic() + seconds(wait, option="wait")
        found = self._reserve(n, keepalive_ms)
        if not found.attempts and wait:
            found = self._await(n, keepalive_ms, ends, found)
        return [Lease(self._line, attempt) for attempt in found.attempts]

    def pop(self, n: int = 1) -> list[Popped]:
        """Takes up to `n` items out for good: at most once, a crash after it loses them."""
        check_whole(n, "n", minimum=1, maximum=1000)
        return [
            Popped(raw[0].decode(), read_payload(raw[2], raw[4]), read_headers(raw[3]))
            for raw in self.broker.run(leases.pop(self.keys, n))
        ]

    def delete(self, task_id: str) -> bool:
        """Acknowledges a reserved item by id alone. False when there is none; NotReserved when nobody holds it."""
        return check_verdict(self.broker.run(tasks.delete(self.keys, check_id(task_id))), task_id) != "gone"

    def counts(self) -> dict[str, int]:
        """How many items are waiting, scheduled, pending and dead."""
        found = self.broker.run(queues.counts(self.keys))
        return {state: getattr(found, state) for state in _STATES}

    def totals(self) -> dict[str, int]:
        """What happened since the queue exists: enqueued, succeeded, failed, dead, recovered, orphaned, ..."""
        return self.broker.run(queues.counts(self.keys)).totals

    def pause(self) -> None:
        """Hands nothing out until `resume`; pushing and reporting go on."""
        self._enqueue(queues.configure(self.keys, {"paused": 1}))

    def resume(self) -> None:
        """Ends a pause."""
        self._enqueue(queues.configure(self.keys, {"paused": ""}))

    @property
    def paused(self) -> bool:
        """Whether the queue is paused."""
        return self.broker.run(queues.counts(self.keys)).paused

    def configure(self, **options: Any) -> None:
        """Changes the settings named, leaves the others; None brings back the default.

        Options: keepalive, max_attempts, backoff, dead_ttl, dead_max. Raises UnknownOption, InvalidOption.
        """
        self._enqueue(queues.configure(self.keys, write_settings(options, self.name)))

    @property
    def settings(self) -> QueueSettings:
        """The settings in force."""
        return read_settings(self.broker.run(queues.settings(self.keys)))

    def ids(self, state: str, *, limit: int = 100, start: int = 0) -> list[str]:
        """Ids of one state, first in line first, at most `limit`."""
        if state not in _STATES:
            raise InvalidOption(f"state {state!r}: choose one of {', '.join(_STATES)}")
        check_whole(limit, "limit", minimum=1, maximum=10_000)
        return self.broker.run(queues.ids(self.keys, state, start=start, count=limit))

    def requeue_dead(self, ids: Iterable[str] | None = None) -> int:
        """Puts dead items back into the queue (None: all that are dead now) and returns how many."""
        chosen = iter(ids) if ids is not None else self._all_dead()
        done = 0
        while batch := list(itertools.islice(chosen, 500)):
            done += self.broker.run(tasks.requeue(self.keys, batch)).count("ok")
        return done

    def purge(self, state: str) -> int:
        """Deletes all waiting, scheduled or dead items, in slices, and returns how many."""
        if state not in ("waiting", "scheduled", "dead"):
            raise InvalidOption(f"state {state!r} cannot be purged: choose waiting, scheduled or dead")
        total = 0
        while gone := self.broker.run(queues.purge(self.keys, state)):
            total += gone
        if total:
            relay(self.broker, self._all_keys, tags=[self.keys.tag])
        return total

    def _reserve(self, n: int, keepalive_ms: int | None) -> leases.Reservation:
        return self.broker.run(leases.reserve(self.keys, n, token=new_token(), keepalive_ms=keepalive_ms))

    def _await(self, n: int, keepalive_ms: int | None, ends: float, found: leases.Reservation) -> leases.Reservation:
        listener = WakeListener(self.broker, [self.keys])
        try:
            while not found.attempts and (left := ends - monotonic()) > 0:
                foretold = left if found.next_event_ms is None else (found.next_event_ms - found.now_ms) / 1000
                listener.wait(min(left, foretold, _RECHECK_S))
                found = self._reserve(n, keepalive_ms)
        finally:
            listener.close()
        return found

    def _all_dead(self) -> Iterator[str]:
        total = self.counts()["dead"]
        found: list[str] = []
        while len(found) < total and (page := self.ids("dead", start=len(found), limit=1000)):
            found += page
        return iter(found[:total])

    def _enqueue(self, call: Call[Any]) -> None:
        if self._registered:
            self.broker.run(call)
        else:
            self.broker.run_many([queues.register(self._all_keys, [self.name]), call])
            self._registered = True

    def _task(self, item: Item) -> Task:
        delay_ms, at_ms = due(item.in_, item.at)
        raw, encoding = write_payload(item.payload, self._line.payload_limit)
        if item.max_attempts is not None:
            check_whole(item.max_attempts, "max_attempts", minimum=0)
        return Task(
            id=new_id(self.keys.tag) if item.id is None else check_id(item.id),
            queue=self.name,
            payload=raw,
            encoding=encoding,
            priority=check_priority(item.priority),
            delay_ms=delay_ms,
            at_ms=at_ms,
            keepalive_ms=milliseconds(item.keepalive, "keepalive"),
            max_attempts=item.max_attempts,
            headers=None if item.headers is None else write_headers(item.headers),
        )
