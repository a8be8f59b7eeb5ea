"""Calls that read one state of a queue in bounded pieces: tasks that match a search, and ids page by page."""

from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Call, ScriptCommand
from jobrunner.broker.keys import QueueKeys

FIELDS = ("type", "retry_count", "started_at", "enqueue_time", "error")
"""The fields that task_search.lua reads of a task."""
_PAYLOAD = "payload"
_WORDS = 2 + len(FIELDS) + 1
LONGEST_PAYLOAD = 16384
"""A longer payload is cut to one character more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchChunk:
    """(id, score, fields) of the tasks that match, in order; `rank` is after the last that was read.

    Among the fields is the payload, as text, when that was searched.
    """

    rank: int
    tasks: list[tuple[str, float, dict[str, str]]]


def _matches(reply: list[Any]) -> SearchChunk:
    rank, *words = reply
    text = [word.decode("utf-8", "replace") for word in words]
    tasks = [
        (text[at], float(text[at + 1]), dict(zip((*FIELDS, _PAYLOAD), text[at + 2 : at + _WORDS], strict=True)))
        for at in range(0, len(text), _WORDS)
    ]
    return SearchChunk(rank=int(rank), tasks=tasks)


_search = ScriptCommand("task_search", _matches)


def search_state(
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
) -> Call[SearchChunk]:
    """Those that match of `count` tasks of a state from rank `start` on, at most `most`.

    Case is minded in `type`, and everywhere in letters beyond ASCII: the server's Lua knows no others.
    """
    return _search.with_keys(
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


Page = tuple[int, list[str]]


def _ids_of_page(reply: list[int | list[bytes]]) -> Page | None:
    if not reply:
        return None
    first, found = reply
    assert isinstance(first, int)
    assert isinstance(found, list)
    return first, [raw.decode("utf-8", "replace") for raw in found]


_read_page = ScriptCommand("task_page", _ids_of_page)


def page(keys: QueueKeys, state: str, *, after: str | None, count: int) -> Call[Page | None]:
    """Up to `count` ids of one state behind the id `after` (None: from the first in line).

    Reply: rank of the first, and the ids; None when `after` is not in that state.
    """
    return _read_page.with_keys((getattr(keys, state),), after="" if after is None else after, count=count)
