"""Slices of long work follow the time that the last ones took."""

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.client.adaptive_slices import AdaptiveSlice

MS = 0.001


@pytest.fixture
def pace(broker: Broker) -> AdaptiveSlice:
    made = AdaptiveSlice(broker, 250)
    made._round_trip_s = 0.0
    return made


def test_it_begins_small_and_doubles_up_to_the_most_while_calls_are_quick(pace):
    seen = [pace.size]
    for _ in range(4):
        pace.took(pace.size, 0.1 * MS)
        seen.append(pace.size)
    assert seen == [64, 128, 250, 250, 250]


def test_a_slow_call_makes_the_next_one_as_small_as_fits_the_time(pace):
    pace.took(64, 3 * MS)
    assert pace.size == 32
    for _ in range(3):
        pace.took(pace.size, 60 * MS)
    assert pace.size == 16


def test_a_call_that_waited_for_a_processor_between_quick_ones_changes_nothing(pace):
    for took_ms in (0.6, 40, 9, 0.6, 40, 9, 0.6):
        pace.took(pace.size, took_ms * MS)
        assert pace.size >= 64
    assert pace.size == 250


def test_a_far_server_is_not_taken_for_a_slow_one(pace):
    pace._round_trip_s = 80 * MS
    pace.took(64, 80.5 * MS)
    assert pace.size == 128


def test_a_short_slice_that_was_quick_changes_nothing(pace):
    pace.took(20, 0.1 * MS)
    pace.took(0, 50 * MS)
    assert pace.size == 64


def test_a_call_is_timed_and_made_for_a_slice_of_the_present_size(pace):
    asked = []

    def slice_of(count):
        asked.append(count)
        return command("PING", read=lambda _: count)

    assert pace.run(slice_of, lambda done: done) == 64
    assert pace.run(slice_of, lambda done: done, most=5) == 5
    assert asked == [64, 5]


def test_portions_are_whole_rows_few_enough_and_of_few_bytes(pace):
    words = [word for n in range(200) for word in (f"i{n}", "to", "x" * 10, "")]
    parts = list(pace.portions(words))
    assert [word for part in parts for word in part] == words
    assert all(len(part) % 4 == 0 for part in parts)
    assert len(parts[0]) == 4 * 64
    large = [word for n in range(8) for word in (f"i{n}", "to", "x" * 400_000, "")]
    parts = list(pace.portions(large))
    assert [word for part in parts for word in part] == large
    assert all(sum(map(len, part[2::4])) <= 1 << 20 for part in parts)


def test_the_round_trip_is_measured_once_and_again_after_a_minute(broker, monkeypatch):
    now, pings = [100.0], []
    monkeypatch.setattr("jobrunner.client.adaptive_slices.monotonic", lambda: now[0])
    pace = AdaptiveSlice(broker, 250)
    pace._ping_s = lambda: pings.append(now[0]) or 0.0

    for seconds in (0, 59, 2, 58):
        now[0] += seconds
        pace.run(lambda count: command("PING", read=lambda _: count), lambda done: done)

    assert pings == [100.0] * 3 + [161.0] * 3
