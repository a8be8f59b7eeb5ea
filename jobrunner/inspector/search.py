"""Finds tasks on the server, page by page, within a budget of time. It writes nothing.

Each call examines a bounded range of ranks of one state of a queue, and the server returns the tasks that match. When
the time is up, the search returns the tasks found so far with a cursor to continue from; so no search, however little
it finds among however many tasks, keeps the server or a person waiting.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from jobrunner.broker.call import command
from jobrunner.broker.calls.search import LONGEST_PAYLOAD, SearchChunk, search_state
from jobrunner.broker.calls.stats import QueueSummary, bulk_counts
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import perf_counter
from jobrunner.errors import InvalidOption
from jobrunner.inspector import task_rows
from jobrunner.inspector.task_rows import LATEST_FIRST, TaskPosition, TaskRow, line_of
from jobrunner.redaction import Redaction

STATES = (*task_rows.STATES, "done")
_AT_ONCE = 500
"""Tasks examined by one call, which blocks the server for about a millisecond."""
_MOST_CALLS = 20
_FEW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A search filter; an empty field matches everything. Texts match substrings, ignoring the case of ASCII."""

    queue: str = ""
    state: str = ""
    type: str = ""
    """The job, its whole name."""
    error: str = ""
    id: str = ""
    """A part of the id."""
    param: str = ""
    """A part of the payload, as it is stored (JSON); or `name=value`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """A page of results. `onward` is the cursor of the next page, empty at the end; `searched` of `total` tasks were
    examined so far."""

    tasks: list[TaskRow]
    searched: int
    total: int
    onward: str
    timed_out: bool
    """Whether the time was up before the page was full."""


@dataclass(frozen=True, slots=True)
class _TaskFields:
    queue: str
    state: str
    size: int


def search(
    client: Client,
    wanted: Filter,
    *,
    after: str = "",
    limit: int = 50,
    budget_s: float = 0.1,
    redaction: Redaction | None = None,
) -> SearchPage:
    """One page of tasks: pending first, then waiting, scheduled, dead (the latest first); queues by name.

    With a `redaction` no hidden value matches, as a user who may not see it could otherwise guess it letter by letter;
    nor do payloads above 16 KiB match by their contents, as they are not searched for hidden values.

    `after` is the `onward` of the page before. Raises InvalidOption for a damaged one, InvalidName.
    """
    ends = perf_counter() + budget_s
    lines = _lines(client, wanted)
    at, rank = _cursor(after)
    found: list[TaskRow] = []
    for call in range(_MOST_CALLS):
        if at >= len(lines) or len(found) >= limit or (call and perf_counter() > ends):
            break
        sifted = _sift(client, wanted, lines[at], rank, limit - len(found))
        found += _task_lines(client, lines[at], _shown(sifted, wanted, redaction))
        at, rank = _next(lines, at, rank, sifted)
    total = sum(line.size for line in lines)
    searched = min(sum(line.size for line in lines[:at]) + rank, total)
    onward = f"{at}.{rank}" if at < len(lines) else ""
    return SearchPage(
        tasks=found, searched=searched, total=total, onward=onward, timed_out=bool(onward) and len(found) < limit
    )


def matching(client: Client, wanted: Filter, redaction: Redaction | None = None) -> Iterator[list[TaskPosition]]:
    """All tasks that match, up to 500 at a time, read when they are asked for; `redaction` as of `search`.

    A task that leaves its state meanwhile shifts the ranks behind it, so a state is read from its end to its front: a
    task that matched at the start, and still does when its turn comes, is yielded at least once. Tasks that die
    meanwhile are added behind the end, so tasks that die again and again do not prolong the search.
    """
    for line in _lines(client, wanted):
        for start in range((line.size - 1) // _AT_ONCE * _AT_ONCE, -1, -_AT_ONCE):
            sifted = _sift(client, wanted, line, start, _AT_ONCE, newest=False)
            shown = _shown(sifted, wanted, redaction)
            yield [_place(line, task_id, score) for task_id, score, _ in shown.tasks]


def total_of(client: Client, wanted: Filter) -> int:
    """The number of tasks that a search has to examine."""
    return sum(line.size for line in _lines(client, wanted))


def _lines(client: Client, wanted: Filter) -> list[_TaskFields]:
    """The (queue, state) pairs to search, in order."""
    names = [wanted.queue] if wanted.queue else client.queues()
    states = [wanted.state] if wanted.state else list(task_rows.STATES)
    keys = [keys_of(client).queue(name) for name in names]
    if len(keys) * len(states) <= _FEW:
        calls = [command("ZCARD", getattr(one, state), read=int) for state in states for one in keys]
        sizes = broker_of(client).run_many(calls)
    else:
        stands = [stand for some in broker_of(client).run_many(bulk_counts(keys)) for stand in some]
        sizes = [_size(stand, state) for state in states for stand in stands]
    pairs = [(state, name) for state in states for name in names]
    return [_TaskFields(name, state, size) for (state, name), size in zip(pairs, sizes, strict=True) if size]


def _size(stand: QueueSummary | str, state: str) -> int:
    return 0 if isinstance(stand, str) else int(getattr(stand.counts, state))


def _cursor(after: str) -> tuple[int, int]:
    if not after:
        return 0, 0
    line, dot, rank = after[:40].partition(".")
    if not (dot and line.isdecimal() and rank.isdecimal()):
        raise InvalidOption(f"after={after[:40]!r}: give what the page before said, or nothing")
    return int(line), int(rank)


def _sift(
    client: Client, wanted: Filter, line: _TaskFields, rank: int, most: int, *, newest: bool | None = None
) -> SearchChunk:
    call = search_state(
        keys_of(client).queue(line.queue),
        line.state,
        start=rank,
        count=_AT_ONCE,
        most=most,
        newest=line.state in LATEST_FIRST if newest is None else newest,
        id_part=wanted.id,
        type=wanted.type,
        error_part=wanted.error,
        payload_part=_parts(wanted.param),
    )
    return broker_of(client).run(call)


def _shown(sifted: SearchChunk, wanted: Filter, redaction: Redaction | None) -> SearchChunk:
    if redaction is None or not wanted.param:
        return sifted
    parts = _parts(wanted.param).lower().splitlines()
    kept = [one for one in sifted.tasks if _is_in_what_is_shown(one[2]["payload"], parts, redaction)]
    return replace(sifted, tasks=kept)


def _is_in_what_is_shown(payload: str, parts: list[str], redaction: Redaction) -> bool:
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return len(payload) <= LONGEST_PAYLOAD  # not JSON, so without names; or cut
    shown = redaction.shown(value)
    text = msgspec.json.encode(shown).decode().lower()
    return shown == value or any(part in text for part in parts)


def _parts(param: str) -> str:
    """Substrings of which a matching payload contains one. Values are in JSON: a text has quotes, a number none."""
    name, sign, value = param.partition("=")
    if not sign or not name.strip().isidentifier():
        return param
    return f'"{name.strip()}":"{value.strip()}\n"{name.strip()}":{value.strip()}\n{param}'


def _next(lines: list[_TaskFields], at: int, rank: int, sifted: SearchChunk) -> tuple[int, int]:
    """The next (index, rank). A queue that grew is searched to its new end, one that shrank to its last task."""
    is_at_end = sifted.rank == rank or (sifted.rank >= lines[at].size and sifted.rank < rank + _AT_ONCE)
    return (at + 1, 0) if is_at_end else (at, sifted.rank)


def _task_lines(client: Client, line: _TaskFields, sifted: SearchChunk) -> list[TaskRow]:
    hide = client.redaction().text
    return [line_of(_place(line, task_id, score), fields, hide) for task_id, score, fields in sifted.tasks]


def _place(line: _TaskFields, task_id: str, score: float) -> TaskPosition:
    return TaskPosition(queue=line.queue, state=line.state, id=task_id, score=score)
