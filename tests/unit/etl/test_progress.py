"""Counts, rates and the time left of a pipeline; and when nothing is left."""

from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.etl import Pipeline
from jobrunner.etl.progress import Emptied, Progress
from tests.support.clock import Clock


@pytest.fixture
def line(client: Client) -> Pipeline:
    """Two stations, played by hand."""
    made = Pipeline("p", client)
    made.station("a", to="b")(lambda item: None)
    made.sink("b")(lambda item: None)
    return made


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    """at(seconds): sets the clock that rates are measured by."""
    now = [0.0]
    monkeypatch.setattr("jobrunner.etl.progress.monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, seconds)


def pass_on(line: Pipeline, count: int) -> None:
    for lease in line.queue("a").reserve(count):
        assert lease.move("b")


def finish(line: Pipeline, count: int) -> None:
    for lease in line.queue("b").reserve(count):
        assert lease.commit()


def test_rates_and_the_time_left_come_from_two_looks(line: Pipeline, client: Client, at: Any) -> None:
    line.push_many("a", range(100))
    progress = Progress(client, line.graph)
    first = progress.look()
    pass_on(line, 20)
    finish(line, 10)
    at(2.0)
    second = progress.look()

    a, b = second.stations
    assert (first.rate.out_per_s, first.rate.left_s, first.open) == (None, None, 100)
    assert (a.queue, a.kind, a.targets, a.waiting, a.open) == ("a", "station", ("b",), 80, 80)
    assert (a.rate.in_per_s, a.rate.out_per_s, a.rate.left_s) == (0.0, 10.0, 8.0)
    assert (b.rate.in_per_s, b.rate.out_per_s, b.rate.left_s) == (10.0, 5.0, None)
    assert (second.open, second.succeeded, second.rate.out_per_s, second.rate.left_s) == (90, 10, 5.0, 18.0)


def test_nothing_open_leaves_no_time_and_what_grows_no_end(line: Pipeline, client: Client, at: Any) -> None:
    progress = Progress(client, line.graph)
    assert progress.look().rate.left_s == 0.0
    line.push("a", 1)
    at(1.0)
    grown = progress.look()
    assert (grown.rate.in_per_s, grown.rate.left_s) == (1.0, None)


def test_rates_are_those_of_the_last_ten_seconds(line: Pipeline, client: Client, at: Any) -> None:
    progress = Progress(client, line.graph)
    progress.look()
    line.push_many("a", range(50))
    for second in range(5, 40, 5):
        at(float(second))
        seen = progress.look()

    assert seen.rate.in_per_s == 0.0


def test_a_look_is_as_many_commands_whatever_is_in_the_queues(line: Pipeline, client: Client, raw: Any) -> None:
    def commands() -> int:
        before: int = raw.info("stats")["total_commands_processed"]
        Progress(client, line.graph).look()
        return int(raw.info("stats")["total_commands_processed"]) - before

    line.check()
    commands()
    empty = commands()
    line.push_many("a", range(500))
    assert commands() == empty


def test_it_is_empty_when_nothing_is_found_twice_and_nothing_happened_in_between(
    line: Pipeline, client: Client, clock: Clock
) -> None:
    clock.set()
    is_over = Emptied(client, line.graph, also_scheduled=False)
    line.push("a", 1)
    assert [is_over(), is_over()] == [False, False]
    pass_on(line, 1)
    assert is_over() is False
    finish(line, 1)
    assert is_over() is False
    line.push("a", 1)
    pass_on(line, 1)
    finish(line, 1)
    assert is_over() is False, "something passed behind the one who counts"
    assert is_over() is True


def test_what_is_paused_is_not_waited_for_and_what_is_scheduled_only_when_asked(
    line: Pipeline, client: Client, clock: Clock
) -> None:
    clock.set()
    line.push("a", 1)
    line.queue("a").pause()
    line.push("b", 1, in_=60)
    burst, drain = (Emptied(client, line.graph, also_scheduled=scheduled) for scheduled in (False, True))

    assert [burst(), burst()] == [False, True]
    assert [drain(), drain()] == [False, False]


def test_items_that_a_full_paused_queue_holds_up_are_not_waited_for(
    line: Pipeline, client: Client, clock: Clock
) -> None:
    """A worker holds them until there is room, so their number never fell to 0, and the command never ended."""
    clock.set()
    line.queue("b").configure(max_size=2)
    line.push_many("b", [1, 2])
    line.queue("b").pause()
    line.push_many("a", [3, 4])
    held = line.queue("a").reserve(1)
    is_over = Emptied(client, line.graph, also_scheduled=False)
    assert [is_over(), is_over()] == [False, True]

    line.queue("b").configure(max_size=3)
    assert [is_over(), is_over()] == [False, False]
    line.queue("b").configure(max_size=2)
    line.queue("b").resume()
    assert [is_over(), is_over()] == [False, False]
    held[0].commit()
