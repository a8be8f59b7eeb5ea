"""Calls that read one state of a queue in bounded pieces: tasks that match a search, and ids page by page."""

from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Call, ScriptCommand, command, in_slices
from jobrunner.broker.keys import QueueKeys

FIELDS = (
    "type", "retry_count", "started_at", "enqueue_time", "error", "encoding", "attempts", "outcome",
    "expiries", "suspect", "run_ms", "payload",
)  # fmt: skip
"""The fields that task_search.lua reads of a task."""
_WORDS = 2 + len(FIELDS)
LONGEST_PAYLOAD = 16384
"""A longer payload is cut to one character more than this."""
BY_SCORE = ("scheduled", "dead", "done")
"""States whose scores are instants that a search can be limited to: due, died, finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The conditions of a search in one state. An empty text and None match everything; `type` is a whole name."""

    id_part: str = ""
    type: str = ""
    job_part: str = ""
    error_part: str = ""
    payload_part: str = ""
    group: str = ""
    """The id of the group of the last error."""
    since_ms: float | None = None
    until_ms: float | None = None


EVERYTHING = Match()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchChunk:
    """The matching `tasks` (id, score, fields), in order. `read` tasks were examined, `last` is (score, id) of the last
    of these, and with `is_end` the state has no more tasks."""

    read: int
    last: tuple[str, str]
    is_end: bool
    tasks: list[tuple[str, float, dict[str, str]]]


def _matches(reply: list[Any]) -> SearchChunk:
    read, *words = reply
    score, last, is_end, *text = [word.decode("utf-8", "replace") for word in words]
    tasks = [
        (task_id, float(score), dict(zip(FIELDS, values, strict=True)))
        for task_id, score, *values in in_slices(text, _WORDS)
    ]
    return SearchChunk(read=int(read), last=(score, last), is_end=bool(is_end), tasks=tasks)


_search = ScriptCommand("task_search", _matches)


def search_state(
    keys: QueueKeys,
    state: str,
    *,
    count: int,
    most: int,
    after: tuple[str, str] = ("", ""),
    newest: bool = False,
    match: Match = EVERYTHING,
    payloads: bool = False,
) -> Call[SearchChunk]:
    """Examines up to `count` tasks of a state behind the task `after` (score, id), and returns those that match.

    It returns at most `most`, and examines fewer where payloads are large, so that one call does not block the server.
    Case matters in `type`, and everywhere in letters beyond ASCII: the server's Lua folds the case of ASCII only.
    """
    return _search.with_keys(
        (getattr(keys, state),),
        tasks=keys.tasks,
        count=count,
        most=most,
        newest="1" if newest else "",
        last_score=after[0],
        last_id=after[1],
        since="" if match.since_ms is None else repr(float(match.since_ms)),
        before="" if match.until_ms is None else repr(float(match.until_ms)),
        scored="1" if state in BY_SCORE else "",
        payloads="1" if payloads else "",
        rest=(
            _lower(match.id_part),
            match.type,
            _lower(match.job_part),
            _lower(match.error_part),
            _lower(match.payload_part),
            match.group,
        ),
    )


def state_size(key: bytes, state: str, match: Match = EVERYTHING) -> Call[int]:
    """How many tasks of a state, at its `key`, a search has to examine: all, or those within the match's instants where
    the scores are instants."""
    if state not in BY_SCORE or (match.since_ms is None and match.until_ms is None):
        return command("ZCARD", key, read=int)
    lowest = "-inf" if match.since_ms is None else repr(float(match.since_ms))
    highest = "+inf" if match.until_ms is None else f"({float(match.until_ms)!r}"
    return command("ZCOUNT", key, lowest, highest, read=int)


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

    Reply: the rank of the first id, and the ids; None when `after` is not in that state.
    """
    return _read_page.with_keys((getattr(keys, state),), after="" if after is None else after, count=count)
