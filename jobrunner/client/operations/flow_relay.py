"""The flow relay: delivers ends of tasks from outboxes to the joins that wait for them.

Invariant: an entry leaves its outbox only after all its joins took it. Every step may be repeated, by this relay or by
another relay at the same time: a known arrival changes nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import in_slices, sliced
from jobrunner.broker.calls import flows
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import EachReply, Operation, run_operation
from jobrunner.errors import JobrunnerError
from jobrunner.join import Arrival, Ended, JoinRef, read_onward
from jobrunner.logs import SafeLogger

if TYPE_CHECKING:
    from jobrunner.loop import Complaints

SLICE = 100
_AT_ONCE = 500
_log = SafeLogger("jobrunner.relay")


def relay(
    broker: Broker, keys: Keys, *, ended: Iterable[Ended] = (), tags: Iterable[str] = (), looks: float = math.inf
) -> frozenset[str]:
    """Carries `relaying` out in this thread. Raises ServerError."""
    return run_operation(broker, relaying(keys, ended=ended, tags=tags, looks=looks))


def relaying(
    keys: Keys, *, ended: Iterable[Ended] = (), tags: Iterable[str] = (), looks: float = math.inf
) -> Operation[frozenset[str]]:
    """Delivers the ends in `ended` and in the outboxes of `tags` to their joins, and the ends that follow from these.

    One look reads up to SLICE entries of each outbox; returns the tags whose outboxes may have more after `looks`
    looks.
    """
    left, unread = list(ended), dict.fromkeys(tags)
    stuck: set[str] = set()
    while left or unread:
        if not left:
            if looks <= 0:
                return frozenset(unread)
            looks -= 1
            found = yield from _read(keys, list(unread))
            unread = {tag: None for tag, (_, has_more) in found.items() if has_more}
            left = [entry for entries, _ in found.values() for entry in entries]
            continue
        batch, left = left[:SLICE], left[SLICE:]
        posted, untold = yield from _tell(keys, batch)
        stuck.update(entry.tag for entry in untold)
        # Sorted by name: the order of a set differs between processes.
        unread = dict.fromkeys(tag for tag in (*unread, *sorted(posted)) if tag not in stuck)
    return frozenset()


def _read(keys: Keys, tags: Sequence[str]) -> Operation[dict[str, tuple[list[Ended], bool]]]:
    """Returns entries of each outbox, and whether the outbox may have more."""
    found: dict[str, tuple[list[Ended], bool]] = {}
    for asked in in_slices(tags, _AT_ONCE):
        replies = yield EachReply([flows.outbox(keys, tag, count=SLICE) for tag in asked])
        found.update(
            (tag, ([], False)) if isinstance(reply, JobrunnerError) else (tag, reply)
            for tag, reply in zip(asked, replies, strict=True)
        )
    return found


def _tell(keys: Keys, batch: list[Ended]) -> Operation[tuple[set[str], list[Ended]]]:
    """Delivers entries to their joins and removes the entries that all their joins took.

    Returns the tags whose outboxes got new entries by it, and the entries that stay.
    """
    addressed = [(entry, _addressees(keys, entry.tag, entry.onward)) for entry in batch]
    arrivals: dict[JoinRef, list[_Brought]] = {}
    for entry, to in addressed:
        for one in to:
            arrivals.setdefault(JoinRef(one.queue, one.join), []).append((one.member, entry.outcome, entry.result))
    found = yield from _arrive(keys, arrivals)
    _complain(found.refused)
    told: dict[str, list[Ended]] = {}
    untold = []
    for entry, to in addressed:
        if any(JoinRef(one.queue, one.join) in found.refused for one in to):
            untold.append(entry)
        else:
            told.setdefault(entry.tag, []).append(entry)
    if told:
        yield EachReply([flows.forget(keys, tag, entries) for tag, entries in told.items()])
    return found.posted, untold


@cache
def _complaints() -> "Complaints":
    from jobrunner.loop import Complaints  # imported with the first complaint: most programs have none

    return Complaints()


def _complain(refused: Mapping[JoinRef, JobrunnerError]) -> None:
    """Logs each kind of error at most once in ten seconds: on a full server every end of a step fails again and
    again."""
    for place, error in refused.items():
        if _complaints().may_tell(type(error).__name__):
            told = {"join": place.join, "joins": len(refused), "error": str(error)}
            _log.warning("a join could not be told; it will be again", **told)


_Brought = tuple[int, str, bytes]
"""An arrival at a join: number of the member, outcome, result."""


class _ArrivalReply(msgspec.Struct, frozen=True):
    """The outcome of arrivals: the tags whose outboxes changed, and the joins not notified, with the errors."""

    posted: set[str] = msgspec.field(default_factory=set)
    refused: dict[JoinRef, JobrunnerError] = msgspec.field(default_factory=dict)

    def hear(self, keys: Keys, place: JoinRef, word: Any) -> None:
        """Records the reply of a join."""
        if isinstance(word, JobrunnerError):
            self.refused[place] = word
        elif word == "gone":
            _log.warning("a join is gone: its flow waited too long, or was deleted", join=place.join)
        elif word in ("posted", "dead"):
            self.posted.add(keys.queue(place.queue).tag)


def _arrive(keys: Keys, arrivals: Mapping[JoinRef, list[_Brought]]) -> Operation[_ArrivalReply]:
    """Delivers arrivals to their joins, and completes the joins whose rule is met."""
    found = _ArrivalReply()
    asked = [(place, some) for place, all_ in arrivals.items() for some in sliced(all_, _size, most=SLICE)]
    large: dict[JoinRef, None] = {}
    for part in sliced(asked, lambda one: sum(map(_size, one[1])), most=_AT_ONCE):
        calls = [flows.join_arrive(keys.queue(place.queue), place.join, some) for place, some in part]
        replies = yield EachReply(calls)
        for (place, _), word in zip(part, replies, strict=True):
            if word == "more":
                large[place] = None
            else:
                found.hear(keys, place, word)
    # One slice at a time, as a call blocks the server. The entries are removed after the last slice, so a later relay
    # goes on where this relay stopped.
    for place in large:
        verdict: Any = "more"
        while verdict == "more":
            (verdict,) = yield EachReply([flows.collect(keys.queue(place.queue), place.join)])
            if verdict == "pass":
                verdict = yield from _pass_on(keys, place, found)
        found.hear(keys, place, verdict)
    return found


def _pass_on(keys: Keys, place: JoinRef, found: _ArrivalReply) -> Operation[Any]:
    """Copies the results of a large group to all joins after it, in parts, and then marks them complete.

    Only then the collected results are removed. Returns the reply to that, an error, or 'more' when they have to be
    collected again.
    """
    queue = keys.queue(place.queue)
    onward, parts = yield EachReply([flows.onward(queue, place.join), flows.collected(queue, place.join)])
    if error := _first_error((onward, parts)):
        return error
    if not parts:  # abandoned, or passed on by another relay, or lost
        return "more"
    to = missing = _addressees(keys, queue.tag, onward)
    size = 0
    for number in range(parts):
        (part,) = yield EachReply([flows.collected_part(queue, place.join, number)])
        if part is None or isinstance(part, JobrunnerError):
            return part or "more"
        size += len(part)
        words = yield from _bring_part(keys, missing, number, part)
        if error := _first_error(words):
            return error
        missing = [one for one, word in zip(missing, words, strict=True) if word == "taken"]
        if not missing:
            break
    arrivals: dict[JoinRef, list[_Brought]] = {}
    for one in to:
        brought = one.member, "succeeded", flows.in_pieces(parts, size)
        arrivals.setdefault(JoinRef(one.queue, one.join), []).append(brought)
    beyond = yield from _arrive(keys, arrivals)
    found.posted.update(beyond.posted)
    if error := _first_error(beyond.refused.values()):
        return error
    (passed,) = yield EachReply([flows.passed(queue, place.join)])
    return passed


def _bring_part(keys: Keys, to: Sequence[Arrival], number: int, part: bytes) -> Operation[list[Any]]:
    words: list[Any] = []
    for some in sliced(to, lambda _: len(part), most=_AT_ONCE):
        words += yield EachReply(
            [flows.join_arrive_part(keys.queue(one.queue), one.join, one.member, number, part) for one in some]
        )
    return words


def _first_error(words: Iterable[Any]) -> JobrunnerError | None:
    return next((word for word in words if isinstance(word, JobrunnerError)), None)


def _size(brought: _Brought) -> int:
    return len(brought[2])


def _addressees(keys: Keys, tag: str, onward: bytes) -> list[Arrival]:
    try:
        found = read_onward(onward)
        for one in found:
            keys.queue(one.queue)
    except ValueError as error:  # damaged: the joins cannot be known
        _log.error("an end of a task is dropped: nobody can read whom to tell", tag=tag, error=str(error))
        return []
    return found
