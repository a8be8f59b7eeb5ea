"""The worst of the weather of a day, from its hours."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from jobs_example.dataset import Weather


@dataclass(frozen=True, slots=True, kw_only=True)
class DayOfWeather:
    """The worst of the weather of one day at one airport; None where nothing was measured."""

    origin: str
    day: str
    hours: int
    max_wind_mph: float | None
    precip_inches: float | None
    min_visibility_miles: float | None


def days_of_weather(hours: Iterable[Weather]) -> Iterator[DayOfWeather]:
    """Sums up hours, in the order of the data set, to days; None where nothing was measured."""
    for (origin, day), group in groupby(hours, key=lambda hour: (hour.origin, hour.day)):
        of_day = list(group)
        winds = [hour.wind_mph for hour in of_day if hour.wind_mph is not None]
        rain = [hour.precip_inches for hour in of_day if hour.precip_inches is not None]
        sight = [hour.visibility_miles for hour in of_day if hour.visibility_miles is not None]
        yield DayOfWeather(
            origin=origin,
            day=day.isoformat(),
            hours=len(of_day),
            max_wind_mph=max(winds, default=None),
            precip_inches=round(sum(rain), 2) if rain else None,
            min_visibility_miles=min(sight, default=None),
        )
