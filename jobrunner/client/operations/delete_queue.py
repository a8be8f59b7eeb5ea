"""Deletes a queue with all its keys and registry entries, for Queue and AsyncQueue.

Each step leaves a consistent, smaller queue; the last step finds the queue empty and deletes the rest in one script. A
task that is added meanwhile is deleted too, or exists afterwards, in a registered queue.

On a cluster the registry of all queues is not on the node of a queue, so a queue leaves it in steps. Invariant: a queue
with any key is in the registry, or will be within LEAVING_MS and a scan of the leader. First, a note says that the
queues are leaving; then a script deletes each queue, unless it is used; then the queues leave the registry, and return
if they were used meanwhile. The note stays, and the leader checks again: a client that registered a queue just before
it left may write on it a moment after the first check. The note also stays when a deletion is refused, as it may be of
an earlier deletion, whose process died when the queue had left the registry. A client that finds a queue new registers
it once more, so in practice the queue is back at once.
"""

from collections.abc import Sequence
from typing import Any

from jobrunner.broker.call import Call, command
from jobrunner.broker.calls import events, queues
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.flow_relay import relaying
from jobrunner.client.operations.operation import Operation, ask, noting
from jobrunner.errors import QueueNotEmpty
from jobrunner.periodic import KNOWN_FOR_MS, read_added, read_definition

LEAVING_MS = 60_000
"""The age of a note at which the leader checks the queue again: longer than a client takes from registering a queue to
writing on it."""


def leave(keys: Keys, names: Sequence[str], deleting: Call[list[str]], now_ms: float) -> Operation[list[str]]:
    """Returns the names that the replies of `deleting`, one per name, report as deleted."""
    yield [queues.leaving(keys, names, now_ms)]
    (words,) = yield [deleting]
    gone = [name for name, word in zip(names, words, strict=True) if word == "forgotten"]
    if gone:
        _, *used = yield queues.left(keys, gone)
        yield from _register_again(keys, gone, used)
    return gone


def return_if_used(keys: Keys, names: Sequence[str]) -> Operation[None]:
    """Checks again after the removal: a queue used meanwhile is registered, any other is not."""
    used = yield [queues.exists(keys.queue(name)) for name in names]
    yield from _register_again(keys, names, used)
    yield [queues.not_leaving(keys, names)]


def _register_again(keys: Keys, names: Sequence[str], used: Sequence[Any]) -> Operation[None]:
    if back := [name for name, is_used in zip(names, used, strict=True) if is_used]:
        yield queues.register(keys, back)


_HELD = ("waiting", "scheduled", "pending", "dead", "done (history)", "batches")
_TELLS = 10


def delete_queue(ref: QueueRef, *, force: bool) -> Operation[bool]:
    """Returns whether the queue existed. Raises QueueNotEmpty."""
    keys, name = ref.all_keys, ref.name
    now_ms, (known,), exists = yield [
        server_time(),
        queues.are_registered(keys, [name]),
        queues.exists(ref.keys),
    ]
    jobs, states = yield from _periodic_jobs(ref, now_ms, force)
    if not (known or exists or states):
        return False
    yield [queues.leaving(keys, [name], now_ms)]
    gone = yield from _delete(ref, [ref.keys.periodic(state) for state in states], force)
    calls: list[Any] = [call for job in jobs for call in leader_calls.forget_periodic(keys, job)]
    calls += [command("HDEL", key, name, read=int) for key in (keys.events_cursor, keys.stats_sampled)]
    _, used, *_ = yield [*queues.left(keys, [name]), *calls]
    if ref.routes is not None:
        ref.routes.forget(name)
    if used:
        yield from return_if_used(keys, [name])
    yield from noting(events.note(keys, "queue_deleted", queue=name, by=events.who(), count=gone))
    return True


def _delete(ref: QueueRef, states: list[bytes], force: bool) -> Operation[int]:
    gone = notified = 0
    while True:
        word, *rest = yield from ask(queues.delete(ref.keys, force=force, states=states))
        if word == "deleted":
            return gone
        if word == "more":
            gone += rest[0]
        elif word == "posted" and notified < _TELLS:
            notified += 1
            yield from relaying(ref.all_keys, tags=[ref.keys.tag])
        else:
            raise QueueNotEmpty(_why(ref.name, word, rest))


def _why(name: str, word: str, said: list[int]) -> str:
    if word == "decided":
        return f"queue {name!r} has a batch that is decided, and whose items move on: try again in some seconds"
    if word == "posted":
        return f"queue {name!r}: ends of its tasks cannot be told to the flows that wait for them; see jobrunner doctor"
    held = ", ".join(f"{count} {what}" for count, what in zip(said, _HELD, strict=True) if count)
    return f"queue {name!r} holds {held}: let it be worked off, purge it, or delete it with force=True (--force)"


def _periodic_jobs(ref: QueueRef, now_ms: float, force: bool) -> Operation[tuple[list[str], list[str]]]:
    """The names of the periodic jobs that workers published for the queue, and those of the states of all its periodic
    jobs. Raises QueueNotEmpty when workers know one of these, or one was added at run time, unless `force`."""
    keys: Keys = ref.all_keys
    published, added, seen = yield [
        leader_calls.periodics(keys), leader_calls.added_periodics(keys), leader_calls.periodics_seen(keys),
    ]  # fmt: skip
    here = [by_hand for raw in added.values() if (by_hand := read_added(raw)) and by_hand.queue == ref.name]
    if here and not force:
        raise QueueNotEmpty(
            f"periodic job {here[0].name!r} runs on queue {ref.name!r}: remove it first (jobrunner periodic remove); "
            "with force=True (--force) its next tick makes the queue again"
        )
    found = [one for raw in published.values() if (one := read_definition(raw)) is not None and one.queue == ref.name]
    known = [one.name for one in found if now_ms - seen.get(one.name, 0.0) <= KNOWN_FOR_MS]
    if known and not force:
        raise QueueNotEmpty(
            f"periodic job {known[0]!r} runs on queue {ref.name!r}: stop the workers that know it first; "
            "with force=True (--force) its next tick makes the queue again"
        )
    return [one.name for one in found], [one.state for one in [*found, *here]]
