"""Calls that look at many queues or workers at once: one command where each would be one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Call, ScriptCommand
from jobrunner.broker.calls.queues import QueueCounts, read_totals
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.replies import fields, text

MOST_AT_ONCE = 50
"""Queues of one call: it keeps the server for about a millisecond then."""
MOST_WORKERS = 1000
_LIMITS = ("max_inflight", "max_size", "max_tokens", "interval_us", "interval", "interval_unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """How one queue stands. What is due counts as waiting."""

    counts: QueueCounts
    pause_ends_ms: float | None
    """None: it is not paused, or for no certain time."""
    oldest_due_ms: float | None
    """When that task was due which waits longest; None when none waits."""
    limits: Mapping[str, bytes]
    """The fields of its settings that limit it, as they are stored; none that is not set."""


def _surveyed(replies: list[Any]) -> list[QueueSummary | str]:
    return [reply.decode("utf-8", "replace") if isinstance(reply, bytes) else _stands(reply) for reply in replies]


def _stands(reply: list[Any]) -> QueueSummary:
    waiting, scheduled, pending, dead, done, paused, oldest, limits, *totals = reply
    return QueueSummary(
        counts=QueueCounts(
            *(waiting, scheduled, pending, dead, done),
            paused=bool(paused),
            totals=read_totals(totals),
        ),
        pause_ends_ms=_finite(paused) if paused not in (b"", b"1") else None,
        oldest_due_ms=_finite(oldest),
        limits={name: raw for name, raw in zip(_LIMITS, limits, strict=False) if raw},
    )


def _finite(raw: bytes) -> float | None:
    try:
        return float(raw)
    except ValueError:
        return None


def _crew_said(reply: list[Any]) -> list[tuple[str, dict[str, bytes]]]:
    return [(text(raw), fields(said)) for raw, said in reply]


_bulk_counts = ScriptCommand("queue_bulk_counts", _surveyed, divisible=True)
_list_workers = ScriptCommand("list_workers", _crew_said)


def bulk_counts(queues: Sequence[QueueKeys]) -> list[Call[list[QueueSummary | str]]]:
    """Calls that together tell of all queues, in order; of one that cannot be read the server's error as text."""
    slices = (queues[at : at + MOST_AT_ONCE] for at in range(0, len(queues), MOST_AT_ONCE))
    return [_bulk_counts.with_keys(tuple(one.settings for one in some)) for some in slices]


def list_workers(keys: Keys) -> Call[list[tuple[str, dict[str, bytes]]]]:
    """(id, what it says of itself) of the workers that are not silent, at most 1 000."""
    return _list_workers.with_keys((keys.workers,), worker=keys.worker(""), most=MOST_WORKERS)
