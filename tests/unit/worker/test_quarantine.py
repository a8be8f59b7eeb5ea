"""Suspects run alone, and neither they nor the others starve."""

import pytest

from jobrunner.attempt import ALONE, SUSPECT, Attempt
from jobrunner.worker.fetch import quarantine as module
from jobrunner.worker.fetch.quarantine import QUARANTINE_S, Quarantine
from tests.support.stopped_clock import FakeClock, stopped
from tests.unit.worker.attempts import attempt_at


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return stopped(monkeypatch, module)


@pytest.fixture
def cleared() -> list[Attempt]:
    return []


@pytest.fixture
def quarantine(watch: FakeClock, cleared: list[Attempt]) -> Quarantine:
    return Quarantine(cleared.append, isolates=True)


def test_others_pass(quarantine: Quarantine) -> None:
    batch = [attempt_at("x"), attempt_at("x")]
    assert quarantine.sort(batch) == (batch, [])
    assert not quarantine.is_on


def test_a_suspect_is_kept_and_what_came_with_it_goes_back(quarantine: Quarantine) -> None:
    first, suspect, second = attempt_at("x"), attempt_at("x", suspect=SUSPECT), attempt_at("x", suspect=SUSPECT)
    assert quarantine.sort([first, suspect, second]) == ([], [first, second])
    assert quarantine.to_begin(in_hand=3) is None, "others run still"
    assert quarantine.sort([first]) == ([], [first])
    assert quarantine.to_begin(in_hand=1) is suspect
    assert suspect.suspect == ALONE
    assert not quarantine.is_over([first])
    assert quarantine.is_over([suspect])
    assert not quarantine.is_on


def test_it_waits_for_the_others_no_longer_than_it_is_alone(quarantine: Quarantine, watch: FakeClock) -> None:
    suspect = attempt_at("x", suspect=SUSPECT)
    quarantine.sort([suspect])
    watch.now += QUARANTINE_S
    assert quarantine.to_begin(in_hand=9) is suspect


def test_one_that_runs_for_long_is_cleared_and_others_begin_beside_it(
    quarantine: Quarantine, watch: FakeClock, cleared: list[Attempt]
) -> None:
    suspect = attempt_at("x", suspect=SUSPECT)
    quarantine.sort([suspect])
    quarantine.to_begin(1)
    watch.now += QUARANTINE_S - 0.1
    assert not quarantine.is_over([])
    watch.now += 0.1
    assert quarantine.is_over([])
    assert cleared == [suspect]


def test_after_a_suspect_the_others_have_a_turn(quarantine: Quarantine) -> None:
    suspects, other = [attempt_at("x", suspect=SUSPECT) for _ in range(3)], attempt_at("x")
    quarantine.sort(suspects[:1])
    quarantine.to_begin(1)
    quarantine.is_over(suspects[:1])
    assert quarantine.sort([*suspects[1:], other]) == ([other], suspects[1:])
    assert quarantine.sort([*suspects[1:], other]) == ([], [suspects[2], other]), "and then a suspect again"


def hold_up(quarantine: Quarantine, watch: FakeClock, seconds: float) -> None:
    """A suspect is in quarantine for so long."""
    suspect = attempt_at("x", suspect=SUSPECT)
    quarantine.sort([suspect])
    quarantine.to_begin(1)
    watch.now += seconds
    assert quarantine.is_over([suspect])


def test_suspects_take_a_fifth_of_a_worker_that_has_other_work(quarantine: Quarantine, watch: FakeClock) -> None:
    """Of any queue: the batches of all queues come one by one, and that of the suspects may come first."""
    hold_up(quarantine, watch, 3.0)
    suspects, others = [attempt_at("x", suspect=SUSPECT) for _ in range(2)], [attempt_at("y")]
    assert quarantine.sort(suspects) == ([], suspects)
    assert not quarantine.is_on
    assert quarantine.sort(others) == (others, [])
    for _ in range(11):
        watch.now += 1.0
        assert quarantine.sort([*suspects, *others]) == (others, suspects)
    watch.now += 0.9
    assert 0 < quarantine.rest_s < 0.2
    watch.now += 0.2
    assert quarantine.sort(suspects) == ([], suspects[1:])
    assert quarantine.is_on


def test_a_worker_without_other_work_waits_two_seconds_for_some(quarantine: Quarantine, watch: FakeClock) -> None:
    hold_up(quarantine, watch, 3.0)
    suspects = [attempt_at("x", suspect=SUSPECT)]
    watch.now += 1.9
    assert quarantine.sort(suspects) == ([], suspects)
    watch.now += 0.2
    assert quarantine.sort(suspects) == ([], [])
    assert quarantine.is_on


def test_after_one_that_was_quick_the_next_is_soon(quarantine: Quarantine, watch: FakeClock) -> None:
    hold_up(quarantine, watch, 0.01)
    assert quarantine.rest_s == pytest.approx(0.04)


def test_one_that_has_not_begun_is_handed_back(quarantine: Quarantine) -> None:
    suspect = attempt_at("x", suspect=SUSPECT)
    quarantine.sort([suspect])
    assert quarantine.take_back() == [suspect]
    assert not quarantine.is_on
    quarantine.sort([suspect])
    quarantine.to_begin(1)
    assert quarantine.take_back() == []


def test_a_slot_with_a_process_of_its_own_is_isolation_enough() -> None:
    suspects = [attempt_at("x", suspect=SUSPECT) for _ in range(3)]
    assert Quarantine(lambda _: None, isolates=False).sort(suspects) == (suspects, [])
