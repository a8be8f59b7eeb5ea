"""Writing into queues that may be full: refused at once, or when there was no room in time."""

from collections.abc import Sequence
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.operations.operation import Calls, CapacityHint, Durable, Operation
from jobrunner.clock import monotonic
from jobrunner.errors import QueueFull
from jobrunner.retry import seconds
from jobrunner.settings import Duration

_RECHECK_S = 0.5
_RESENT_S = 5.0
"""After so long many are sent again though there seems to be no room for all: those that exist already need none."""
_NOTED_MS = 5000


def write(
    before: Calls, calls: list[tuple[QueueKeys, Call[Any]]], wait: Duration, *, just_registered: bool = False
) -> Operation[list[Any]]:
    """Sends what goes before, on a round trip of its own, then each call on its queue; returns the values of all.

    A server near its maxmemory may refuse one command and take the next: nothing is written after a refusal. A queue
    that is new is registered once more, unless it was `just_registered`.
    With `wait` a call that finds its queue full is sent again, as a whole, when there may be room: it wrote nothing.
    All calls share that time. Raises QueueFull.
    """
    limit_s = seconds(wait, option="wait")
    values: list[Any] = (yield before) if before else []
    written: list[Any] = []
    if limit_s <= 0 or not calls:
        written = yield Durable([call for _, call in calls])
    else:
        ends = monotonic() + limit_s
        for queue, call in calls:
            written += yield from _when_there_is_room(queue, call, ends)
    if before:
        return values + written
    if not just_registered and any([getattr(reply, "is_first", False) for reply in written]):  # noqa: C419  a list costs one call less
        yield registering_again([queue for queue, _ in calls], written)
    return written


def registering_again(queues_of_calls: Sequence[QueueKeys], replies: Sequence[Any]) -> Calls:
    """Calls that register queues which were new to what was written there: one that was deleted after it was registered
    here left the registry. None where there is none."""
    new = [queue for queue, reply in zip(queues_of_calls, replies, strict=True) if getattr(reply, "is_first", False)]
    return queues.register_if_room(new[0], [queue.name for queue in new]) if new else []


def _when_there_is_room(queue: QueueKeys, call: Call[Any], ends: float) -> Operation[list[Any]]:
    looked_again = False
    while True:
        try:
            return (yield Durable([call]))  # type: ignore[no-any-return]
        except QueueFull as error:
            if monotonic() >= ends:
                raise
            wanted = error.wanted
        (room,) = yield [queues.await_capacity(queue, lasts_ms=_NOTED_MS)]
        if (room < 0 or room >= wanted) and not looked_again:  # it came before anybody knew that we wait
            looked_again = True
            continue
        yield from _room_for(queue, wanted, ends)
        looked_again = False


def _room_for(queue: QueueKeys, wanted: int, ends: float) -> Operation[None]:
    """Waits until there may be room for so many, or for a while. To ask for the room of many costs the server less than
    a thousandth of what it costs to refuse them."""
    room, sent_again = 0, monotonic() + _RESENT_S
    while 0 <= room < wanted and (left := min(ends, sent_again) - monotonic()) > 0:
        yield CapacityHint(queue, min(left, _RECHECK_S))
        if wanted == 1:
            return
        (room,) = yield [queues.await_capacity(queue, lasts_ms=_NOTED_MS)]
