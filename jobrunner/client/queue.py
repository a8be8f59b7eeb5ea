"""Queues as queues: push, reserve, report. For programs that want the queue and not the job class."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases, queues, tasks
from jobrunner.broker.call import Call
from jobrunner.broker.keys import Keys, QueueKeys, check_id
from jobrunner.clock import from_ms
from jobrunner.codec import decode, encode
from jobrunner.errors import InvalidOption, LeaseLost, NotReserved, PayloadTooLarge, UsageError
from jobrunner.retry import Backoff, seconds
from jobrunner.settings import Duration, QueueSettings, check_options, check_whole
from jobrunner.task import Task, check_priority, due, new_id

_tokens = itertools.count(1)
_STATES = ("waiting", "scheduled", "pending", "dead")


def new_token() -> str:
    """A name for one reserve call that no other call of any process has."""
    return f"{_process_token()}{next(_tokens):x}"


def _process_token() -> str:
    if _token_of.get("pid") != str(os.getpid()):
        _token_of.update(pid=str(os.getpid()), nonce=os.urandom(6).hex())
    return _token_of["nonce"]


_token_of: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A payload with options, for `push_many`; as popped, with the id it has."""

    payload: Any
    in_: Duration | None = None
    at: datetime | float | None = None
    priority: int | None = None
    keepalive: Duration | None = None
    max_attempts: int | None = None
    id: str | None = None
    headers: Mapping[str, str] | None = None

    def __init__(self, payload: Any, **options: Any) -> None:
        check_options(options, self.__slots__[1:], "option of an item")
        object.__setattr__(self, "payload", payload)
        for name in self.__slots__[1:]:
            object.__setattr__(self, name, options.get(name))


@dataclass(frozen=True, slots=True)
class Popped:
    """An item taken by `pop`: it is out of the queue and will not come back."""

    id: str
    payload: Any
    headers: dict[str, str]


class Lease:
    """A reserved item. Its reports raise NotReserved or LeaseLost when the lease is over; False means it is gone."""

    def __init__(self, queue: "Queue", attempt: Attempt) -> None:
        self._queue = queue
        self._attempt = attempt
        self.id = attempt.id
        self.token = attempt.token
        self.attempts = attempt.number
        self.retry_count = attempt.retry_count
        self.deadline: datetime = attempt.deadline
        self.headers: dict[str, str] = read_headers(attempt.headers)

    def __repr__(self) -> str:
        return f"Lease({self.id!r}, attempts={self.attempts}, deadline={self.deadline.isoformat()})"

    @property
    def payload(self) -> Any:
        """What was pushed: the same bytes, or the same JSON value. Raises ValueError for a damaged JSON payload."""
        return read_payload(self._attempt.payload, self._attempt.encoding)

    @property
    def enqueue_time(self) -> datetime:
        """When the item was first pushed."""
        return self._attempt.enqueue_time

    def commit(self, result: Any = None) -> bool:
        """Done: the item leaves the queue. False when it is already gone."""
        stored = b"" if result is None else encode(result, what="result")
        return self._report(leases.commit(self._keys, [(self.id, self.token, 0, "succeeded", stored)])) != "gone"

    def rollback(self, delay: Duration | None = None, error: str = "") -> bool:
        """Failed: tried again after `delay` (None: the queue's backoff), or dead when its attempts are spent."""
        if delay is None:
            wait_s = self._queue.settings.backoff.delay(self.retry_count + 1)
        else:
            wait_s = seconds(delay, option="delay")
        report = (self.id, self.token, round(wait_s * 1000), "retry", error)
        return self._report(leases.fail(self._keys, [report])) != "gone"

    def release(self) -> bool:
        """Back to its place in line; the attempt is not spent."""
        return self._report(leases.release(self._keys, [(self.id, self.token, "")])) != "gone"

    def extend(self) -> bool:
        """Renews the lease for its keepalive from now; `deadline` tells the new end."""
        word = self._report(leases.extend(self._keys, [(self.id, self.token, self._attempt.keepalive_ms)]))
        if word != "gone":
            self.deadline = from_ms(float(word.lstrip("!")))
        return word != "gone"

    def move(
        self,
        queue: str,
        *,
        payload: Any = msgspec.UNSET,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        priority: int | None = None,
        max_hops: int = 0,
    ) -> bool:
        """Into another queue of the same pipeline in one step, with a new payload when one is given."""
        to = self._queue.neighbour(queue)
        fields: list[bytes | str] = []
        if payload is not msgspec.UNSET:
            stored, encoding = self._queue.write_payload(payload)
            fields += ["payload", stored, "encoding", encoding]
        if headers is not None:
            fields += ["headers", write_headers({**self.headers, **headers})]
        call = leases.move(
            self._keys,
            to,
            task_id=self.id,
            token=self.token,
            fields=fields,
            priority=check_priority(priority),
            delay_ms=seconds(delay, option="delay") * 1000,
            max_hops=max_hops,
        )
        word = check_verdict(self._queue.broker.run(call), self.id)
        if word == "hops":
            raise UsageError(f"item {self.id} made {max_hops} hops, the most allowed; look for a loop without an end")
        return word != "gone"

    @property
    def _keys(self) -> QueueKeys:
        return self._queue.keys

    def _report(self, call: Call[list[str]]) -> str:
        return check_verdict(self._queue.broker.run(call)[0], self.id)


class Queue:
    """One queue by name. Reading a queue that was never used finds it empty and creates nothing."""

    def __init__(self, broker: Broker, keys: Keys, name: str, payload_limit: int) -> None:
        self.name = name
        self.broker = broker
        self.keys = keys.queue(name)
        self._all_keys = keys
        self._limit = payload_limit
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

    def reserve(self, n: int = 1, *, keepalive: Duration | None = None) -> list[Lease]:
        """Up to `n` items, first in line, each under a lease; [] when empty or paused."""
        check_whole(n, "n", minimum=1)
        call = leases.reserve(self.keys, n, token=new_token(), keepalive_ms=_milliseconds(keepalive, "keepalive"))
        return [Lease(self, attempt) for attempt in self.broker.run(call).attempts]

    def pop(self, n: int = 1) -> list[Popped]:
        """Takes up to `n` items out for good: at most once, a crash after it loses them."""
        check_whole(n, "n", minimum=1, maximum=1000)
        return [
            Popped(raw[0].decode(), read_payload(raw[2], raw[4]), read_headers(raw[3]))
            for raw in self.broker.run(leases.pop(self.keys, n))
        ]

    def delete(self, task_id: str) -> bool:
        """Acknowledges a reserved item by id alone. False when there is no such item; NotReserved when nobody holds it."""
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
        self._enqueue(queues.configure(self.keys, write_settings(options)))

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
        return total

    def neighbour(self, name: str) -> QueueKeys:
        """The keys of another queue of the same pipeline, by short or full name. Raises UsageError for any other."""
        full = name if "/" in name or "/" not in self.name else f"{self.keys.tag}/{name}"
        keys = self._all_keys.queue(full)
        if keys.tag != self.keys.tag:
            raise UsageError(f"queue {full!r} is not of pipeline {self.keys.tag!r}: a move is atomic within one only")
        return keys

    def write_payload(self, payload: Any) -> tuple[bytes, str]:
        """(bytes, encoding) of a payload. Raises PayloadTooLarge."""
        raw, encoding = (payload, "") if isinstance(payload, bytes) else (encode(payload, what="payload"), "json")
        check_size(raw, self._limit)
        return raw, encoding

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
        raw, encoding = self.write_payload(item.payload)
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
            keepalive_ms=_milliseconds(item.keepalive, "keepalive"),
            max_attempts=item.max_attempts,
            headers=None if item.headers is None else write_headers(item.headers),
        )


def check_verdict(word: str, task_id: str) -> str:
    """Returns what a report was answered. Raises NotReserved or LeaseLost for one that came too late."""
    if word == "not_reserved":
        raise NotReserved(f"nobody holds task {task_id}: its lease ended or never was; its report changed nothing")
    if word == "lost":
        raise LeaseLost(f"task {task_id} is held by another attempt, or was moved; this report changed nothing")
    return word


def check_size(payload: bytes, limit: int) -> None:
    """Raises PayloadTooLarge for more bytes than the limit."""
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"the payload has {len(payload)} bytes, the limit is {limit}; store it elsewhere and send a reference, "
            "or raise payload_limit"
        )


def read_payload(raw: bytes | None, encoding: bytes | None) -> Any:
    """What was pushed."""
    return decode(raw or b"") if encoding == b"json" else raw


def read_headers(raw: bytes | None) -> dict[str, str]:
    """Headers of a task; damaged ones read as none."""
    try:
        return msgspec.json.decode(raw, type=dict[str, str]) if raw else {}
    except msgspec.MsgspecError:
        return {}


def write_headers(headers: Mapping[str, str]) -> bytes:
    """JSON of headers. Raises InvalidOption unless they are strings by name."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"header {name!r}: {value!r}: give strings")
    return msgspec.json.encode(dict(headers))


def write_settings(options: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The fields of the settings hash; '' for an option that goes back to its default."""
    check_options(options, QueueSettings.__slots__, "setting of a queue")
    fields: dict[str, str | int | float] = {}
    for name, value in options.items():
        field = _STORED_AS.get(name, name)
        if value is None:
            fields[field] = ""
        elif name == "backoff":
            if not isinstance(value, Backoff):
                raise InvalidOption(f"backoff={value!r}: give a Backoff(...)")
            shape = [value.base, value.factor, value.cap, value.jitter]
            fields[field] = msgspec.json.encode(shape).decode()
        elif name in ("max_attempts", "dead_max"):
            fields[field] = check_whole(value, name, minimum=0)
        else:
            fields[field] = _milliseconds(value, name) or 1
    return fields


_STORED_AS = {"keepalive": "keepalive_ms", "dead_ttl": "dead_ttl_ms"}


def read_settings(stored: Mapping[str, bytes]) -> QueueSettings:
    """The settings in force; a damaged field reads as its default."""
    read: dict[str, Any] = {}
    for name in QueueSettings.__slots__:
        raw = stored.get(_STORED_AS.get(name, name))
        if raw is None:
            continue
        try:
            if name == "backoff":
                read[name] = Backoff(*msgspec.json.decode(raw, type=list[float]))
            else:
                read[name] = float(raw) / 1000 if name in _STORED_AS else int(raw)
        except (ValueError, TypeError, msgspec.MsgspecError):
            continue
    return QueueSettings(**read)


def _milliseconds(value: timedelta | float | None, option: str) -> int | None:
    if value is None:
        return None
    length_s = seconds(value, option=option)
    if length_s <= 0:
        raise InvalidOption(f"{option}={value!r}: give more than 0")
    return max(round(length_s * 1000), 1)
