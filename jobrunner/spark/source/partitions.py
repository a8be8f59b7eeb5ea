"""Cuts a sorted set into parts of about equal size, by marks that stay where they are when the set changes."""

import math
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import QueueKeys
from jobrunner.spark.rows.scan import Mark, ScanRange
from jobrunner.spark.source.items import QueueSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpan:
    """Scores from `first` to `last`, or below `end`."""

    first: float = -math.inf
    last: float = math.inf
    end: float | None = None

    def narrowed(self, first: float | None, last: float | None) -> "ScoreSpan":
        """The part of it between two scores."""
        return ScoreSpan(
            first=self.first if first is None else max(self.first, first),
            last=self.last if last is None else min(self.last, last),
            end=self.end,
        )

    @property
    def lower(self) -> bytes:
        """As a word of the server."""
        return _word(self.first)

    @property
    def upper(self) -> bytes:
        """As a word of the server."""
        return _word(self.last) if self.end is None else b"(" + _word(self.end)


def slices_of(broker: Broker, keys: QueueKeys, state: str, span: ScoreSpan, rows: int) -> list[QueueSlice]:
    """Slices of up to `rows` items of one state, as it stands now. Costs the server two looks for each."""
    key = getattr(keys, state)
    before, count = broker.run_many(
        [
            command("ZCOUNT", key, b"-inf", b"(" + span.lower, read=int),
            command("ZCOUNT", key, span.lower, span.upper, read=int),
        ]
    )
    ranks = [before + taken - 1 for taken in (*range(rows, count, rows), count) if taken]
    marks = [mark for mark in broker.run_many([_mark(key, rank) for rank in ranks]) if mark is not None]
    after: Mark | None = None if span.first == -math.inf else (span.first, b"")
    found, rank = [], max(0, before - 1)
    for mark, at in zip(sorted(set(marks)), ranks, strict=False):
        found.append(QueueSlice(keys.name, state, ScanRange(after=after, upto=mark, rank=rank)))
        after, rank = mark, at
    return found


def _mark(key: bytes, rank: int) -> Call[Mark | None]:
    return command("ZRANGE", key, rank, rank, b"WITHSCORES", read=_read_mark)


def _read_mark(reply: list[Any]) -> Mark | None:
    return (float(reply[1]), reply[0]) if reply else None


def _word(score: float) -> bytes:
    if math.isinf(score):
        return b"+inf" if score > 0 else b"-inf"
    return repr(score).encode()
