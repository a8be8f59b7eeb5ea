"""How much a worker holds ahead, by the rate at which it gets things done. Time is a number the test sets."""

import pytest

from jobrunner.worker.fetch import reserve_plan as module
from jobrunner.worker.fetch.reserve_plan import Prefetch
from tests.support.stopped_clock import FakeClock, stopped


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return stopped(monkeypatch, module)


@pytest.fixture
def stock(watch: FakeClock) -> Prefetch:
    return Prefetch(10, 0.03, 500)


def test_at_first_it_wants_what_its_slots_can_take(stock: Prefetch) -> None:
    assert stock.wanted(0) == 10
    stock.took(4)
    assert stock.wanted(0) == 6
    stock.took(6)
    assert stock.wanted(0) == 0


def test_short_tasks_are_held_ahead(stock: Prefetch, watch: FakeClock) -> None:
    for _ in range(50):
        stock.took(10)
        watch.now += 0.01
        stock.gave(10)
    assert stock.depth == pytest.approx(30, abs=3)
    assert stock.wanted(0) == pytest.approx(40, abs=3)


def test_tasks_shorter_than_a_measurement_are_counted_too(stock: Prefetch, watch: FakeClock) -> None:
    """Every batch ends before 2 ms are over, and the worker is idle in between."""
    for _ in range(200):
        stock.took(10)
        watch.now += 0.001
        stock.gave(10)
        watch.now += 0.001
        stock.gave(0)
    assert stock.depth > 200


def test_idle_time_does_not_lower_the_rate(stock: Prefetch, watch: FakeClock) -> None:
    for _ in range(50):
        stock.took(10)
        watch.now += 0.01
        stock.gave(10)
    before = stock.depth
    for _ in range(100):
        watch.now += 1.0
        stock.gave(0)
    assert stock.depth == before


def test_long_tasks_lower_the_rate(stock: Prefetch, watch: FakeClock) -> None:
    for _ in range(50):
        stock.took(10)
        watch.now += 0.01
        stock.gave(10)
    stock.took(10)
    for _ in range(20):
        watch.now += 0.05
        stock.gave(0)
    assert stock.depth == 0


def test_what_is_handed_back_does_not_raise_the_rate(stock: Prefetch, watch: FakeClock) -> None:
    stock.took(100)
    watch.now += 0.01
    stock.gave(0, released=100)
    assert (stock.depth, stock.in_hand) == (0, 0)


def test_nothing_more_is_wanted_while_the_backlog_is_more_than_half_full(stock: Prefetch, watch: FakeClock) -> None:
    for _ in range(50):
        stock.took(10)
        watch.now += 0.01
        stock.gave(10)
    stock.took(10)
    assert stock.wanted(stock.depth // 2 + 1) == 0
    assert stock.wanted(stock.depth // 2) > 0


def busy_at(rate: int, stock: Prefetch, watch: FakeClock) -> None:
    """All slots have been busy, for a second."""
    stock.took(10)
    for _ in range(100):
        stock.took(rate // 100)
        watch.now += 0.01
        stock.gave(rate // 100)


def test_what_ends_every_few_milliseconds_is_reported_together(stock: Prefetch, watch: FakeClock) -> None:
    busy_at(300, stock, watch)
    assert stock.pause_s == pytest.approx(4 / 300, rel=0.01)
    assert stock.ends_together(6, 256) == 6 - stock.depth // 4
    assert stock.ends_together(0, 256) == 1
    assert stock.ends_together(1000, 256) == 256


@pytest.mark.parametrize(("rate", "pause_s"), [(100, 0.02), (20_000, 0.005)])
def test_what_ended_is_soon_reported_all_the_same(stock: Prefetch, watch: FakeClock, rate: int, pause_s: float) -> None:
    busy_at(rate, stock, watch)
    assert stock.pause_s == pause_s


def test_no_end_waits_for_long_while_slots_are_free(stock: Prefetch, watch: FakeClock) -> None:
    busy_at(300, stock, watch)
    stock.gave(0, released=1)
    assert (stock.pause_s, stock.ends_together(3, 256)) == (0.005, 256)


def test_slots_that_are_free_are_filled_whatever_is_about_to_begin(stock: Prefetch) -> None:
    stock.took(4)
    assert stock.wanted(4) == 6


def test_a_batch_has_an_end(watch: FakeClock) -> None:
    assert Prefetch(1000, 0.03, 500).wanted(0) == 500


def test_it_is_stuck_when_nothing_moved_for_a_quarter_of_a_second(stock: Prefetch, watch: FakeClock) -> None:
    stock.took(20)
    watch.now += 0.2
    assert not stock.is_stuck(10)
    stock.gave(1)
    watch.now += 0.2
    assert not stock.is_stuck(9)
    watch.now += 0.1
    assert stock.is_stuck(9)
    assert not stock.is_stuck(0), "nothing waits"


def test_what_has_a_slot_of_its_own_is_stuck_later(stock: Prefetch, watch: FakeClock) -> None:
    stock.took(10)
    watch.now += 1.9
    assert not stock.is_stuck(10)
    watch.now += 0.2
    assert stock.is_stuck(10)


def test_what_was_just_taken_is_not_stuck(stock: Prefetch, watch: FakeClock) -> None:
    stock.took(10)
    watch.now += 60
    stock.gave(1)
    watch.now += 60
    stock.took(1)
    assert not stock.is_stuck(1)
