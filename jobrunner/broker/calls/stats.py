"""Calls about statistics: counts and measurements by minute, by hour, and since the prefix exists.

A field is ``<queue> <type> <name>``. Workers count: `succeeded`, `failed`, `dead`, `cancelled`, `dropped`,
`moved`, `snoozed`, `stale` (reports that came too late), `run_us` and `wait_us` (sums), and `run:<n>` and `wait:<n>`,
the number of durations in bucket n: below 1 ms for n = 0, else from 2^((n-1)/2) to below 2^(n/2) ms; the last bucket
has no upper bound. The lateness of a periodic job is `late:<n>` and `late_us` of its queue and type. Type `-` is for
fields of no job: once a minute the leader samples `depth`, numbers in the order of DEPTH, and the totals of a queue at
the begin (`from`) and the end (`to`), in the order of COUNTED. Queue `-` is for fields of no queue: `round_trip:<n>`,
with buckets in microseconds, and `round_trip_us`.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, groupby
from typing import Any

import msgspec

from jobrunner.broker.call import Call, ScriptCommand, command, fields, in_slices, text, text_fields
from jobrunner.broker.calls.queues import QueueCounts, read_totals
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.resp import Arg

BUCKETS = 51
BOUNDS_MS: tuple[float, ...] = tuple(2 ** (n / 2) for n in range(BUCKETS - 1))
"""Bucket n holds durations below BOUNDS_MS[n]; the last bucket has no bound."""
bucket: Callable[[float], int] = partial(bisect_right, BOUNDS_MS)
"""The number of the bucket of a duration in ms."""
DEPTH = ("waiting", "scheduled", "pending", "dead")
COUNTED = ("enqueued", "succeeded", "failed", "dead", "cancelled", "dropped", "moved_out", "recovered", "expired")
"""Sampled totals of a queue. Their growth includes changes that no worker counts."""
OUTCOMES = {"succeeded": "succeeded", "failed": "failed", "dead": "dead", "cancelled": "cancelled",
            "dropped": "dropped", "moved_out": "moved"}  # fmt: skip
"""Totals of a queue that count outcomes of attempts, and the names of these outcomes in the counts of workers."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MINUTES_KEPT, HOURS_KEPT = 1500, 768
SAMPLED = "#sampled"
_FIELDS_AT_ONCE = 400
_HASHES_AT_ONCE = 20
_SCANNED_AT_ONCE = 2000

_observe = ScriptCommand("stats_add", int)
_sample = ScriptCommand("stats_sample", int)


def _figures(reply: list[Any]) -> list[dict[str, str]]:
    """The statistics fields of each hash; the fields of writers, whose names have no blank, are left out."""
    found = [text_fields(one) for one in reply]
    return [{name: by for name, by in one.items() if " " in name or name == SAMPLED} for one in found]


_stats = ScriptCommand("stats_read", _figures)


def field_of(queue: str, type: str, what: str) -> str:  # noqa: A002 - the word of this package
    """The field of a figure."""
    return f"{queue} {type} {what}"


def is_of_attempts(type: str, what: str) -> bool:  # noqa: A002
    """Whether a figure counts attempts of workers, not samples or ticks of the leader."""
    return type != "-" and not what.startswith("late")


def parts_of(field: str) -> tuple[str, str, str] | None:
    """(queue, type, what) of a field; None for a field that is no figure."""
    queue, _, rest = field.partition(" ")
    type_, blank, what = rest.rpartition(" ")
    return (queue, type_, what) if blank else None


@lru_cache(maxsize=20_000)  # the hashes of an hour have the same fields, sixty times
def attempt_field(field: str) -> tuple[str, str, str] | None:
    """(queue, type, what) of a figure of attempts; None for every other field."""
    parts = parts_of(field)
    return parts if parts is not None and is_of_attempts(parts[1], parts[2]) else None


def observe(keys: Keys, now_ms: float, writer: str, first: int, changes: Mapping[str, int]) -> list[Call[int]]:
    """Adds to the figures of the minute and the hour of `now_ms`: one call for each 400 fields, numbered from `first`.
    The figures of a queue and type are in one call, so a reader sees all of them or none.

    A repeated call adds nothing. Reply: 1, or 0 for a repeated call.
    """
    minute = int(now_ms // MINUTE_MS)
    hashes = (keys.stats_of_minute(minute), keys.stats_of_hour(minute // 60), keys.stats_total)
    return [
        _observe.with_keys(hashes, rest=chain.from_iterable(some), writer=writer, report=number)
        for number, some in enumerate(_whole_types(changes), first)
    ]


def _whole_types(changes: Mapping[str, int]) -> Iterator[list[tuple[str, int]]]:
    """Slices of up to 400 figures that do not divide those of a queue and type, unless these are more."""
    found: list[tuple[str, int]] = []
    for _, figures in groupby(changes.items(), key=lambda one: one[0].rpartition(" ")[0]):
        for some in in_slices(list(figures), _FIELDS_AT_ONCE):
            if len(found) + len(some) > _FIELDS_AT_ONCE:
                yield found
                found = []
            found += some
    if found:
        yield found


def sample(keys: Keys, now_ms: float, found: Mapping[str, QueueCounts]) -> Call[int]:
    """Samples depth and totals of queues; `found`: counts by queue. Reply: the number of queues with a sample."""
    minute = int(now_ms // MINUTE_MS)
    hashes = (keys.stats_of_minute(minute), keys.stats_of_hour(minute // 60), keys.stats_sampled)
    words: list[Arg] = []
    for queue, one in found.items():
        depth = " ".join(str(getattr(one, state)) for state in DEPTH)
        words += (queue, depth, " ".join(str(one.totals.get(name, 0)) for name in COUNTED))
    return _sample.with_keys(hashes, rest=words, at_ms=round(now_ms))


def read(hashes: Sequence[bytes], queue: str = "", type: str = "") -> list[Call[list[dict[str, str]]]]:  # noqa: A002
    """Reads these hashes, twenty for each call; only fields of `queue` and `type` when these are passed."""
    return [
        _stats.with_keys(tuple(some), queue=queue, type=type) for some in in_slices(hashes, _HASHES_AT_ONCE)
    ]


def by_type_and_together(keys: QueueKeys) -> Call[list[dict[str, str]]]:
    """The totals of a queue by type, ``<type> <outcome>`` → count, and over all types, by name. Both are read at one
    moment, so the former never exceed the latter; the difference belongs to no type."""
    call = _stats.with_keys((keys.types, keys.counters), queue="", type="")
    return msgspec.structs.replace(call, read=lambda reply: [text_fields(one) for one in reply])


def some_totals(keys: Keys, cursor: int) -> Call[tuple[int, dict[str, str]]]:
    """(cursor of the next slice, 0 after the last; a slice of the figures since the prefix exists)."""
    return command(
        "HSCAN", keys.stats_total, cursor, "COUNT", _SCANNED_AT_ONCE,
        read=lambda reply: (int(reply[0]), text_fields(reply[1])),
    )  # fmt: skip


def totals_of(keys: Keys, fields: Sequence[str]) -> Call[dict[str, str]]:
    """These figures since the prefix exists, of one moment; without those that do not exist."""
    return command(
        "HMGET", keys.stats_total, *fields,
        read=lambda reply: {
            field: text(by) for field, by in zip(fields, reply, strict=True) if by is not None
        },
    )  # fmt: skip


MOST_AT_ONCE = 50
"""Queues per call, which blocks the server for about a millisecond."""
MOST_WORKERS = 1000
_LIMITS = ("max_inflight", "max_size", "max_tokens", "interval_us", "interval", "interval_unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """Counts, age and limits of one queue. Due tasks, and those with an expired lease, count as waiting."""

    counts: QueueCounts
    pause_ends_ms: float | None
    """When the pause ends, Unix ms; None: the queue is not paused, or is paused until a resume."""
    oldest_due_ms: float | None
    """The due time of the task that has waited longest, Unix ms; None when no task waits."""
    limits: Mapping[str, bytes]
    """The stored values of the settings that limit the queue; settings without a value are absent."""


def _summaries(replies: list[Any]) -> list[QueueSummary | str]:
    return [reply.decode("utf-8", "replace") if isinstance(reply, bytes) else _summary(reply) for reply in replies]


def _summary(reply: list[Any]) -> QueueSummary:
    waiting, scheduled, pending, dead, done, paused, oldest, limits, *totals = reply
    return QueueSummary(
        counts=QueueCounts(
            *(waiting, scheduled, pending, dead, done),
            paused=bool(paused),
            totals=read_totals(totals),
        ),
        pause_ends_ms=_number(paused) if paused not in (b"", b"1") else None,
        oldest_due_ms=_number(oldest),
        limits={name: raw for name, raw in zip(_LIMITS, limits, strict=False) if raw},
    )


def _number(raw: bytes) -> float | None:
    """A stored number; None for an empty or damaged value."""
    try:
        return float(raw)
    except ValueError:
        return None


def _descriptions(reply: list[Any]) -> list[tuple[str, dict[str, bytes]]]:
    return [(text(raw), fields(said)) for raw, said in reply]


_bulk_counts = ScriptCommand("queue_bulk_counts", _summaries)
_list_workers = ScriptCommand("list_workers", _descriptions)


def bulk_counts(queues: Sequence[QueueKeys]) -> list[Call[list[QueueSummary | str]]]:
    """Calls that together read summaries of all queues, in order; the text of the server's error for a queue that
    cannot be read."""
    return [
        _bulk_counts.for_each(tuple(one.settings for one in some)) for some in in_slices(queues, MOST_AT_ONCE)
    ]


def list_workers(keys: Keys) -> Call[list[tuple[str, dict[str, bytes]]]]:
    """Id and description of the workers with a recent heartbeat, at most 1 000."""
    return _list_workers.with_keys((keys.workers,), worker=keys.worker(""), most=MOST_WORKERS)
