"""The call that finds tasks by what they hold, in a bounded piece of one state."""

from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Call, Verb
from jobrunner.broker.keys import QueueKeys

FIELDS = ("type", "retry_count", "started_at", "enqueue_time", "error")
"""What is read of a task, as sift.lua has it."""
_PAYLOAD = "payload"
_WORDS = 2 + len(FIELDS) + 1
LONGEST_PAYLOAD = 16384
"""Of a longer one what comes back is cut: it is longer by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sifted:
    """(id, score, fields) of what matched, in order; `rank` is behind the last that was looked at.

    Among the fields is the payload, as text, when that was searched.
    """

    rank: int
    tasks: list[tuple[str, float, dict[str, str]]]


def _sifted(reply: list[Any]) -> Sifted:
    rank, *words = reply
    text = [word.decode("utf-8", "replace") for word in words]
    tasks = [
        (text[at], float(text[at + 1]), dict(zip((*FIELDS, _PAYLOAD), text[at + 2 : at + _WORDS], strict=True)))
        for at in range(0, len(text), _WORDS)
    ]
    return Sifted(rank=int(rank), tasks=tasks)


_sift = Verb("sift", _sifted)


def sift(
    keys: QueueKeys,
    state: str,
    *,
    start: int,
    count: int,
    most: int,
    newest: bool = False,
    id_part: str = "",
    type: str = "",  # noqa: A002
    error_part: str = "",
    payload_part: str = "",
) -> Call[Sifted]:
    """Those that match of `count` tasks of a state from rank `start` on, at most `most`.

    Case is minded in `type`, and everywhere in letters beyond ASCII: the server's Lua knows no others.
    """
    return _sift.with_keys(
        (getattr(keys, state),),
        tasks=keys.tasks,
        start=start,
        count=count,
        most=most,
        newest="1" if newest else "",
        id_part=_lower(id_part),
        type=type,
        error_part=_lower(error_part),
        payload_part=_lower(payload_part),
    )


def _lower(text: str) -> bytes:
    return text.encode().lower()
