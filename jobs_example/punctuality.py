"""How late flights are: counts of delays that add up exactly, and the figures that follow from them.

A `Tally` holds how many flights had which delay and nothing else. Delays are whole minutes, so twelve monthly
tallies add up to exactly the tally of the year, in any order, and an import that is run twice replaces its
own part. Means, shares and leaders are computed at the end, from whole numbers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

ON_TIME_MINUTES = 15
"""The US Department of Transportation calls a flight late when it arrives 15 minutes late or more."""


class Flight(Protocol):
    """The facts of a flight that count here; delays in minutes, None without a departure or an arrival."""

    @property
    def carrier(self) -> str:
        """Two letters."""

    @property
    def dep_delay(self) -> int | None:
        """Negative when early."""

    @property
    def arr_delay(self) -> int | None:
        """Negative when early."""


class Delays(NamedTuple):
    """A flight, as far as it counts here."""

    carrier: str
    dep_delay: int | None
    arr_delay: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many flights were planned, and how many left and arrived with each delay in minutes."""

    flights: int
    departures: Counter[int]
    arrivals: Counter[int]

    @property
    def cancelled(self) -> int:
        """Flights without a departure."""
        return self.flights - self.departures.total()

    @property
    def mean_dep_delay(self) -> float | None:
        """Minutes over the flights that departed; None when none did."""
        return _mean(self.departures)

    @property
    def mean_arr_delay(self) -> float | None:
        """Minutes over the flights that arrived; None when none did."""
        return _mean(self.arrivals)

    @property
    def on_time_share(self) -> float | None:
        """The part (0 to 1) of the arrivals that counts as on time; None when there are none."""
        arrived = self.arrivals.total()
        on_time = sum(n for delay, n in self.arrivals.items() if delay < ON_TIME_MINUTES)
        return on_time / arrived if arrived else None

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            flights=self.flights + other.flights,
            departures=_sum(self.departures, other.departures),
            arrivals=_sum(self.arrivals, other.arrivals),
        )


NOTHING = Tally(flights=0, departures=Counter(), arrivals=Counter())


class Count:
    """Counts flights one by one, by carrier; `tallies` is the outcome so far."""

    def __init__(self) -> None:
        self._flights: Counter[str] = Counter()
        self._departures: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._arrivals: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, flight: Flight) -> None:
        """Counts one more flight."""
        self._flights[flight.carrier] += 1
        if flight.dep_delay is not None:
            self._departures[flight.carrier][flight.dep_delay] += 1
        if flight.arr_delay is not None:
            self._arrivals[flight.carrier][flight.arr_delay] += 1

    @property
    def tallies(self) -> dict[str, Tally]:
        """One tally for each carrier that was seen."""
        return {
            carrier: Tally(
                flights=planned,
                departures=Counter(self._departures[carrier]),
                arrivals=Counter(self._arrivals[carrier]),
            )
            for carrier, planned in self._flights.items()
        }


def by_carrier(flights: Iterable[Flight]) -> dict[str, Tally]:
    """Counts all the flights; one tally for each carrier among them."""
    count = Count()
    for flight in flights:
        count.add(flight)
    return count.tallies


def merged(parts: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Adds up the tallies of several parts, such as months, carrier by carrier."""
    whole: dict[str, Tally] = {}
    for part in parts:
        for carrier, tally in part.items():
            whole[carrier] = whole.get(carrier, NOTHING) + tally
    return whole


def total(tallies: Mapping[str, Tally]) -> Tally:
    """All carriers as one."""
    return sum(tallies.values(), start=NOTHING)


def latest_first(tallies: Mapping[str, Tally]) -> list[str]:
    """Carriers by mean arrival delay, the latest first; those without an arrival are left out."""
    means = {carrier: tally.mean_arr_delay for carrier, tally in tallies.items()}
    known = {carrier: mean for carrier, mean in means.items() if mean is not None}
    return sorted(known, key=lambda carrier: known[carrier], reverse=True)


def _sum(one: Counter[int], other: Counter[int]) -> Counter[int]:
    both = Counter(one)
    both.update(other)
    return both


def _mean(delays: Counter[int]) -> float | None:
    number = delays.total()
    return sum(delay * n for delay, n in delays.items()) / number if number else None
