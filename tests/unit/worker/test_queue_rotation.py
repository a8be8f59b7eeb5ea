"""How what a worker can take is split over its queues."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.worker.fetch import reserve_plan
from jobrunner.worker.fetch.reserve_plan import QueueRotation, ReservePlan
from tests.support.stopped_clock import stopped


def serve(turns: QueueRotation, plan: ReservePlan) -> None:
    """Every queue gives all it is asked for, and every probe finds something."""
    for queue in plan.shares:
        turns.gave_all(queue)
    for queue in plan.probed:
        turns.has_tasks(queue)


def served(turns: QueueRotation, wanted: list[int]) -> Counter[str]:
    """How many tasks each queue gave."""
    found: Counter[str] = Counter()
    for count in wanted:
        plan = turns.plan(count)
        found.update(plan.shares)
        serve(turns, plan)
    return found


def full(weights: dict[str, int]) -> QueueRotation:
    turns = QueueRotation(weights, 15.0)
    for queue in weights:
        turns.gave_all(queue)
    return turns


def test_one_queue_is_asked_for_everything() -> None:
    assert QueueRotation({"a": 1}, 15.0).plan(50) == ReservePlan({"a": 50})


def test_a_paused_queue_has_no_turn_until_its_pause_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped(monkeypatch, reserve_plan)
    turns = full({"a": 1, "b": 1})
    turns.pause("a")

    for wake in (lambda: turns.wake("a"), turns.wake_all, lambda: turns.sleep("a", 0.0, 1.0)):
        wake()
        assert set(turns.plan(8).shares) == {"b"}
        assert turns.open == ["b"]
    turns.block("a")
    turns.unblock("a")
    assert set(turns.plan(8).shares) == {"b"}

    turns.sleep("b", None, 15.0)
    assert turns.until_next() == 1.0
    clock.now += 1.0
    assert turns.plan(8).shares == {"a": 8}
    assert turns.open == ["a", "b"]


def test_one_task_after_the_other_goes_round_by_weight() -> None:
    turns = QueueRotation({"a": 3, "b": 1}, 15.0)
    assert served(turns, [1] * 400) == {"a": 300, "b": 100}


@pytest.mark.parametrize("wanted", [1, 2, 7, 30, 300])
def test_many_full_queues_are_served_by_weight_whatever_is_wanted(wanted: int) -> None:
    weights = {f"q{number}": 1 + number % 3 for number in range(30)}
    found = served(full(weights), [wanted] * 3000)
    assert sum(found.values()) == 3000 * wanted
    for queue, weight in weights.items():
        assert found[queue] == pytest.approx(3000 * wanted * weight / sum(weights.values()), rel=0.05)


def test_a_queue_of_low_weight_owes_nothing_after_large_reserves() -> None:
    """It had a task of each of them, more than its weight, and then none for as long as small reserves made that up."""
    weights = {"low": 1, "middle": 5, "high": 20}
    turns = full(weights)
    for wanted, count in ((20, 3000), (1, 5200)):
        found = served(turns, [wanted] * count)
        for queue, weight in weights.items():
            assert found[queue] == pytest.approx(wanted * count * weight / 26, rel=0.1)


@pytest.mark.parametrize("wanted", [1, 2, 4, 20])
@pytest.mark.parametrize("empty", [1, 2, 6])
def test_queues_with_tasks_are_served_by_weight_beside_queues_that_wake_and_give_none(wanted: int, empty: int) -> None:
    """As empty queues, which a busy worker polls again and again, or queues whose partitions are at a limit."""
    weights = {"low": 1, "middle": 5, "high": 20}
    turns = QueueRotation(weights | {f"empty{number}": 1 for number in range(empty)}, 15.0)
    for queue in weights:
        turns.gave_all(queue)
    found: Counter[str] = Counter()
    for _ in range(3000):
        plan = turns.plan(wanted)
        for queue, share in plan.shares.items():
            if queue in weights:
                found[queue] += share
                turns.gave_all(queue)
            else:
                turns.sleep(queue, None, 30.0)
        turns.wake_all()
    for queue, weight in weights.items():
        assert found[queue] == pytest.approx(found.total() * weight / 26, rel=0.1)


@given(
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(1, 50), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 2**12)), max_size=30),
)
def test_no_more_is_reserved_than_is_wanted(weights: dict[str, int], rounds: list[tuple[int, int]]) -> None:
    turns = QueueRotation(weights, 15.0)
    for wanted, fates in rounds:
        plan = turns.plan(wanted)
        assert sum(plan.shares.values()) <= wanted
        assert all(share > 0 for share in plan.shares.values())
        assert not plan.probed or not set(plan.probed) & set(plan.shares)
        assert plan.shares == {} or sum(plan.shares.values()) == wanted, "nothing that could be taken is left out"
        for bit, queue in enumerate((*plan.shares, *plan.probed)):
            if fates >> bit & 1:
                (turns.gave_all if queue in plan.shares else turns.has_tasks)(queue)
            else:
                turns.sleep(queue, None, 30.0)
        if fates & 1:
            turns.wake_all()


def test_many_queues_of_which_nothing_is_known_are_probed_beside_the_one_that_gives() -> None:
    turns = QueueRotation({f"q{number}": 1 for number in range(64)}, 15.0)
    assert len(turns.plan(10).probed) == 64
    for number in range(1, 64):
        turns.sleep(f"q{number}", None, 30.0)
    turns.gave_all("q0")
    turns.wake_all()
    plan = turns.plan(10)
    assert plan.shares == {"q0": 10}
    assert len(plan.probed) == 63


def test_thousands_of_queues_are_probed_in_turn_whatever_wakes_them() -> None:
    """All of them in one exchange took longer than the time limit of a reply, again and again."""
    names = [f"q{n}" for n in range(1000)]
    rotation = QueueRotation(dict.fromkeys(names, 1), poll_s=15)
    rounds: list[list[str]] = []
    for _ in range(8):
        plan = rotation.plan(4)
        assert not plan.shares
        assert rotation.until_next() == 0
        rounds.append(plan.probed)
        for queue in plan.probed:
            rotation.sleep(queue, None, 30)
        rotation.wake_all()

    assert max(map(len, rounds)) == reserve_plan._MOST_PROBES
    assert sorted(queue for some in rounds[:4] for queue in some) == sorted(names)
    assert sorted(queue for some in rounds[4:] for queue in some) == sorted(names)


def test_few_queues_are_asked_for_tasks_at_once() -> None:
    plan = QueueRotation({"a": 1, "b": 1, "c": 1, "d": 1}, 15.0).plan(8)
    assert plan == ReservePlan({"a": 2, "b": 2, "c": 2, "d": 2})


@pytest.mark.parametrize("wanted", [1, 2, 30])
def test_queues_that_seem_to_have_tasks_leave_half_to_one_that_gives(wanted: int) -> None:
    """Limits of their keys may keep them from handing out anything."""
    turns = full({f"q{number}": 1 for number in range(64)})
    for number in range(1, 64):
        turns.sleep(f"q{number}", None, 30.0)
        turns.has_tasks(f"q{number}")
    shares: Counter[str] = Counter()
    for _ in range(10):
        plan = turns.plan(wanted)
        shares.update(plan.shares)
        for queue in plan.shares:
            if queue != "q0":
                turns.sleep(queue, None, 30.0)
                turns.has_tasks(queue)
    assert shares["q0"] >= 10 * wanted // 2
    assert len(shares) > 5


def test_what_a_queue_could_not_use_it_does_not_owe() -> None:
    turns = full({"a": 1, "b": 1})
    turns.plan(500)
    turns.sleep("b", None, 30.0)
    for _ in range(20):
        serve(turns, turns.plan(1))
    turns.wake("b")
    asked = [next(iter(turns.plan(1).shares)) for _ in range(4)]
    assert "b" in asked
