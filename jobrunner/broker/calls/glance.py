"""The call by which the leader learns whether there is anything to do: one for a hundred queues and all workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from jobrunner.broker.call import Call, Verb
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.replies import texts, whole

MOST_AT_ONCE = 100
"""Queues of one call: it keeps the server for about a quarter of a millisecond then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What there is to do. A queue of which nobody can tell is left out."""

    posted: list[str] = field(default_factory=list)
    """Hash tags with ends of tasks in their outbox, in the order in which their queues were asked for."""
    closing: list[str] = field(default_factory=list)
    """Queues with batches that need no driver to finish, due or not."""
    dead: dict[str, int] = field(default_factory=dict)
    """How many tasks of each queue died since it exists."""
    silent: list[str] = field(default_factory=list)
    """Ids of workers that gave no sign of life for too long and did not retire."""


_glance: Verb[Any] = Verb("glance", lambda reply: reply, divisible=True)


def glance(keys: Keys, queues: Sequence[QueueKeys]) -> list[Call[Glance]]:
    """Calls that together look at all queues, the first of them also at the workers."""
    slices = [queues[at : at + MOST_AT_ONCE] for at in range(0, len(queues), MOST_AT_ONCE)] or [()]
    return [_at(some, () if n else (keys.workers,)) for n, some in enumerate(slices)]


def _at(queues: Sequence[QueueKeys], workers: tuple[bytes, ...]) -> Call[Glance]:
    def read(reply: list[Any]) -> Glance:
        silent, seen = reply[: len(workers)], reply[len(workers) :]
        told = [(queue, one) for queue, one in zip(queues, seen, strict=True) if isinstance(one, list)]
        return Glance(
            posted=list(dict.fromkeys(queue.tag for queue, (posted, _, _) in told if posted)),
            closing=[queue.name for queue, (_, closing, _) in told if closing],
            dead={queue.name: whole(dead) for queue, (_, _, dead) in told if dead is not None},
            silent=[worker for ids in silent if isinstance(ids, list) for worker in texts(ids)],
        )

    return replace(_glance.with_keys((*workers, *(one.counters for one in queues))), read=read)
