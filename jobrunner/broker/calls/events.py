"""Calls about the stream of events."""

import os
import socket
from collections.abc import Iterable
from typing import Any

from jobrunner.broker.call import Call, command, fields
from jobrunner.broker.keys import Keys
from jobrunner.broker.resp import Arg
from jobrunner.clock import from_ms
from jobrunner.events import Event

KEPT = 10_000
RELEASES_KEPT = 100
_OWN = ("queue", "task", "job", "worker", "by")
_LONGEST = 500


def note(keys: Keys, kind: str, **words: Arg) -> Call[None]:
    """Adds an event. The stream lacks an event that the server refused, and may have an event twice after an outage."""
    pairs = [part for name, word in words.items() if word != "" for part in (name, _short(word))]
    return command("XADD", keys.events, "MAXLEN", "~", KEPT, "*", "kind", kind, *pairs, read=_nothing, may_fail=True)


def dead_requeued(keys: Keys, queue: str, count: int) -> Call[None]:
    """Adds the event that this process put `count` dead tasks of a queue back."""
    return note(keys, "dead_requeued", queue=queue, by=who(), count=count)


def queue_purged(keys: Keys, queue: str, state: str, count: int) -> Call[None]:
    """Adds the event that this process deleted `count` tasks of a queue; `state`: '' for any."""
    return note(keys, "queue_purged", queue=queue, by=who(), state=state, count=count)


def who() -> str:
    """The name of this process in the field `by` of events."""
    return f"{socket.gethostname()}.{os.getpid()}"


def after(keys: Keys, last: str, *, count: int) -> Call[list[Event]]:
    """Up to `count` events after the event with the id `last`, oldest first; '-' begins at the oldest stored event."""
    start = last if last == "-" else f"({last}"
    return command("XRANGE", keys.events, start, "+", "COUNT", count, read=_events)


def newest(keys: Keys, *, count: int) -> Call[list[Event]]:
    """The last `count` events, oldest first."""
    return command("XREVRANGE", keys.events, "+", "-", "COUNT", count, read=lambda reply: _events(reply)[::-1])


def before(keys: Keys, event_id: str, *, count: int) -> Call[list[Event]]:
    """Up to `count` events before the event with this id, newest first; '' begins at the newest event."""
    end = f"({event_id}" if event_id else "+"
    return command("XREVRANGE", keys.events, end, "-", "COUNT", count, read=_events)


def note_release(keys: Keys, release: str, at_ms: int) -> list[Call[None]]:
    """Records when a release was first seen; a later worker with the same release changes nothing."""
    return [
        command("ZADD", keys.releases, "NX", at_ms, release, read=_nothing, may_fail=True),
        command("ZREMRANGEBYRANK", keys.releases, 0, -RELEASES_KEPT - 1, read=_nothing, may_fail=True),
    ]


def releases(keys: Keys, *, since_ms: float) -> Call[dict[str, float]]:
    """Releases that were first seen since `since_ms`, with that instant in Unix ms, oldest first."""
    return command(
        "ZRANGEBYSCORE", keys.releases, f"{since_ms:.0f}", "+inf", "WITHSCORES", may_fail=True,
        read=lambda reply: {name: float(at) for name, at in fields(reply or []).items()},
    )  # fmt: skip


def awaited(keys: Keys, last: str, *, count: int, wait_ms: int) -> Call[list[Event]]:
    """Like `after`, and blocks for the first event for up to `wait_ms`; empty when no event came in that time."""
    return command(
        "XREAD", "COUNT", count, "BLOCK", wait_ms, "STREAMS", keys.events, last,
        read=lambda reply: [] if not reply else _events(reply[0][1]),
    )  # fmt: skip


def _nothing(_: Any) -> None:
    return None


def _short(word: Arg) -> Arg:
    return word[:_LONGEST] if isinstance(word, (str, bytes)) else word


def _events(reply: Iterable[Any]) -> list[Event]:
    return [_event(raw_id.decode(), words) for raw_id, words in reply]


def _event(event_id: str, words: list[bytes]) -> Event:
    texts = [word.decode("utf-8", "replace") for word in words]
    values = dict(zip(texts[::2], texts[1::2], strict=True))
    own = {name: values.pop(name, "") for name in _OWN}
    at = from_ms(int(event_id.partition("-")[0]))
    return Event(id=event_id, at=at, kind=values.pop("kind", "?"), details=values, **own)
