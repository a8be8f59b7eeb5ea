"""Writing into queues that may be full: refused at once, or when there was no room in time."""

from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.steps import Calls, Durable, Steps
from jobrunner.client.waits import Room
from jobrunner.clock import monotonic
from jobrunner.errors import QueueFull
from jobrunner.retry import seconds
from jobrunner.settings import Duration

_RECHECK_S = 0.5
_NOTED_MS = 5000


def write(before: Calls, calls: list[tuple[QueueKeys, Call[Any]]], wait: Duration) -> Steps[list[Any]]:
    """Sends what goes before, on a round trip of its own, then each call on its queue; returns the values of all.

    A server near its maxmemory may refuse one command and take the next: nothing is written after a refusal.
    With `wait` a call that finds its queue full is sent again, as a whole, when there may be room: it wrote nothing.
    All calls share that time. Raises QueueFull.
    """
    limit_s = seconds(wait, option="wait")
    values: list[Any] = (yield before) if before else []
    if limit_s <= 0 or not calls:
        return values + (yield Durable([call for _, call in calls]))  # type: ignore[no-any-return]
    ends = monotonic() + limit_s
    for queue, call in calls:
        values += yield from _when_there_is_room(queue, call, ends)
    return values


def _when_there_is_room(queue: QueueKeys, call: Call[Any], ends: float) -> Steps[list[Any]]:
    looked_again = False
    while True:
        try:
            return (yield Durable([call]))  # type: ignore[no-any-return]
        except QueueFull:
            if monotonic() >= ends:
                raise
        (room,) = yield [queues.want(queue, lasts_ms=_NOTED_MS)]
        if room and not looked_again:  # it came before anybody knew that we wait
            looked_again = True
            continue
        yield Room(queue, max(min(ends - monotonic(), _RECHECK_S), 0.0))
        looked_again = False
