"""The relay: takes ends of tasks from outboxes to the joins that wait for them.

What must hold: an entry leaves its outbox only after all its joins took it. Every step may be repeated, by this relay
or by another one at the same time: an arrival that is known changes nothing.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import flows
from jobrunner.broker.keys import Keys
from jobrunner.client.steps import Each, Steps, run_steps
from jobrunner.errors import JobrunnerError
from jobrunner.join import Arrival, Ended, Place, read_onward
from jobrunner.logs import OwnLog

SLICE = 100
_AT_ONCE = 500
_log = OwnLog("jobrunner.relay")


def relay(
    broker: Broker, keys: Keys, *, ended: Iterable[Ended] = (), tags: Iterable[str] = (), looks: float = math.inf
) -> frozenset[str]:
    """Carries `relaying` out in this thread. Raises ServerError."""
    return run_steps(broker, relaying(keys, ended=ended, tags=tags, looks=looks))


def relaying(
    keys: Keys, *, ended: Iterable[Ended] = (), tags: Iterable[str] = (), looks: float = math.inf
) -> Steps[frozenset[str]]:
    """Tells what `ended` and what is in the outboxes of `tags`, and what follows from that.

    One look takes up to SLICE entries of each outbox; returns the tags in whose outboxes there may be more after so
    many `looks`.
    """
    left, unread = list(ended), dict.fromkeys(tags)
    stuck: set[str] = set()
    while left or unread:
        if not left:
            if looks <= 0:
                return frozenset(unread)
            looks -= 1
            found = yield from _read(keys, list(unread))
            unread = {tag: None for tag, entries in found.items() if len(entries) == SLICE}
            left = [entry for entries in found.values() for entry in entries]
            continue
        batch, left = left[:SLICE], left[SLICE:]
        posted, untold = yield from _tell(keys, batch)
        stuck.update(entry.tag for entry in untold)
        unread = dict.fromkeys(tag for tag in (*unread, *posted) if tag not in stuck)
    return frozenset()


def _read(keys: Keys, tags: Sequence[str]) -> Steps[dict[str, list[Ended]]]:
    found: dict[str, list[Ended]] = {}
    for first in range(0, len(tags), _AT_ONCE):
        asked = tags[first : first + _AT_ONCE]
        replies = yield Each([flows.outbox(keys, tag, count=SLICE) for tag in asked])
        found.update(
            (tag, []) if isinstance(reply, JobrunnerError) else (tag, reply)
            for tag, reply in zip(asked, replies, strict=True)
        )
    return found


def _tell(keys: Keys, batch: list[Ended]) -> Steps[tuple[set[str], list[Ended]]]:
    """Makes the arrivals of entries and removes those that all their joins took.

    Returns the tags whose outboxes got something by it, and the entries that stay.
    """
    addressed = [(entry, _addressees(keys, entry)) for entry in batch]
    arrivals: dict[Place, list[tuple[int, str, bytes]]] = {}
    for entry, to in addressed:
        for one in to:
            arrivals.setdefault(Place(one.queue, one.join), []).append((one.member, entry.outcome, entry.result))
    words = yield from _arrive(keys, arrivals)
    refused = {place for place, word in words.items() if isinstance(word, JobrunnerError)}
    posted = {keys.queue(place.queue).tag for place, word in words.items() if word == "posted"}
    told: dict[str, list[Ended]] = {}
    untold = []
    for entry, to in addressed:
        if refused and any(Place(one.queue, one.join) in refused for one in to):
            untold.append(entry)
        else:
            told.setdefault(entry.tag, []).append(entry)
    if told:
        yield Each([flows.forget(keys, tag, entries) for tag, entries in told.items()])
    return posted, untold


def _arrive(keys: Keys, arrivals: dict[Place, list[tuple[int, str, bytes]]]) -> Steps[dict[Place, Any]]:
    places = list(arrivals)
    words: dict[Place, Any] = {}
    for first in range(0, len(places), _AT_ONCE):
        asked = places[first : first + _AT_ONCE]
        replies = yield Each([flows.arrive(keys.queue(place.queue), place.join, arrivals[place]) for place in asked])
        words.update(zip(asked, replies, strict=True))
    for place, word in words.items():
        if isinstance(word, JobrunnerError):
            _log.warning("a join could not be told; it will be again", join=place.join, error=str(word))
        elif word == "gone":
            _log.warning("a join is gone: its flow waited too long, or was deleted", join=place.join)
    return words


def _addressees(keys: Keys, entry: Ended) -> list[Arrival]:
    try:
        found = read_onward(entry.onward)
        for one in found:
            keys.queue(one.queue)
    except ValueError as error:  # damage: nobody can ever be told
        _log.error("an end of a task is dropped: nobody can read whom to tell", tag=entry.tag, error=str(error))
        return []
    return found
