"""Repair of batches without a driver, by any process: rolls decided ones forward, puts orphaned items back in line.

An orphaned item is in pending for a batch that no longer exists. Nothing that this version does leaves such items.
Earlier versions topped up halves of a failed batch: the new items belonged to no batch, and stayed in pending for the
week that a batch holds its members. Their lists of members were never removed. A batch whose hash is deleted by hand
leaves such items, too.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls import leases as calls
from jobrunner.broker.calls.batches import ADVANCED_AT_ONCE
from jobrunner.broker.calls.leases import Reclaimed
from jobrunner.broker.keys import Keys, QueueKeys, is_queue, split_any_queue
from jobrunner.client.adaptive_slices import AdaptiveSlice
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.clock import monotonic

_HELD_MS = 1_000
"""Lease of a batch that is rolled forward here."""
_FIRST = "-1"
"""Below every lease number."""
_SCANNED = 1_000
"""Keys of one SCAN: it blocks the server for some 0.3 ms."""
_ENDING = b":members"
_GOING_ON = (b"open", b"committed", b"split")


def roll_forward(batches: Batches, *, slices: int) -> int:
    """Carries on with decided batches whose holder is gone, for up to so many slices. Returns how many it did.

    Open batches are left alone, but for writes that were abandoned: they are removed.
    """
    used = 0
    while used < slices and (found := batches.claim(("finishing",), _HELD_MS)):
        lease = BatchLease(batches, found, _HELD_MS)
        if found.state == "open":
            lease.end("dissolved")
        while used < slices:
            used += 1
            step = lease.advance()
            if step.done or step.full:
                break
    return used


def reclaim_items(broker: Broker, keys: QueueKeys, batch_id: str = "") -> int:
    """Puts all items of a queue that belong to no open batch back in line; returns how many. With `batch_id` those of
    that batch, if it is not open. Runs in slices that block the server for about 1.5 ms each."""
    pace, after, items = AdaptiveSlice(broker, ADVANCED_AT_ONCE), _FIRST, 0
    while after:
        step = pace.run(partial(_slice, keys, batch_id, after), lambda reply: reply.items)
        items, after = items + step.items, step.after
    return items


def _slice(keys: QueueKeys, batch_id: str, after: str, count: int) -> Call[Reclaimed]:
    return calls.reclaim(keys, batch_id=batch_id, after=after, count=count)


class MemberLists:
    """Removes the lists of members that no batch uses, found by a SCAN of the server. Puts the items that only such a
    list names back in line first.

    `queues` are the full names of all queues. `tag` limits the search to one pipeline, else all are searched.
    """

    def __init__(self, broker: Broker, keys: Keys, queues: Sequence[str], tag: str | None = None) -> None:
        self._broker = broker
        self._keys = keys
        self._tags: dict[str, list[str]] = {}
        for name in filter(is_queue, queues):
            self._tags.setdefault(split_any_queue(name)[0], []).append(name)
        if tag is not None:
            self._tags = {tag: self._tags.get(tag, [])}
        self._steps = self._run()
        self.items = 0
        """How many items went back in line."""

    def step(self) -> bool:
        """One SCAN call and what it found. Returns whether there is more."""
        return next(self._steps, None) is not None

    def run(self, at_most_s: float) -> None:
        """Steps until it is through, or for so long."""
        ends = monotonic() + at_most_s
        while self.step() and monotonic() < ends:
            pass

    def _run(self) -> Iterator[bool]:
        base = self._keys.prefix.encode() + b":{"
        pattern = _escaped(base) + b"*}:batch:*:members"
        found = re.compile(re.escape(base) + rb"([^{}]+)\}:batch:(.+):members")
        for node in self._broker.nodes():
            cursor = b"0"
            while True:
                cursor, names = node.run(_scan(cursor, pattern))
                for name in names:
                    if match := found.fullmatch(name):
                        self._look_at(name, match[1].decode("utf-8", "replace"), match[2].decode("utf-8", "replace"))
                yield True
                if cursor == b"0":
                    break

    def _look_at(self, name: bytes, tag: str, batch_id: str) -> None:
        """Asks every queue of the tag, because only the hash of a batch, which may be gone, names its queue."""
        queues = [self._keys.queue(queue) for queue in self._tags.get(tag, ())]
        if not queues or self._is_whole(name.removesuffix(_ENDING), batch_id):
            return
        replies = self._broker.run_many([calls.reclaim(one, batch_id=batch_id, count=1) for one in queues])
        for queue, reply in zip(queues, replies, strict=True):
            self.items += reply.items
            if reply.after:
                self.items += reclaim_items(self._broker, queue, batch_id)
        if not any(reply.list_in_use for reply in replies):
            self._broker.run(command("UNLINK", name, read=int))

    def _is_whole(self, batch: bytes, batch_id: str) -> bool:
        """Whether the list is that of a batch that goes on, or whose parts do."""
        state, root = self._broker.run(command("HMGET", batch, "state", "list", read=list))
        return state in _GOING_ON and root == batch_id.encode()


def _scan(cursor: bytes, pattern: bytes) -> Call[tuple[bytes, list[bytes]]]:
    """A user without the right to SCAN, as the roles of docs/security.md have none, finds nothing."""
    words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED, "TYPE", "list")
    return command(*words, may_fail=True, read=lambda reply: (b"0", []) if reply is None else (reply[0], reply[1]))


def _escaped(key: bytes) -> bytes:
    return re.sub(rb"([\[\]*?\\])", rb"\\\1", key)
