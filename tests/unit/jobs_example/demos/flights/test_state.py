"""The display of the pipeline demo."""

import io

import pytest
from rich.console import Console

from jobrunner.etl.progress import PipelineView, Rate, StationView
from jobs_example.demos.pipelines.log import BatchDone
from jobs_example.demos.pipelines.stations import stations_table
from tests.unit.jobs_example.demos.flights.flight_views import a_state, a_station

BATCHES = tuple(BatchDone(station="departed", items=number, seconds=2.0, epoch=1) for number in range(1001, 1008))
RAW = {"waiting": 12, "pending": 3, "dead": 2, "targets": ("departed", "cancelled"), "totals": {"moved_out": 983}}
STATE = a_state(
    RAW,
    {"totals": {"moved_out": 400}},
    succeeded=300,
    dead=2,
    killed=(("worker", 9),),
    batches=(*BATCHES, BatchDone(station="late", items=77, seconds=0.5, epoch=2)),
)


def test_a_summary_says_how_far_it_is() -> None:
    assert STATE.summary() == (
        "  4.2 s  1000 of 1000 pushed, 983 cleaned, 400 enriched, 300 stored, 2 dead; 8 Spark batches; 1 killed"
    )


def test_a_person_sees_stations_processes_and_the_last_batches() -> None:
    stream = io.StringIO()
    Console(file=stream, width=130).print(STATE.picture())
    seen = stream.getvalue()

    for word in ("raw", "departed, cancelled", "950", "Parquet", "Python worker", "13, 14", "8 done", "1007", "154"):
        assert word in seen
    assert "handed out 2 times" in seen
    assert "1003" not in seen


def test_a_chain_is_one_row_unless_something_is_in_a_queue_within_it() -> None:
    def drawn(within: StationView) -> str:
        head = a_station("checked", "spark station", targets=("priced",), is_chained=True)
        view = PipelineView(name="l", stations=(head, within), open=0, dead=0, succeeded=0, dropped=0, rate=Rate())
        stream = io.StringIO()
        Console(file=stream, width=130).print(stations_table(view, at_the_end="Delta"))
        return stream.getvalue()

    idle = drawn(a_station("priced", "spark sink"))
    assert "Delta" in next(line for line in idle.splitlines() if "checked" in line)
    assert "priced" not in idle
    assert "priced" in drawn(a_station("priced", "spark sink", waiting=1))


def test_it_is_over_when_all_has_entered_and_nothing_is_on_its_way() -> None:
    assert a_state({}, {}, succeeded=964, dead=36).is_over


@pytest.mark.parametrize(
    ("raw", "given"),
    [
        ({}, {"succeeded": 963, "dead": 36}),
        ({"pending": 1}, {"succeeded": 964, "dead": 36}),
        ({}, {"succeeded": 964, "dead": 36, "pushed": 999}),
        ({}, {"succeeded": 863, "dead": 36, "pushed": 899}),
    ],
)
def test_it_is_not_over_while_something_is_missing(raw: dict[str, int], given: dict[str, int]) -> None:
    assert not a_state(raw, {}, **given).is_over
