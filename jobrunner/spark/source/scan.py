"""Scans part of a sorted set, page by page, while other clients change the set, and divides a set into such parts.

A part is a range in the order of the set: by score, then by member. Changes of the set do not move its bounds.
Invariant: a member that keeps its score from the beginning to the end of the scan is read exactly once, whichever other
members are added or removed. Pages are requested by rank, which is cheap at any depth, and overlap by one member: when
the first member of a page is behind the last member read, earlier members were removed, and the scan steps back.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.redis_errors import server_error
from jobrunner.broker.resp import pack

Mark = tuple[float, bytes]
"""A position in the order of a set: score and member."""
Ask = Callable[..., Any]
_STEP_BACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """Members behind `after` (None: from the first) up to and including `upto`. `rank`: the approximate rank of
    `after`."""

    after: Mark | None
    upto: Mark
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPage:
    """Members in the order of the set, and their scores as the server wrote them."""

    ids: list[bytes]
    scores: list[bytes]


class SetScan:
    """A scan of one range. `packed` is the request for the next page, `take` returns the page of its reply, until
    `ended`."""

    def __init__(self, key: bytes, part: ScanRange) -> None:
        self._key = key
        self._upto = part.upto
        self._after = part.after
        self._rank = part.rank
        self._count = 0
        self.ended = False

    def packed(self, count: int) -> bytes:
        """The request for a page of up to `count` members."""
        self._count = count
        return pack(self._words())

    def take(self, reply: list[bytes] | Exception, ask: Ask) -> ScanPage:
        """Returns the page of a reply; empty only at the end. `ask` sends a command when the scan has to step back.
        Raises ServerRefused for the reply of a key that is no sorted set."""
        step = _STEP_BACK
        while True:
            if isinstance(reply, Exception):
                raise server_error(reply) from reply
            ids, scores = reply[::2], reply[1::2]
            if self._is_beyond(ids, scores):
                before = ask(b"ZCOUNT", self._key, b"-inf", b"(%b" % repr(self._after[0]).encode())  # type: ignore[index]
                self._rank, step = max(0, min(before, self._rank) - step), step * 4
            else:
                page = self._fresh(ids, scores)
                if page.ids or self.ended:
                    return page
            reply = ask(*self._words())

    def _words(self) -> list[bytes | int]:
        return [b"ZRANGE", self._key, self._rank, self._rank + self._count, b"WITHSCORES"]

    def _is_beyond(self, ids: list[bytes], scores: list[bytes]) -> bool:
        if self._after is None or self._rank == 0:
            return False
        return not ids or (float(scores[0]), ids[0]) > self._after

    def _fresh(self, ids: list[bytes], scores: list[bytes]) -> ScanPage:
        full = len(ids) > self._count
        first, end = self._first_new(ids, scores), len(ids)
        last = (float(scores[-1]), ids[-1]) if ids else self._upto
        if last >= self._upto:
            end = bisect_right(_Positions(ids, scores), self._upto)
        self.ended = not full or last >= self._upto
        if ids:
            self._rank += len(ids) - 1
            self._after = last if self._after is None else max(last, self._after)
        return ScanPage(ids=ids[first:end], scores=scores[first:end])

    def _first_new(self, ids: list[bytes], scores: list[bytes]) -> int:
        if self._after is None or not ids:
            return 0
        if ids[0] == self._after[1] and float(scores[0]) == self._after[0]:
            return 1
        return bisect_right(_Positions(ids, scores), self._after)


class _Positions:
    """A page as a sequence of marks, each created on access."""

    def __init__(self, ids: list[bytes], scores: list[bytes]) -> None:
        self._ids, self._scores = ids, scores

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: int) -> Mark:
        return float(self._scores[place]), self._ids[place]


class QueueSlice(InputPartition):
    """A part of one sorted set of a queue."""

    def __init__(self, queue: str, state: str, part: ScanRange) -> None:
        super().__init__((queue, state, part.rank))
        self.queue = queue
        self.state = state
        self.part = part
        self.is_whole = False
        """Whether an entry without its hash is an error, for a stream."""
        self.is_open = False
        """Whether the slice extends to the end of the set at the time of the read."""
        self.planned: frozenset[tuple[str, str]] | None = None
        """For one slice of a plan: the queues and states that have slices. Its reader reads all others, too."""

    @property
    def begins(self) -> float:
        """The lowest score of its entries."""
        return -math.inf if self.part.after is None else self.part.after[0]

    def up_to_the_end(self, broker: Broker, key: bytes) -> ScanRange:
        """The range to read now; that of an open slice extends to the current end of the set."""
        last = broker.run(_mark(key, -1)) if self.is_open else None
        return self.part if last is None else replace(self.part, upto=max(self.part.upto, last))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpan:
    """Scores from `first` to `last`, or below `end`."""

    first: float = -math.inf
    last: float = math.inf
    end: float | None = None

    def narrowed(self, first: float | None, last: float | None) -> "ScoreSpan":
        """The part of the span between two scores."""
        return ScoreSpan(
            first=self.first if first is None else max(self.first, first),
            last=self.last if last is None else min(self.last, last),
            end=self.end,
        )

    @property
    def is_open(self) -> bool:
        """Whether the span has no end."""
        return self.last == math.inf and self.end is None

    @property
    def limit(self) -> Mark:
        """The position before which all its members are."""
        return (math.nextafter(self.last, math.inf) if self.end is None else self.end), b""

    @property
    def lower(self) -> bytes:
        """The lower bound, as an argument of a sorted-set command."""
        return _word(self.first)

    @property
    def upper(self) -> bytes:
        """The upper bound, as an argument of a sorted-set command."""
        return _word(self.last) if self.end is None else b"(" + _word(self.end)


def slices_of(broker: Broker, keys: QueueKeys, state: str, span: ScoreSpan, rows: int) -> list[QueueSlice]:
    """Divides the current items of one state into slices of about `rows` items. Sends one command for each slice.

    Together the slices cover the span, even if items leave the set meanwhile: ranks, which then shift, determine only
    the inner borders.
    """
    key = getattr(keys, state)
    before, count = broker.run_many(
        [
            command("ZCOUNT", key, b"-inf", b"(" + span.lower, read=int),
            command("ZCOUNT", key, span.lower, span.upper, read=int),
        ]
    )
    if not count:
        return []
    ranks = [before + taken - 1 for taken in range(rows, count, rows)]
    *inner, last = broker.run_many([_mark(key, rank) for rank in (*ranks, -1)])
    upto = last if span.is_open else span.limit
    if upto is None:
        return []
    after: Mark | None = None if span.first == -math.inf else (span.first, b"")
    found, rank = [], max(0, before - 1)
    for mark, at in zip(inner, ranks, strict=True):
        if mark is not None and mark < upto and (after is None or after < mark):
            found.append(QueueSlice(keys.name, state, ScanRange(after=after, upto=mark, rank=rank)))
            after, rank = mark, at
    return [*found, QueueSlice(keys.name, state, ScanRange(after=after, upto=upto, rank=rank))]


def _mark(key: bytes, rank: int) -> Call[Mark | None]:
    return command("ZRANGE", key, rank, rank, b"WITHSCORES", read=_read_mark)


def _read_mark(reply: list[Any]) -> Mark | None:
    return (float(reply[1]), reply[0]) if reply else None


def _word(score: float) -> bytes:
    if math.isinf(score):
        return b"+inf" if score > 0 else b"-inf"
    return repr(score).encode()
