"""Days of weather from hours."""

from datetime import date

from jobs_example import dataset
from jobs_example.dataset import Weather
from jobs_example.office.weather import DayOfWeather, days_of_weather


def an_hour(hour: int, wind: float | None, rain: float | None, sight: float | None) -> Weather:
    return Weather("EWR", date(2013, 5, 1), hour, 60.0, wind, rain, sight)


def test_a_day_keeps_the_worst_of_its_hours() -> None:
    hours = [an_hour(1, 5.0, 0.1, 10.0), an_hour(2, 30.0, None, 0.5), an_hour(3, None, 0.2, None)]

    assert list(days_of_weather(hours)) == [
        DayOfWeather(
            origin="EWR",
            day="2013-05-01",
            hours=3,
            max_wind_mph=30.0,
            precip_inches=0.3,
            min_visibility_miles=0.5,
        )
    ]


def test_what_was_not_measured_is_none() -> None:
    (day,) = days_of_weather([an_hour(1, None, None, None)])

    assert (day.max_wind_mph, day.precip_inches, day.min_visibility_miles) == (None, None, None)


def test_the_year_has_every_day_at_every_airport_but_one() -> None:
    days = {(day.origin, day.day) for day in days_of_weather(dataset.weather())}

    assert len(days) == 3 * 364
