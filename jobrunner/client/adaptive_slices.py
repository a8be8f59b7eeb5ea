"""Adapts the batch size so that one Lua call blocks Redis for about 1.5 ms.

A script blocks the server, and several drivers call at once. A number of rows that takes 2 ms on one machine takes 15
on a busy machine or with large rows, so no fixed size fits both. The time of an empty round trip is subtracted: a
distant server is not a slow one. On a busy machine server and client also wait for a processor, and a measurement
cannot tell that from work. Waiting only adds time, so the shortest of the last few times per row counts: by the
longest, slices would shrink to a few rows, and the busy machine would have ten times the calls.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final, TypeVar

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls.server import ping
from jobrunner.clock import monotonic, perf_counter

T = TypeVar("T")
_TARGET_S: Final = 0.0015
_LEAST: Final = 16
_FIRST: Final = 64
_PINGS: Final = 3
_TRUSTED_S: Final = 60.0
"""How long a measured round trip is trusted: after a failover another server answers."""
_BYTES_AT_ONCE: Final = 1 << 20
_SHORTEST_S: Final = 1e-5
_REMEMBERED: Final = 3
"""How many slices' times count; the size has adapted after that many slices of larger rows."""


class AdaptiveSlice:
    """The size of the next slice of one kind of work, computed from the times of the last slices; at most `most`. Keep
    the object for the same kind of work, so that neither size nor round trip has to be learned anew."""

    def __init__(self, broker: Broker, most: int) -> None:
        self._broker = broker
        self._most = most
        self._round_trip_s: float | None = None
        self._measure_again_at = inf
        self._seconds_each: deque[float] = deque(maxlen=_REMEMBERED)
        self.size = min(_FIRST, most)

    def run(self, slice_of: Callable[[int], Call[T]], done: Callable[[T], int], *, most: int | None = None) -> T:
        """Runs the call for a slice of the present size; `done` returns the amount of work from its reply."""
        count = self.size if most is None else min(self.size, most)
        self._learn_round_trip()
        began = perf_counter()
        reply = self._broker.run(slice_of(count))
        self.took(done(reply), perf_counter() - began)
        return reply

    def portions(self, words: Sequence[bytes | str]) -> Iterator[Sequence[bytes | str]]:
        """Yields parts of whole rows, four words each, bounded in number and bytes. The caller sends each part before
        it asks for the next: the time between counts as the time of the call."""
        self._learn_round_trip()
        at = 0
        while at < len(words):
            part = words[at : at + 4 * self.size]
            while len(part) > 4 and sum(map(len, part[2::4])) > _BYTES_AT_ONCE:
                part = part[: len(part) // 8 * 4]
            began = perf_counter()
            yield part
            self.took(len(part) // 4, perf_counter() - began)
            at += len(part)

    def took(self, count: int, seconds: float) -> None:
        """Records that `count` rows took `seconds`, round trip included."""
        if count < _LEAST:  # too few for a measurement
            return
        spent_s = max(seconds - (self._round_trip_s or 0.0), _SHORTEST_S)
        self._seconds_each.append(spent_s / count)
        fits = int(_TARGET_S / min(self._seconds_each))
        if fits < self.size or count >= self.size:  # a fast short slice is no reason for a longer one
            self.size = min(max(min(fits, 2 * count), _LEAST), self._most)

    def _learn_round_trip(self) -> None:
        if self._round_trip_s is None or monotonic() > self._measure_again_at:
            self._round_trip_s = min(self._ping_s() for _ in range(_PINGS))
            self._measure_again_at = monotonic() + _TRUSTED_S

    def _ping_s(self) -> float:
        began = perf_counter()
        self._broker.run(ping())
        return perf_counter() - began
