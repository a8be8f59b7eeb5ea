"""How queues leave the registry of all queues, which on a cluster is not where they are: in steps that lose none.

What must hold: a queue that anything was written on is in the registry, or will be within LEAVING_MS and a look of the
leader. First it is noted that the queues are leaving; then one script for each deletes them, unless they are used; then
they leave the registry, and come back when they were used meanwhile. The note stays: who registered a queue just before
it left may write on it a moment after that look, so the leader looks again. That a client finds a queue new tells it
to register it once more, so in practice it is back at once.
"""

from collections.abc import Sequence
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import Operation

LEAVING_MS = 60_000
"""Longer than a client takes from registering a queue to writing on it."""


def leave(keys: Keys, names: Sequence[str], deleting: Call[list[str]], now_ms: float) -> Operation[list[str]]:
    """Returns the names that the replies of `deleting`, one per name, report as deleted."""
    yield [queues.leaving(keys, names, now_ms)]
    (words,) = yield [deleting]
    gone = [name for name, word in zip(names, words, strict=True) if word == "forgotten"]
    kept = [name for name in names if name not in set(gone)]
    if gone:
        _, *used = yield queues.left(keys, gone)
        yield from _register_again(keys, gone, used)
    if kept:
        yield [queues.not_leaving(keys, kept)]
    return gone


def return_if_used(keys: Keys, names: Sequence[str]) -> Operation[None]:
    """Checks again after the removal: a queue used meanwhile is registered, any other is not."""
    used = yield [queues.exists(keys.queue(name)) for name in names]
    yield from _register_again(keys, names, used)
    yield [queues.not_leaving(keys, names)]


def _register_again(keys: Keys, names: Sequence[str], used: Sequence[Any]) -> Operation[None]:
    if back := [name for name, is_used in zip(names, used, strict=True) if is_used]:
        yield queues.register(keys, back)
