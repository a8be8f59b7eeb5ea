"""Calls about the batch log of a queue: the last attempts at its batches, newest first, for people.

Bounded in number and time, so a queue without a station keeps none. An entry may be there twice after a lost reply;
readers tell by its content. Nothing decides by it.
"""

from collections.abc import Sequence
from typing import Any

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import QueueKeys

MOST = 100
KEPT_S = 7 * 86_400


def note(keys: QueueKeys, entries: Sequence[bytes]) -> list[Call[Any]]:
    """Adds entries, oldest first. A server that refuses them changes nothing else."""
    return [
        command("LPUSH", keys.batch_log, *entries[-MOST:], read=bool, may_fail=True),
        command("LTRIM", keys.batch_log, 0, MOST - 1, read=bool, may_fail=True),
        command("EXPIRE", keys.batch_log, KEPT_S, read=bool, may_fail=True),
    ]


def recent(keys: QueueKeys, count: int = MOST) -> Call[list[bytes]]:
    """The newest entries, newest first."""
    return command("LRANGE", keys.batch_log, 0, count - 1, read=list)
