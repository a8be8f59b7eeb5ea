"""Recounts everything below a hash tag from its raw keys: what a set says, another key has to say as well.

`queue_audit` judges one queue from outside, as a soak can; this audit knows every key of docs/reference/keys.md and
needs a server at rest. It is for storms of operations on many features at once.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import redis

from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.soak.audit import OWN, OWN_OF_KEYS, STATES, WAYS_OUT
from tests.support.contents import contents

_PARTITIONED = 2.0**46
_BY_PARTITION = {b"fair", b"key_inflight", b"key_tokens"}
_LASTING = {*OWN} - {"batches", "finishing", "holders", "inflight", "blocked", "unsure"}
"""Keys of a queue that may stay when it is empty. What stays in those taken out takes up a place for ever."""
_LASTING_OF_KEYS = tuple(one for one in OWN_OF_KEYS if one not in ("partition:", "rotation:"))


class TagAudit:
    """The keys of some queues of one tag."""

    def __init__(self, raw: redis.Redis, keys: Keys, queues: Iterable[str]) -> None:
        self._raw = raw
        self._queues = [keys.queue(name) for name in queues]
        self._base = self._queues[0].base
        self._all: Mapping[bytes, Any] = contents(raw, keys.prefix)
        self._sets = {
            (queue.name, state): {one.decode(): score for one, score in self._all.get(getattr(queue, state)) or ()}
            for queue in self._queues
            for state in (*STATES, "done", "leases")
        }

    def problems(self) -> Iterator[str]:
        """Yields each inconsistency."""
        yield from self._of_hashes()
        for queue in self._queues:
            yield from self._of_leases(queue)
            yield from self._of_totals(queue)
            yield from self._of_limits(queue)
            yield from self._of_partitions(queue)
            yield from self._of_errors(queue)

    def left_over(self) -> Iterator[str]:
        """Yields keys that may not be there when nothing but dead and finished tasks is."""
        kept = {f"task:{one}".encode() for (_, state), ids in self._sets.items() for one in ids if state != "leases"}
        own = {queue.waiting.removesuffix(b"waiting") for queue in self._queues}
        for key in self._all:
            rest = key.removeprefix(self._base)
            if not key.startswith(self._base) or rest in kept or rest == b"waiters":
                continue
            prefix = next((one for one in own if key.startswith(one)), None)
            if prefix is not None:
                word = key.removeprefix(prefix).decode()
                if word not in _LASTING and not word.startswith(_LASTING_OF_KEYS):
                    yield f"{key.decode()} is left over: {self._all[key]}"
            elif self._raw.pttl(key) == -1:
                yield f"{key.decode()} stays for ever: {self._all[key]}"

    def _of_hashes(self) -> Iterator[str]:
        places = defaultdict[str, list[tuple[str, str]]](list)
        for (queue, state), ids in self._sets.items():
            for one in ids if state in STATES else ():
                places[one].append((queue, state))
        hashes = self._tasks()
        for one, where in places.items():
            if len(where) > 1:
                yield f"{one} is in {where}"
            elif one not in hashes:
                yield f"{one} is in {where} and has no hash"
            elif hashes[one].get(b"queue", b"").decode() != where[0][0]:
                yield f"{one} is in {where}, and its hash names {hashes[one].get(b'queue')!r}"
            elif where[0][1] != "dead" and self._expires(one):
                yield f"{one} is in {where}, and its hash expires"
        done = {one for (_, state), ids in self._sets.items() if state == "done" for one in ids}
        for one in hashes.keys() - places.keys() - done:
            if not self._expires(one):
                yield f"{one} is in no set, and its hash stays for ever: {hashes[one]}"

    def _tasks(self) -> dict[str, dict[bytes, bytes]]:
        start = self._base + b"task:"
        return {key.removeprefix(start).decode(): fields for key, fields in self._all.items() if key.startswith(start)}

    def _expires(self, task_id: str) -> bool:
        return bool(self._raw.pttl(self._base + b"task:" + task_id.encode()) != -1)

    def _of_leases(self, queue: QueueKeys) -> Iterator[str]:
        pending, leases = self._sets[queue.name, "pending"], self._sets[queue.name, "leases"]
        if beyond := leases.keys() - pending.keys():
            yield f"{queue.name}: {beyond} have a lease number and are not pending"
        if without := pending.keys() - leases.keys():
            yield f"{queue.name}: {without} are pending without a lease number"

    def _of_totals(self, queue: QueueKeys) -> Iterator[str]:
        totals = {name.decode(): int(count) for name, count in (self._all.get(queue.counters) or {}).items()}
        there = sum(len(self._sets[queue.name, state]) for state in STATES)
        entered = sum(totals.get(name, 0) for name in ("enqueued", "moved_in"))
        left = sum(totals.get(name, 0) for name in WAYS_OUT)
        if entered != left + there:
            yield f"{queue.name}: {entered} entered, {left} left, {there} are there: {totals}"

    def _of_limits(self, queue: QueueKeys) -> Iterator[str]:
        prefix = queue.waiting.removesuffix(b"waiting")
        holders, inflight = self._all.get(prefix + b"holders") or {}, self._all.get(prefix + b"inflight") or {}
        if Counter(holders.values()) != {name: int(count) for name, count in inflight.items()}:
            yield f"{queue.name}: {holders} hold leases, and {inflight} are counted"
        if stale := {one.decode() for one in holders} - self._sets[queue.name, "pending"].keys():
            yield f"{queue.name}: {stale} count for their partitions, and are not pending"

    def _of_partitions(self, queue: QueueKeys) -> Iterator[str]:
        """A task that waits in a partition is in exactly that of its key, and the partition gets its turn."""
        prefix, waiting = queue.waiting.removesuffix(b"waiting"), self._sets[queue.name, "waiting"]
        indexed, bands = defaultdict[str, list[bytes]](list), set[tuple[bytes, bytes]]()
        for key, members in self._all.items():
            band, _, partition = key.removeprefix(prefix + b"partition:").partition(b":")
            for task_id, place in members if key.startswith(prefix + b"partition:") else ():
                if waiting.get(task_id.decode()) == _PARTITIONED + place:  # else it is stale, and dropped when read
                    indexed[task_id.decode()].append(partition)
                    bands.add((band, partition))
        for one in (one for one, score in waiting.items() if score >= _PARTITIONED / 2):
            key = (self._all.get(self._base + b"task:" + one.encode()) or {}).get(b"key", b"")
            if indexed[one] != [key]:
                yield f"{queue.name}: {one} has partition {key!r} and waits in {indexed[one]}"
        if (self._all.get(queue.settings) or {}).keys() & _BY_PARTITION:
            barred = {one for key in (b"blocked", b"unsure") for one, _ in self._all.get(prefix + key) or ()}
            for band, partition in bands:
                turns = {one for one, _ in self._all.get(prefix + b"rotation:" + band) or ()}
                if partition not in barred | turns:
                    yield f"{queue.name}: partition {partition!r} of band {band!r} has tasks and gets no turn"

    def _of_errors(self, queue: QueueKeys) -> Iterator[str]:
        prefix = queue.waiting.removesuffix(b"waiting")
        groups = {one for one, _ in self._all.get(prefix + b"errors") or ()}
        dead = self._sets[queue.name, "dead"]
        named = Counter(
            (self._all.get(self._base + b"task:" + one.encode()) or {}).get(b"group", b"") for one in dead
        )
        for group in groups:
            fields = self._all.get(prefix + b"errors:" + group)
            if fields is None:
                yield f"{queue.name}: group {group!r} has no hash"
            elif int(fields.get(b"dead", 0)) != named[group]:
                yield f"{queue.name}: group {group!r} counts {fields.get(b'dead')} dead, and {named[group]} are"
        for key in self._all:
            if key.startswith(prefix + b"errors:") and key.removeprefix(prefix + b"errors:") not in groups:
                yield f"{key.decode()} is in no index"
