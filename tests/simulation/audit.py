"""Judges what is left when a run is over: every lease has ended, and a worker without faults has emptied the queues."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from jobrunner.broker.keys import QueueKeys
from jobrunner.soak.audit import OWN, OWN_OF_KEYS, STATES, WAYS_OUT
from tests.simulation.checks import Seen

_LASTING = {*OWN, "transfers", "balanced"} - {"batches", "finishing", "holders", "inflight"}
"""Keys of a queue that may stay when it is empty; "transfers" and "balanced" are of shards. Those taken out have an
entry for each batch and for each lease of a key with a limit: what stays there takes up a place for ever."""
_WAYS_OUT = tuple(name.encode() for name in WAYS_OUT)
_LASTING_OF_KEYS = tuple(name.encode() for name in OWN_OF_KEYS)
Contents = Mapping[bytes, Any]
"""Type, ms to live and content of each key, as `SimulatedServer.contents` returns them."""


def problems(
    contents: Contents, queues: Iterable[QueueKeys], tasks: Mapping[bytes, Seen], acknowledged: Iterable[str]
) -> Iterator[str]:
    """Yields each violation. `tasks` are all that were added, `acknowledged` the ids that a push has returned."""
    dead: set[bytes] = set()
    added = moved = ended = 0
    for queue in queues:
        sets = {state: _members(contents, getattr(queue, state)) for state in STATES}
        yield from _of_queue(contents, queue, sets)
        dead.update(sets["dead"])
        totals = _totals(contents, queue)
        added += totals.get(b"enqueued", 0)
        moved += totals.get(b"moved_out", 0) - totals.get(b"moved_in", 0)
        ended += totals.get(b"succeeded", 0)
    yield from _of_tasks(tasks, dead, added, moved, ended)
    for task_id in acknowledged:
        if task_id.encode() not in tasks:
            yield f"task {task_id} was acknowledged, and never came to the server"
    yield from _strays(contents, list(queues))


def _of_tasks(tasks: Mapping[bytes, Seen], dead: set[bytes], added: int, moved: int, ended: int) -> Iterator[str]:
    counted = {task_id: seen for task_id, seen in tasks.items() if not seen.is_of_old_queue}
    if added != len(counted):
        yield f"the totals have {added} tasks enqueued, and {len(counted)} were"
    if moved:
        yield f"{moved} more tasks left by a move than came by one"
    succeeded = 0
    for task_id, seen in counted.items():
        is_done = seen.outcome in ("succeeded", "dropped", "cancelled", "removed")
        succeeded += seen.outcome == "succeeded"
        if is_done == (task_id in dead):
            yield f"task {task_id.decode()} {'ended and is dead' if is_done else 'has neither ended nor is it dead'}"
    if ended != succeeded:
        yield f"the totals have {ended} tasks succeeded, and {succeeded} did"


def _of_queue(contents: Contents, queue: QueueKeys, sets: Mapping[str, list[bytes]]) -> Iterator[str]:
    for state in ("waiting", "scheduled", "pending"):
        if sets[state]:
            yield f"{sets[state][0].decode()} is still {state} in {queue.name}"
    ids = [task_id for members in sets.values() for task_id in members]
    if len(ids) != len(set(ids)):
        yield f"an id is in two sets of {queue.name}"
    for task_id in ids:
        if queue.tasks + task_id not in contents:
            yield f"{task_id.decode()} is in a set of {queue.name} and has no hash"
    if leased := _members(contents, queue.leases):
        yield f"{leased[0].decode()} has a lease in {queue.name} and is not pending"
    totals = _totals(contents, queue)
    entered = sum(totals.get(name, 0) for name in (b"enqueued", b"moved_in"))
    left = sum(totals.get(name, 0) for name in _WAYS_OUT)
    if entered != left + len(ids):
        yield f"{entered} entered {queue.name}, but {left} left and {len(ids)} are there"


def _strays(contents: Contents, queues: list[QueueKeys]) -> Iterator[str]:
    dead = {queue.tasks + task_id for queue in queues for task_id in _members(contents, queue.dead)}
    own, bases = tuple(queue.waiting[: -len(b"waiting")] for queue in queues), tuple(queue.base for queue in queues)
    lasting = frozenset().union(*map(_lasting, own))
    for key, (_, left_ms, _) in contents.items():
        if key in lasting:
            continue
        if key.startswith(own):
            if not key.startswith(tuple(prefix + name for prefix in own for name in _LASTING_OF_KEYS)):
                yield f"{key.decode()} is left over"
        elif left_ms == -1 and key not in dead and key.startswith(bases):
            yield f"{key.decode()} is left over, and stays for ever"


@cache
def _lasting(prefix: bytes) -> frozenset[bytes]:
    return frozenset(prefix + name.encode() for name in _LASTING)


def _members(contents: Contents, key: bytes) -> list[bytes]:
    return contents[key][2][::2] if key in contents else []


def _totals(contents: Contents, queue: QueueKeys) -> dict[bytes, int]:
    words = contents[queue.counters][2] if queue.counters in contents else []
    return {name: int(total) for name, total in zip(words[::2], words[1::2], strict=True) if name != b"unused"}
