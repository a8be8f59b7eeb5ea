"""Writes that a command behind them on the same connection confirms: WAITAOF when they are on disk, WAIT when a replica
has them. See docs/durability.md."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError

from jobrunner.broker.call import Call, command, key_of
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerRefused

_CONFIRMATIONS = ("WAIT", "WAITAOF")
_MARK_MS = 1000


def confirmation_marks(calls: Sequence[Call[Any]], *, everywhere: bool) -> list[Call[Any]]:
    """Writes to send between calls and their confirmation, which counts only what its own connection wrote. Calls that
    are sent again on another one, or find their task there, write nothing, and would be confirmed at once.

    One server needs a single key; `everywhere`, for a cluster, writes a key for each hash tag. The keys expire.
    """
    tags = dict.fromkeys(key.partition(b"}")[0] for call in calls if (key := key_of(call)) and b"}" in key)
    names = [tag + b"}:sent:confirmed" for tag in tags]
    return [command("SET", name, "", "PX", _MARK_MS, read=bool) for name in (names if everywhere else names[:1])]


def to_send_again(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[int]:
    """Positions of the scripts that the server does not know, and of a confirmation behind them, whose reply is about
    the time before they wrote anything."""
    positions = [position for position, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if positions and calls[-1].script is None and calls[-1].words[0] in _CONFIRMATIONS:
        positions.append(len(calls) - 1)
    return positions


def confirmed(values: Sequence[Any], count: int) -> list[Any]:
    """The values of the first `count` calls, which the others confirm. Raises what was refused, OutcomeUnknown if only
    a confirmation was."""
    written = list(values[:count])
    for value in written:
        if isinstance(value, JobrunnerError):
            raise value
    for confirmation in values[count:]:
        if isinstance(confirmation, ServerRefused):
            needs = "; that needs Redis 7.2 or Valkey" if "unknown command" in str(confirmation).lower() else ""
            told = f"written, but the server cannot say how safely: {confirmation}{needs}"
            raise OutcomeUnknown(told) from confirmation
        if isinstance(confirmation, JobrunnerError):
            raise confirmation
    return written
