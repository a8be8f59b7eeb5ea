"""The verdict agrees when all is well, and each thing that can be wrong makes it differ."""

from collections import Counter
from dataclasses import replace

import pytest

from jobs_example.demos.checks import Check
from jobs_example.demos.flights.damage import Damaged
from jobs_example.demos.flights.published import Expected, Figures
from jobs_example.demos.flights.state import ROLES
from jobs_example.demos.flights.tables import Stored
from jobs_example.demos.flights.verdict import rightness, wholeness
from jobs_example.demos.pipelines.kills import damage_done
from jobs_example.demos.pipelines.remains import Remains
from jobs_example.punctuality import Tally

STORED = Stored(
    ids=("a", "b", "c"),
    rows={"on_time": 1, "late": 1, "cancelled": 1},
    batches=2,
    tallies={"UA": Tally(flights=3, departures=Counter({1: 1, 4: 1}), arrivals=Counter({0: 1, 20: 1}))},
    with_airline=2,
    with_plane=1,
    with_weather=2,
)
EXPECTED = Expected(
    ids=frozenset("abc"),
    figures=Figures(cancelled=1, dep_delay="2.500", arr_delay="10.000", arr_delay_by_carrier={"UA": "10.00"}),
    late=1,
    with_plane=1,
    with_weather=2,
)
DAMAGED = [Damaged(id="damaged-01", column="month", row={}), Damaged(id="damaged-02", column="carrier", row={})]
REMAINS = Remains(
    open=0,
    dead={"damaged-01": "Fail: month=13 is not between 1 and 12", "damaged-02": "Fail: the column carrier is missing"},
    staged=(),
    items=2,
)


def differing(checks: list[Check]) -> list[str]:
    return [check.what for check in checks if not check.agrees]


def test_all_agrees_when_each_item_left_once_and_the_figures_are_right() -> None:
    assert differing(wholeness(STORED, EXPECTED, REMAINS, DAMAGED)) == []
    assert differing(rightness(STORED, EXPECTED)) == []


def test_a_flight_that_is_stored_twice_is_seen() -> None:
    twice = replace(STORED, ids=("a", "b", "c", "c"))
    assert differing(wholeness(twice, EXPECTED, REMAINS, DAMAGED)) == ["rows in Parquet"]


def test_a_flight_that_is_lost_is_named_even_if_another_is_there_twice() -> None:
    checks = wholeness(replace(STORED, ids=("a", "b", "b")), EXPECTED, REMAINS, DAMAGED)
    assert differing(checks) == ["flights among them"]
    assert "2, without c" in [check.found for check in checks]


@pytest.mark.parametrize(
    ("remains", "what"),
    [
        (replace(REMAINS, open=1), "items left in the queues"),
        (replace(REMAINS, items=3), "items the server still has: the dead"),
        (replace(REMAINS, staged=("batch:x:rows:1",)), "keys left of Spark's batches"),
        (replace(REMAINS, dead={**REMAINS.dead, "a": "Fail: month"}), "dead: the damaged rows"),
        (replace(REMAINS, dead={**REMAINS.dead, "damaged-01": "Fail: TypeError"}), "of these, with the reason"),
    ],
)
def test_what_is_left_behind_is_seen(remains: Remains, what: str) -> None:
    assert differing(wholeness(STORED, EXPECTED, remains, DAMAGED)) == [what]


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        (replace(STORED, rows={**STORED.rows, "cancelled": 0}), "flights without a departure"),
        (replace(STORED, rows={**STORED.rows, "late": 2}), "late flights"),
        (replace(STORED, with_airline=1), "departures with their airline"),
        (replace(STORED, with_plane=2), "departures with their plane"),
        (replace(STORED, with_weather=0), "departures with their weather"),
    ],
)
def test_a_wrong_number_is_seen(stored: Stored, what: str) -> None:
    assert differing(rightness(stored, EXPECTED)) == [what]


def test_a_wrong_delay_is_seen_in_every_mean_it_is_part_of() -> None:
    tally = Tally(flights=3, departures=Counter({1: 1, 4: 1}), arrivals=Counter({0: 1, 21: 1}))
    assert differing(rightness(replace(STORED, tallies={"UA": tally}), EXPECTED)) == [
        "mean arrival delay, min",
        "mean arrival delay of UA, min",
    ]


def test_each_kind_of_process_must_have_been_killed_and_replaced() -> None:
    killed = [("worker", 11), ("executor", 13), ("driver", 12)]
    assert differing(damage_done(ROLES, killed, {"worker": 1, "executor": 1, "driver": 1})) == []
    assert differing(damage_done(ROLES, killed, {"worker": 1})) == ["replaced: the Spark driver"]
    assert differing(damage_done(ROLES, killed[:2], {"worker": 1})) == ["killed (-9): the Spark driver"]
