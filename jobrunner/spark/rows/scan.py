"""A walk along part of a sorted set, page by page, while others change the set.

A part is a range in the order of the set: by score, then by member. What must hold: a member that keeps its score from
the beginning to the end of the walk is seen exactly once, whatever comes and goes around it. Pages are asked for by
rank, which is cheap at any depth, and overlap by one member: when the first member of a page is behind the last one
seen, members before it have gone, and the walk steps back.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import pack

Mark = tuple[float, bytes]
"""A place in the order of a set: score and member."""
Ask = Callable[..., Any]
_STEP_BACK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """Members behind `after` (None: from the first) up to and including `upto`. `rank`: about where `after` stands."""

    after: Mark | None
    upto: Mark
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPage:
    """Members in the order of the set, and their scores as the server wrote them."""

    ids: list[bytes]
    scores: list[bytes]


class SetScan:
    """One walk. `packed` is the request for the next page, `take` makes a page of its reply, until `ended`."""

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

    def take(self, reply: list[bytes], ask: Ask) -> ScanPage:
        """The page of a reply; empty only at the end. `ask` sends a command when the walk has to step back."""
        step = _STEP_BACK
        while True:
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
    """A page as a sequence of marks, made only where they are looked at."""

    def __init__(self, ids: list[bytes], scores: list[bytes]) -> None:
        self._ids, self._scores = ids, scores

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: int) -> Mark:
        return float(self._scores[place]), self._ids[place]
