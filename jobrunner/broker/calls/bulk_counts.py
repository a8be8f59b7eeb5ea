"""Calls that read many queues or workers at once: one command for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Call, ScriptCommand
from jobrunner.broker.calls.queues import QueueCounts, read_totals
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.replies import fields, text

MOST_AT_ONCE = 50
"""Queues of one call, which then blocks the server for about a millisecond."""
MOST_WORKERS = 1000
_LIMITS = ("max_inflight", "max_size", "max_tokens", "interval_us", "interval", "interval_unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """The counts of one queue. Tasks that are due count as waiting."""

    counts: QueueCounts
    pause_ends_ms: float | None
    """None: it is not paused, or for no certain time."""
    oldest_due_ms: float | None
    """When the task was due that has waited longest; None when none waits."""
    limits: Mapping[str, bytes]
    """The fields of its settings that limit it, as they are stored, without those that are not set."""


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
        pause_ends_ms=_finite(paused) if paused not in (b"", b"1") else None,
        oldest_due_ms=_finite(oldest),
        limits={name: raw for name, raw in zip(_LIMITS, limits, strict=False) if raw},
    )


def _finite(raw: bytes) -> float | None:
    try:
        return float(raw)
    except ValueError:
        return None


def _descriptions(reply: list[Any]) -> list[tuple[str, dict[str, bytes]]]:
    return [(text(raw), fields(said)) for raw, said in reply]


_bulk_counts = ScriptCommand("queue_bulk_counts", _summaries, divisible=True)
_list_workers = ScriptCommand("list_workers", _descriptions)


def bulk_counts(queues: Sequence[QueueKeys]) -> list[Call[list[QueueSummary | str]]]:
    """Calls that together read all queues, in order; for one that cannot be read the server's error as text."""
    slices = (queues[at : at + MOST_AT_ONCE] for at in range(0, len(queues), MOST_AT_ONCE))
    return [_bulk_counts.with_keys(tuple(one.settings for one in some)) for some in slices]


def list_workers(keys: Keys) -> Call[list[tuple[str, dict[str, bytes]]]]:
    """Id and description of the workers with a recent heartbeat, at most 1 000."""
    return _list_workers.with_keys((keys.workers,), worker=keys.worker(""), most=MOST_WORKERS)
