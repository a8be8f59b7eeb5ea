"""Finds tasks on the server, page by page, within a budget of time. It writes nothing.

Each call examines a bounded piece of one state of a queue, and the server returns the tasks that match. When the time
is up, the search returns the tasks found so far with a cursor to continue from; so no search blocks the server or a
person, however many tasks there are. `SearchPage.onward` distinguishes an unfinished search from a search without
results.

Invariant: a search that is continued to its end finds every task that matched from its start to its end, whatever other
tasks come and go: a cursor names the last task examined and its score, never a rank.
"""

import base64
import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from jobrunner.broker.call import Call, in_slices
from jobrunner.broker.calls.search import SearchChunk, search_state, state_size
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import from_ms, perf_counter
from jobrunner.errors import NO_ANSWER, InvalidOption, JobrunnerError
from jobrunner.inspector import task_rows
from jobrunner.inspector.search_filter import Filter, match_of, without_hidden
from jobrunner.inspector.shards import queue_of, with_shards
from jobrunner.inspector.task_rows import LATEST_FIRST, TaskPosition, TaskRow, line_of
from jobrunner.redaction import Redaction

STATES = (*task_rows.STATES, "done")
ORDERS = ("newest", "oldest")
_NARROW_FIRST = ("pending", "dead", "scheduled", "waiting", "done")
"""The order in which a search with conditions examines states: states that operators ask for and that hold few tasks
come before the backlog."""
EXAMINED_AT_ONCE = 250
"""Tasks examined by one call, which blocks the server for 1 to 3 ms."""
_SIZES_AT_ONCE = 2000
"""Sets whose sizes are read in one round trip, so that other clients wait for a few milliseconds at most."""
_LINES_AT_ONCE = 100
_MOST_CALLS = 20
_FEW = 8
_LONGEST_ID = 300

Problems: TypeAlias = tuple[tuple[str, str], ...]
"""Queues that were not searched, or not all shards of them, each with the reason: these cannot be counted, as their
cluster node is unreachable.
OTHERS (see shards.py) stands for those of which not even the names can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """A page of results. `onward` is the cursor of the next page, empty once everything was examined; `searched` of
    `total` tasks were examined so far."""

    tasks: list[TaskRow]
    searched: int
    total: int
    onward: str
    timed_out: bool
    """Whether the time was up before the page was full, so the search is not finished."""
    problems: Problems = ()


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The tasks of one state of a queue, in one sorted set."""

    queue: str
    state: str
    size: int


class _Cursor(msgspec.Struct, array_like=True, frozen=True):
    """The position where a search continues: after the task (score, id) of a line, of which `read` tasks were
    examined."""

    state: str
    queue: str
    read: int = 0
    score: str = ""
    id: str = ""


_read_cursor = msgspec.json.Decoder(_Cursor)


def search(
    client: Client,
    wanted: Filter,
    *,
    after: str = "",
    limit: int = 50,
    budget_s: float = 0.1,
    redaction: Redaction | None = None,
    order: str = "",
) -> SearchPage:
    """One page of tasks, state by state, queue by queue (by name), each in order of its time.

    Without further conditions: pending, waiting, scheduled, dead; a search with conditions examines dead before
    scheduled and waiting. `order` is newest or oldest; by default dead and finished tasks come newest first, other
    tasks in queue order. With a `redaction` no hidden value matches, as a user who may not see it could otherwise guess
    it letter by letter; nor do payloads above 16 KiB match by their contents, as they are not searched for hidden
    values, nor errors with hidden values by text after their first 16 KiB.

    `after` is the `onward` of the previous page. Raises InvalidOption for a damaged one, InvalidName, ServerError.
    """
    if order not in ("", *ORDERS):
        raise InvalidOption(f"order={order!r}: give one of {', '.join(ORDERS)}, or nothing")
    lines, problems = _counted(client, wanted)
    at, here = _position(lines, wanted, after)
    ends = perf_counter() + budget_s  # without the counting: for 2,000 queues it takes as long as the search
    found: list[TaskRow] = []
    for call in range(_MOST_CALLS):
        if at >= len(lines) or len(found) >= limit or (call and perf_counter() > ends):
            break
        for chunk in _chunks(client, wanted, lines[at : at + _LINES_AT_ONCE], limit - len(found), here, order):
            rows = _rows(client, lines[at], without_hidden(chunk, wanted, redaction))
            if len(found) + len(rows) > limit:  # the next call reads as many as fit: a cursor comes after whole chunks
                break
            found += rows
            at, here = _next(lines, at, here, chunk)
            if here is not None:
                break
    total = sum(line.size for line in lines)
    searched = min(sum(line.size for line in lines[:at]) + (here.read if here else 0), total)
    onward = _write_cursor(here or _Cursor(lines[at].state, lines[at].queue)) if at < len(lines) else ""
    is_late = bool(onward) and len(found) < limit
    return SearchPage(
        tasks=found, searched=searched, total=total, onward=onward, timed_out=is_late, problems=problems
    )


def matching(client: Client, wanted: Filter, redaction: Redaction | None = None) -> Iterator[list[TaskPosition]]:
    """All tasks that match, up to 250 at a time, read lazily; `redaction` as in `search`.

    Changing a yielded task does not shift the search, which continues after its score. Tasks that enter a state
    meanwhile do not prolong the search without end: it examines at most twice as many tasks as there were at the start.
    """
    for line in _lines(client, wanted):
        newest = line.state in LATEST_FIRST
        for chunk in _all_chunks(client, wanted, line, EXAMINED_AT_ONCE, newest=newest, payloads=False):
            shown = without_hidden(chunk, wanted, redaction)
            yield [_place(line, task_id, score) for task_id, score, _ in shown.tasks]


def latest(
    client: Client, wanted: Filter, *, redaction: Redaction | None = None,
    examined: Callable[[int], None] | None = None, unread: Callable[[Problems], object] | None = None,
) -> Iterator[TaskRow]:  # fmt: skip
    """All dead or finished tasks that match, of all queues and shards together, latest first, read lazily as in
    `matching`. `examined` is called with the number of tasks that each call has examined; `unread` with the `problems`
    of `search`, which are raised without it."""
    lines, problems = _counted(client, wanted, is_strict=unread is None)
    if unread is not None:
        unread(problems)
    each = max(EXAMINED_AT_ONCE // max(len(lines), 1), _FEW)  # payloads of all lines are in memory at once

    def of_line(line: _Stretch) -> Iterator[TaskRow]:
        for chunk in _all_chunks(client, wanted, line, each, newest=True, payloads=True):
            if examined is not None:
                examined(chunk.read)
            yield from _rows(client, line, without_hidden(chunk, wanted, redaction))

    return heapq.merge(*map(of_line, lines), key=lambda row: row.when or from_ms(0), reverse=True)


def total_of(client: Client, wanted: Filter) -> int:
    """The number of tasks that a search has to examine."""
    return sum(line.size for line in _lines(client, wanted))


def _lines(client: Client, wanted: Filter) -> list[_Stretch]:
    """The lines to search, in order, without empty lines. Raises for a line that cannot be counted, if there are few
    lines."""
    return _counted(client, wanted, is_strict=True)[0]


def _counted(client: Client, wanted: Filter, *, is_strict: bool = False) -> tuple[list[_Stretch], Problems]:
    """The lines to search, and the queues that cannot be counted. Raises when none can be counted.

    Each size is that of a sorted set as it is, although due tasks and those with expired leases count as waiting
    elsewhere: they are still in the set of their former state until maintenance moves them, and are found there alone.
    """
    unread: dict[str, str] = {}
    names = sorted(with_shards(client, [wanted.queue] if wanted.queue else None, None if is_strict else unread))
    states = [wanted.state] if wanted.state else _states(wanted)
    pairs = [(state, name) for state in states for name in names]
    key, match = keys_of(client).state, match_of(wanted)
    calls = [state_size(key(name, state), state, match) for state, name in pairs]
    sizes = [size for some in in_slices(calls, _SIZES_AT_ONCE) for size in broker_of(client).run_each(some)]
    failed = {name: str(size) for (_, name), size in zip(pairs, sizes, strict=True) if not isinstance(size, int)}
    errors = [size for size in sizes if isinstance(size, JobrunnerError)]
    if is_strict and len(pairs) > _FEW:  # a damaged queue among many keeps no operation from the others
        errors = [one for one in errors if isinstance(one, NO_ANSWER)]
    if errors and (is_strict or len(failed) == len(names)):
        raise errors[0]
    sized = zip(pairs, sizes, strict=True)
    found = [_Stretch(name, state, size) for (state, name), size in sized if name not in failed and size]
    problems = {queue_of(name): problem for name, problem in failed.items()}  # users know no shards
    return found, (*problems.items(), *unread.items())


def _states(wanted: Filter) -> list[str]:
    """The states to search, always in the same order for one filter, as a cursor relies on it."""
    states = _NARROW_FIRST if wanted.is_narrow else task_rows.STATES
    return [state for state in states if state in task_rows.STATES]


def _position(lines: list[_Stretch], wanted: Filter, after: str) -> tuple[int, _Cursor | None]:
    """The line where a search begins or continues: the next line when that of the cursor is empty by now."""
    if not after:
        return 0, None
    cursor = _cursor(after)
    states = [wanted.state] if wanted.state else _states(wanted)
    if cursor.state not in states:
        raise InvalidOption(f"after={after[:40]!r} is of another search: give what the page before said, or nothing")
    place = (states.index(cursor.state), cursor.queue)
    for at, line in enumerate(lines):
        here = (states.index(line.state), line.queue)
        if here >= place:
            return at, cursor if here == place and cursor.score else None
    return len(lines), None


def _cursor(after: str) -> _Cursor:
    try:
        cursor = _read_cursor.decode(base64.b64decode(after, altchars=b"-_", validate=True))
        if (cursor.score and not math.isfinite(float(cursor.score))) or cursor.read < 0:
            raise ValueError(cursor.score)
    except (ValueError, msgspec.MsgspecError) as error:  # binascii's errors are ValueErrors
        raise InvalidOption(f"after={after[:40]!r}: give what the page before said, or nothing") from error
    return cursor


def _write_cursor(cursor: _Cursor) -> str:
    short = msgspec.structs.replace(cursor, id=cursor.id[:_LONGEST_ID])
    return base64.urlsafe_b64encode(msgspec.json.encode(short)).decode()


def _chunks(
    client: Client, wanted: Filter, lines: list[_Stretch], most: int, here: _Cursor | None, order: str
) -> list[SearchChunk]:
    """The next tasks of the first line and, if it has few, of the following lines, in one round trip: with a queue for
    each customer, a page would otherwise take one for each row. Without conditions reads only the lines that fill the
    page."""
    calls, before = [], 0
    for line in lines:
        newest = order == "newest" if order else line.state in LATEST_FIRST
        fit = most if wanted.is_narrow else most - before
        calls.append(_call(client, wanted, line, fit, here, newest=newest, payloads=True))
        before += max(line.size - (here.read if here else 0), 0)
        here = None
        if before >= (EXAMINED_AT_ONCE if wanted.is_narrow else most):
            break
    return broker_of(client).run_many(calls)


def _all_chunks(
    client: Client, wanted: Filter, line: _Stretch, most: int, *, newest: bool, payloads: bool
) -> Iterator[SearchChunk]:
    """Reads a line to its end, up to `most` matching tasks at a time; each chunk is read lazily."""
    here = None
    while here is None or here.read < 2 * line.size:
        chunk = broker_of(client).run(_call(client, wanted, line, most, here, newest=newest, payloads=payloads))
        yield chunk
        if chunk.is_end or not chunk.read:
            return
        here = _behind(line, here, chunk)


def _call(
    client: Client, wanted: Filter, line: _Stretch, most: int, here: _Cursor | None, *, newest: bool, payloads: bool
) -> Call[SearchChunk]:
    return search_state(
        keys_of(client).queue(line.queue),
        line.state,
        count=EXAMINED_AT_ONCE,
        most=most,
        after=(here.score, here.id) if here else ("", ""),
        newest=newest,
        match=match_of(wanted),
        payloads=payloads,
    )


def _next(lines: list[_Stretch], at: int, here: _Cursor | None, chunk: SearchChunk) -> tuple[int, _Cursor | None]:
    """The next position. A line that grew is searched to its new end."""
    if chunk.is_end or not chunk.read:
        return at + 1, None
    return at, _behind(lines[at], here, chunk)


def _behind(line: _Stretch, here: _Cursor | None, chunk: SearchChunk) -> _Cursor:
    score, task_id = chunk.last
    return _Cursor(line.state, line.queue, (here.read if here else 0) + chunk.read, score, task_id)


def _rows(client: Client, line: _Stretch, chunk: SearchChunk) -> list[TaskRow]:
    redaction = client.redaction()
    return [line_of(_place(line, task_id, score), fields, redaction) for task_id, score, fields in chunk.tasks]


def _place(line: _Stretch, task_id: str, score: float) -> TaskPosition:
    return TaskPosition(queue=line.queue, state=line.state, id=task_id, score=score)
