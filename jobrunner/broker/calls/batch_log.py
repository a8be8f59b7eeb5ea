"""Calls about the batch log of a queue: the last attempts at its batches, newest first, for people.

The log is bounded in number and expires, so a queue without a station keeps none. An entry may be there twice after a
lost reply; readers recognise the copy by its content. No decision depends on the log.
"""

from collections.abc import Sequence
from typing import Any

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import QueueKeys

MOST = 100
KEPT_S = 7 * 86_400


def note(keys: QueueKeys, entries: Sequence[bytes]) -> list[Call[Any]]:
    """Adds entries, oldest first. A refusal by the server has no other effect."""
    return [
        command("LPUSH", keys.batch_log, *entries[-MOST:], read=bool, may_fail=True),
        command("LTRIM", keys.batch_log, 0, MOST - 1, read=bool, may_fail=True),
        command("EXPIRE", keys.batch_log, KEPT_S, read=bool, may_fail=True),
    ]


def recent(keys: QueueKeys, count: int = MOST) -> Call[list[bytes]]:
    """The newest entries, newest first."""
    return command("LRANGE", keys.batch_log, 0, count - 1, read=list)
