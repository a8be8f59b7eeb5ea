"""Calls about watched streaming queries: the last progress of each, for metrics."""

from collections.abc import Sequence
from typing import Any

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import Keys

_KEPT_S = 2 * 86_400


def note(keys: Keys, query: str, progress: bytes) -> list[Call[Any]]:
    """Stores the progress of a query, by its name. All stored progress expires two days after the last write."""
    return [
        command("HSET", keys.streams, query, progress, read=int),
        command("EXPIRE", keys.streams, _KEPT_S, read=bool),
    ]


def noted(keys: Keys) -> Call[list[bytes]]:
    """The progress of every query."""
    return command("HVALS", keys.streams, read=list)


def forget(keys: Keys, queries: Sequence[str]) -> Call[int]:
    """Removes the progress of these queries."""
    return command("HDEL", keys.streams, *queries, read=int)
