"""Recounts a queue from its keys and lists inconsistencies. Each reading is one transaction, so workers may run."""

from collections.abc import Iterable, Iterator

import redis

from jobrunner.broker.keys import QueueKeys
from jobrunner.soak.audit import OWN, OWN_OF_KEYS, STATES, WAYS_OUT, in_pieces

_PIECE = 1000
_OF_TAG = ("task:", "unique:", "join:", "batch:", "sent:")


def census(raw: redis.Redis, queue: QueueKeys) -> dict[str, list[str]]:
    """The ids in each set of the queue, read in one transaction."""
    pipeline = raw.pipeline(transaction=True)
    for state in STATES:
        pipeline.zrange(getattr(queue, state), 0, -1)
    found = pipeline.execute()
    return {state: [raw_id.decode() for raw_id in ids] for state, ids in zip(STATES, found, strict=True)}


def problems(raw: redis.Redis, queue: QueueKeys) -> list[str]:
    """The inconsistencies of a queue at rest; empty when there are none.

    No id is in two sets, every member has a hash, every hash of a task that is not finished is in one set, only
    pending tasks have leases, and the totals agree: enqueued + moved in = out of the queue + still there.
    """
    found = []
    sets = census(raw, queue)
    ids = [task_id for members in sets.values() for task_id in members]
    if twice := len(ids) - len(set(ids)):
        found.append(f"{twice} ids are in two sets")
    live = set(_live(raw, queue))
    if without := set(ids) - live:
        found.append(f"{len(without)} members have no hash: {_some(without)}")
    if stray := live - set(ids):
        found.append(f"{len(stray)} unfinished tasks are in no set: {_some(stray)}")
    leased = {raw_id.decode() for raw_id in raw.zrange(queue.leases, 0, -1)}
    if idle := leased - set(sets["pending"]):
        found.append(f"{len(idle)} leases of tasks that are not pending: {_some(idle)}")
    counted = raw.hgetall(queue.counters)
    totals = {name.decode(): int(total) for name, total in counted.items() if name != b"unused"}
    entered = sum(totals.get(name, 0) for name in ("enqueued", "moved_in"))
    left = sum(totals.get(name, 0) for name in WAYS_OUT)
    if entered != left + len(ids):
        found.append(f"{entered} entered, but {left} left and {len(ids)} are there: {totals}")
    return found


def strays(raw: redis.Redis, queue: QueueKeys) -> list[str]:
    """Keys of the queue's hash tag that are of no known kind, and locks without a time to live, which stay for ever.

    A lock that expires during the scan does not count.
    """
    own = queue.waiting[: -len(b"waiting")]
    found = []
    for key in raw.scan_iter(match=_escaped(queue.base) + b"*", count=1000):
        rest = key[len(queue.base) :].decode(errors="backslashreplace")
        if key.startswith(own):
            rest = key[len(own) :].decode(errors="backslashreplace")
            known = rest in OWN or rest.startswith(OWN_OF_KEYS)
        else:
            known = rest in ("outbox", "waiters") or rest.startswith(_OF_TAG)
        if not known or (rest.startswith(("unique:", "join:", "sent:")) and raw.ttl(key) == -1):
            found.append(key.decode(errors="backslashreplace"))
    return found


def _live(raw: redis.Redis, queue: QueueKeys) -> Iterator[str]:
    name = queue.name.encode()
    for some in in_pieces(raw.scan_iter(match=_escaped(queue.tasks) + b"*", count=_PIECE), _PIECE):
        pipeline = raw.pipeline(transaction=False)
        for key in some:
            pipeline.hget(key, "queue")
            pipeline.pttl(key)
        found = pipeline.execute()
        for key, owner, left in zip(some, found[::2], found[1::2], strict=True):
            if owner == name and left == -1:
                yield key[len(queue.tasks) :].decode()


def _escaped(key: bytes) -> bytes:
    return key.replace(b"[", b"\\[").replace(b"*", b"\\*").replace(b"?", b"\\?")


def _some(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids)[:3])
