"""Reserves whose reply was lost: their tasks go back to their places, with no attempt spent."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.errors import OutcomeUnknown, ServerUnavailable
from jobrunner.worker.fetch import turn
from jobrunner.worker.fetch.turn import LostReplies, SentReserve
from tests.unit.worker.test_fetcher import Bench, LosingOne, Unreachable, push

Audit = Callable[..., dict[str, int]]
FIRST = 5_000


def sent(count: int) -> SentReserve:
    return SentReserve("q", count, FIRST, leases.reserve(Keys("p").queue("q"), count, token=FIRST))


@pytest.fixture
def asks_at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which it asks again."""
    now = [100.0]
    monkeypatch.setattr(turn, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def bench(broker: Broker, keys: Keys) -> Bench:
    return Bench(broker, keys)


def test_tasks_of_a_lost_reply_begin_with_the_next_turns_as_first_attempts(
    broker: Broker, keys: Keys, client: Client, audit: Audit
) -> None:
    way = Unreachable(broker)
    bench = Bench(way, keys)
    ids = push(client, 4)
    way.losing = True
    with pytest.raises(OutcomeUnknown):
        bench.step()
    assert audit("q")["pending"] == 3
    assert bench.fetcher.in_hand == 0

    way.losing = False
    bench.turns.wake_all()
    bench.step()
    assert audit("q") | {"pending": 1, "waiting": 3} == audit("q"), "the last was still in line"

    bench.turns.wake_all()
    bench.step()
    assert [(attempt.id, attempt.number) for attempt in bench.shelf.begin()] == [(ids[n], 1) for n in (3, 0, 1)]


def test_so_do_those_of_one_node_while_others_answer(
    broker: Broker, keys: Keys, client: Client, audit: Audit, asks_at: list[float]
) -> None:
    way = LosingOne(broker)
    bench = Bench(way, keys)
    push(client, 2)
    way.losing = True
    with pytest.raises(OutcomeUnknown):
        bench.step()
    assert audit("q")["pending"] == 2

    way.losing = False
    asks_at[0] += 1.0
    bench.step()

    assert audit("q") | {"pending": 0, "waiting": 2} == audit("q")


def test_so_do_those_that_a_broken_wait_was_to_bring(
    bench: Bench, client: Client, audit: Audit, broker: Broker
) -> None:
    bench.step()
    push(client, 2)
    broker.run_each(bench.ear.calls)
    assert audit("q")["pending"] == 2

    bench.fetcher._on_wake(None, [])
    bench.step()

    assert audit("q") | {"pending": 0, "waiting": 2} == audit("q")


def test_what_a_wait_has_brought_is_not_taken_for_lost(
    bench: Bench, client: Client, audit: Audit, broker: Broker
) -> None:
    bench.step()
    push(client, 2)
    bench.fetcher.wakeups.woken(["q"], broker.run_each(bench.ear.calls))
    assert len(bench.begun()) == 2

    bench.fetcher._on_wake(None, [])
    bench.step()

    assert audit("q")["pending"] == 2


def test_a_reserve_that_was_still_on_its_way_is_found_later(
    broker: Broker, keys: Keys, client: Client, audit: Audit, asks_at: list[float]
) -> None:
    lost = LostReplies(broker, keys)
    push(client, 3)
    lost.note(sent(2))
    lost.hand_back()
    broker.run(leases.reserve(keys.queue("q"), 2, token=FIRST))
    lost.hand_back()
    assert audit("q")["pending"] == 2, "it asks at growing intervals"

    asks_at[0] += lost.until_next(math.inf)
    lost.hand_back()

    assert audit("q") | {"pending": 0, "waiting": 3} == audit("q")


def test_leases_of_other_numbers_stay(broker: Broker, keys: Keys, client: Client, audit: Audit) -> None:
    push(client, 4)
    for count, first in ((1, FIRST - 1), (2, FIRST), (1, FIRST + 2)):
        broker.run(leases.reserve(keys.queue("q"), count, token=first))
    lost = LostReplies(broker, keys)
    lost.note(sent(2))
    lost.hand_back()

    assert audit("q") | {"pending": 2, "waiting": 2} == audit("q")


def test_the_questions_come_to_an_end(broker: Broker, keys: Keys, asks_at: list[float]) -> None:
    lost = LostReplies(broker, keys)
    assert lost.until_next(7.0) == 7.0
    lost.note(sent(2))
    pauses = []
    while (pause_s := lost.until_next(math.inf)) < math.inf:
        pauses.append(pause_s)
        asks_at[0] += pause_s
        lost.hand_back()

    assert pauses == pytest.approx([0.0, *(0.05 * 2**n for n in range(10))])


def test_a_server_that_is_away_is_asked_until_it_answers(
    broker: Broker, keys: Keys, client: Client, audit: Audit, asks_at: list[float]
) -> None:
    way: Any = Unreachable(broker)
    lost = LostReplies(way, keys)
    push(client, 2)
    broker.run(leases.reserve(keys.queue("q"), 2, token=FIRST))
    lost.note(sent(2))
    way.losing, way.run_each = True, lambda _: _raise(ServerUnavailable("away"))
    for _ in range(20):
        asks_at[0] += lost.until_next(math.inf)
        lost.hand_back()
    assert audit("q")["pending"] == 2

    del way.run_each
    way.losing = False
    asks_at[0] += lost.until_next(math.inf)
    lost.hand_back()

    assert audit("q") | {"pending": 0, "waiting": 2} == audit("q")
    assert lost.until_next(math.inf) == math.inf


@pytest.mark.parametrize("cut_off", ["the question", "the release"])
def test_a_question_or_a_release_that_is_cut_off_is_sent_again_before_a_lease_of_a_second_ends(
    broker: Broker, keys: Keys, client: Client, audit: Audit, asks_at: list[float], cut_off: str
) -> None:
    way: Any = Unreachable(broker)
    lost = LostReplies(way, keys)
    push(client, 2)
    broker.run(leases.reserve(keys.queue("q"), 2, token=FIRST))
    lost.note(sent(2))
    cuts = [cut_off == "the question", True]
    way.run_each = lambda calls: _raise(OutcomeUnknown("cut")) if cuts and cuts.pop(0) else broker.run_each(calls)

    while audit("q")["pending"]:
        asks_at[0] += lost.until_next(math.inf)
        lost.hand_back()

    assert asks_at[0] - 100.0 < 0.5
    assert not cuts


def _raise(error: Exception) -> Any:
    raise error


def test_a_reply_that_is_lost_while_others_are_asked_for_is_noted(broker: Broker, keys: Keys) -> None:
    """By the thread of the notifier, in the middle of a turn of the fetch loop: the turn failed."""
    lost = LostReplies(broker, keys)

    class MeetsAnother(float):
        def __le__(self, other: float) -> bool:
            lost.note(sent(1))
            return super().__le__(other)

        def __lt__(self, other: float) -> bool:
            lost.note(sent(1))
            return super().__lt__(other)

    for _ in range(2):
        lost.note(sent(1))
    for one in lost._lost:
        one.due_at = MeetsAnother(math.inf)
    lost.hand_back()
    assert lost.until_next(5.0) == 0.0
    assert len(lost._lost) > 4, "two, and one more for each question about them"
