"""The figures of a stretch of time as they are on the server, and what they add up to."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.stats import COUNTED, DEPTH, HOUR_MS, MINUTE_MS, is_of_attempts, parts_of
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.errors import InvalidOption
from jobrunner.inspector.stats_types import Depth, Timings, Unit

Hash = Mapping[str, str]
_MARGIN = 2
"""Steps read on either side, in case this machine's clock is not the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsWindow:
    """The hashes of some steps, oldest first, and when each begins, Unix ms."""

    starts: list[float]
    step_ms: int
    hashes: list[dict[str, str]]


def read_window(client: Client, since: timedelta, unit: Unit, queue: str | None, type_: str | None) -> StatsWindow:
    """The steps up to now by the server's clock, in one round trip. Raises InvalidOption, ServerError."""
    if unit not in ("minute", "hour") or since <= timedelta(0):
        raise InvalidOption(f"since={since!r}, step={unit!r}: give a time above zero, and minute or hour")
    step_ms, kept = (MINUTE_MS, stats_calls.MINUTES_KEPT) if unit == "minute" else (HOUR_MS, stats_calls.HOURS_KEPT)
    count = min(-(-round(since.total_seconds() * 1000) // step_ms), kept)
    given = broker_of(client).now_ms()
    here = int((float(given) if given else unix_ms()) // step_ms)
    first = here - count + 1 - _MARGIN
    hashes = [_key(keys_of(client), unit, number) for number in range(first, here + _MARGIN + 1)]
    now_ms, *replies = broker_of(client).run_many([server_time(), *stats_calls.read(hashes, queue or "", type_ or "")])
    found = [one for reply in replies for one in reply]
    there = here if given else min(max(int(now_ms // step_ms), here - _MARGIN), here + _MARGIN)
    begin, end = there - count + 1 - first, there + 1 - first
    starts = [float((first + place) * step_ms) for place in range(begin, end)]
    return StatsWindow(starts=starts, step_ms=step_ms, hashes=found[begin:end])


def _key(keys: Keys, unit: Unit, number: int) -> bytes:
    return keys.stats_of_minute(number) if unit == "minute" else keys.stats_of_hour(number)


class StatsTotal:
    """Counts and times, added up."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._sums_us: dict[str, int] = {}
        self._buckets: dict[str, dict[int, int]] = {}

    def add(self, what: str, by: int) -> None:
        """One figure."""
        kind, colon, number = what.partition(":")
        if colon:
            buckets = self._buckets.setdefault(kind, {})
            buckets[whole(number)] = buckets.get(whole(number), 0) + by
        elif what.endswith("_us"):
            self._sums_us[what[:-3]] = self._sums_us.get(what[:-3], 0) + by
        else:
            self.counts[what] = self.counts.get(what, 0) + by

    def times(self, kind: str) -> Timings:
        """The times of a kind: run, wait, late, round_trip."""
        buckets = self._buckets.get(kind, {})
        return Timings(count=sum(buckets.values()), total_ms=self._sums_us.get(kind, 0) / 1000, buckets=buckets)


def summed(hashes: Iterable[Hash]) -> dict[tuple[str, str], StatsTotal]:
    """Counters of workers, by queue and type."""
    sums: dict[tuple[str, str], StatsTotal] = {}
    for hash_ in hashes:
        for queue, type_, what, by in each(hash_):
            if is_of_attempts(type_, what):
                sums.setdefault((queue, type_), StatsTotal()).add(what, by)
    return sums


def each(hash_: Hash) -> Iterator[tuple[str, str, str, int]]:
    """(queue, type, what, number) of every figure."""
    for field, value in hash_.items():
        if (parts := parts_of(field)) is not None:
            yield *parts, whole(value)


def depth(hash_: Hash) -> Depth | None:
    """The sum of all queues; None where no sample exists."""
    if stats_calls.SAMPLED not in hash_:
        return None
    sums = [0] * len(DEPTH)
    for field, value in hash_.items():
        if field.endswith(" - depth"):
            for place, word in enumerate(value.split()[: len(DEPTH)]):
                sums[place] += whole(word)
    return Depth(**dict(zip(DEPTH, sums, strict=True)))


def grown(hash_: Hash) -> dict[str, dict[str, int]]:
    """By how much the totals of each queue that was sampled grew."""
    found = {}
    for field, value in hash_.items():
        parts = parts_of(field)
        if parts is not None and parts[1:] == ("-", "to"):
            before = hash_.get(f"{parts[0]} - from", "").split()
            bases = [*before, *["0"] * len(COUNTED)]
            pairs = zip(COUNTED, value.split(), bases, strict=False)
            found[parts[0]] = {name: max(whole(to) - whole(from_), 0) for name, to, from_ in pairs}
    return found


def whole(text: str) -> int:
    """A number of the server; 0 for damage."""
    try:
        return int(text)
    except ValueError:
        return 0
