"""The checks at the end of the demo of the pipeline.

Two questions. Did each item leave once: is every flight in one row of one table, is every damaged row dead with its
reason, is nothing left behind? And is it right: are the figures of the tables the published ones?
"""

from collections.abc import Iterable, Mapping

from jobs_example.demos.checks import Check, same, same_names
from jobs_example.demos.flights.damage import Damaged
from jobs_example.demos.flights.published import Expected, Figures
from jobs_example.demos.flights.tables import Stored
from jobs_example.demos.pipelines.remains import Remains


def wholeness(stored: Stored, expected: Expected, remains: Remains, damaged: Iterable[Damaged]) -> list[Check]:
    """Whether each item left exactly once, at the end where it belongs."""
    bad = {one.id: one.column for one in damaged}
    told = sum(column in remains.dead.get(task_id, "") for task_id, column in bad.items())
    return [
        same("rows in Parquet", len(expected.ids), len(stored.ids)),
        same_names("flights among them", expected.ids, set(stored.ids)),
        same_names("dead: the damaged rows", bad.keys(), remains.dead.keys()),
        same("of these, with the reason", len(bad), told),
        same("items left in the queues", 0, remains.open),
        same("items the server still has: the dead", len(bad), remains.items),
        same("keys left of Spark's batches", 0, len(remains.staged)),
    ]


def rightness(stored: Stored, expected: Expected) -> list[Check]:
    """Whether the figures are the published ones, and everything was joined that can be."""
    found, right = Figures.of(stored.tallies), expected.figures
    departed = len(expected.ids) - right.cancelled
    return [
        same("flights without a departure", right.cancelled, stored.rows["cancelled"]),
        same("late flights", expected.late, stored.rows["late"]),
        same("departures with their airline", departed, stored.with_airline),
        same("departures with their plane", expected.with_plane, stored.with_plane),
        same("departures with their weather", expected.with_weather, stored.with_weather),
        same("mean departure delay, min", right.dep_delay, found.dep_delay),
        same("mean arrival delay, min", right.arr_delay, found.arr_delay),
        *_by_carrier(right.arr_delay_by_carrier, found.arr_delay_by_carrier),
    ]


def _by_carrier(right: Mapping[str, str], found: Mapping[str, str]) -> list[Check]:
    return [
        same(f"mean arrival delay of {carrier}, min", mean, found.get(carrier, "none"))
        for carrier, mean in right.items()
    ]
