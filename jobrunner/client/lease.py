"""A reserved item and the reports on it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases, queues
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.item import check_verdict, read_headers, read_payload, write_headers, write_payload
from jobrunner.client.queue_settings import read_settings
from jobrunner.clock import from_ms
from jobrunner.codec import encode
from jobrunner.errors import UsageError
from jobrunner.retry import Backoff, seconds
from jobrunner.settings import Duration
from jobrunner.task import check_priority


class Line:
    """What a lease knows of the queue it is from."""

    def __init__(self, broker: Broker, keys: Keys, name: str, payload_limit: int) -> None:
        self.broker = broker
        self.keys = keys.queue(name)
        self.payload_limit = payload_limit
        self._all_keys = keys

    def backoff(self) -> Backoff:
        """The backoff the queue is configured with."""
        return read_settings(self.broker.run(queues.settings(self.keys))).backoff

    def neighbour(self, name: str) -> QueueKeys:
        """The keys of another queue of the same pipeline, by short or full name. Raises UsageError for any other."""
        full = name if "/" in name or "/" not in self.keys.name else f"{self.keys.tag}/{name}"
        keys = self._all_keys.queue(full)
        if keys.tag != self.keys.tag:
            raise UsageError(f"queue {full!r} is not of pipeline {self.keys.tag!r}: a move is atomic within one only")
        return keys


class Lease:
    """A reserved item. Its reports raise NotReserved or LeaseLost when the lease is over; False means it is gone."""

    def __init__(self, line: "Line", attempt: Attempt) -> None:
        self._line = line
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
        report = (self.id, self.token, 0, "succeeded", stored, self._attempt.then or b"")
        return self._report(leases.commit(self._keys, [report])) != "gone"

    def rollback(self, delay: Duration | None = None, error: str = "") -> bool:
        """Failed: tried again after `delay` (None: the queue's backoff), or dead when its attempts are spent."""
        own = self._line.backoff().delay(self.retry_count + 1) if delay is None else seconds(delay, option="delay")
        report = (self.id, self.token, round(own * 1000), "retry", error)
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
        to = self._line.neighbour(queue)
        fields: list[bytes | str] = []
        if payload is not msgspec.UNSET:
            stored, encoding = write_payload(payload, self._line.payload_limit)
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
        word = check_verdict(self._line.broker.run(call), self.id)
        if word == "hops":
            raise UsageError(f"item {self.id} made {max_hops} hops, the most allowed; look for a loop without an end")
        return word != "gone"

    @property
    def _keys(self) -> QueueKeys:
        return self._line.keys

    def _report(self, call: Call[list[str]]) -> str:
        return check_verdict(self._line.broker.run(call)[0], self.id)
