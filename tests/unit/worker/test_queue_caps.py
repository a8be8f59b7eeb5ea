"""Caps on single queues of a worker: what is planned, and what happens to hints."""

import math

from hypothesis import given
from hypothesis import strategies as st

from jobrunner.worker.fetch import queue_caps
from jobrunner.worker.fetch.queue_caps import CappedRotation


def test_a_share_is_cut_to_the_cap_and_the_rest_goes_to_others():
    turns = CappedRotation({"slow": 1, "a": 1, "b": 1}, 15.0, {"slow": 2})
    shares = turns.plan(12).shares

    assert shares["slow"] <= 2
    assert sum(shares.values()) == 12


def test_a_queue_at_its_cap_has_no_turn_until_a_task_of_it_ends():
    turns = CappedRotation({"slow": 5, "a": 1}, 15.0, {"slow": 2})
    turns.took("slow", 2)
    turns.sleep("a", None, 30)
    for wake in (turns.wake_all, lambda: turns.wake("slow"), lambda: turns.has_tasks("slow")):
        wake()
        assert "slow" not in turns.plan(4).shares
    turns.sleep("a", None, 30)
    turns.sleep("slow", 0.0, 30)
    assert turns.until_next() > 1, "a full queue is not polled"

    turns.ended(["slow", "a"])
    assert turns.until_next() == 0
    assert turns.plan(4).shares == {"slow": 1}


def test_a_queue_without_a_turn_is_left_to_the_leader():
    turns = CappedRotation({"slow": 5, "a": 1, "b": 1}, 15.0, {"slow": 2})
    turns.sleep("a", None, 30)
    assert turns.polled == {"slow", "a", "b"}
    turns.took("slow", 2)
    turns.block("b")
    assert turns.polled == {"a"}
    turns.ended(["slow"])
    turns.unblock("b")
    assert turns.polled == {"slow", "a", "b"}


def test_a_blocked_queue_stays_blocked_when_its_tasks_end():
    turns = CappedRotation({"slow": 1}, 15.0, {"slow": 1})
    turns.took("slow", 1)
    turns.block("slow")
    turns.ended(["slow"])
    assert turns.plan(1).shares == {}
    turns.took("slow", 1)
    turns.unblock("slow")
    assert turns.plan(1).shares == {}
    turns.ended(["slow"])
    assert turns.plan(1).shares == {"slow": 1}


def test_the_notifier_reserves_from_no_queue_that_is_near_its_cap():
    turns = CappedRotation({"slow": 1, "one": 1, "a": 1}, 15.0, {"slow": 3, "one": 1})
    assert turns.open == ["slow", "a"], "two may come at once"
    turns.took("slow", 2)
    assert turns.open == ["a"]


def test_the_notifier_reserves_no_more_than_a_cap_from_all_shards_together():
    weights = {"mail": 1, "mail@1": 1, "a": 1}
    assert CappedRotation(weights, 15.0, {"mail": 4}).open == ["mail", "mail@1", "a"]
    assert CappedRotation(weights, 15.0, {"mail": 3}).open == ["a"]


def test_a_hint_of_a_full_queue_is_passed_on_once_and_then_kept_for_a_while(monkeypatch):
    now = 100.0
    monkeypatch.setattr(queue_caps, "monotonic", lambda: now)
    turns = CappedRotation({"slow": 1}, 15.0, {"slow": 1})
    turns.took("slow", 1)

    assert turns.passes_on("slow")
    now += 0.01
    assert not turns.passes_on("slow"), "no other worker wanted it"
    assert turns.due_hints() == []
    assert 0.23 < turns.until_hint() < 0.25
    now += 0.25
    assert turns.due_hints() == ["slow"]
    assert turns.passes_on("slow")
    assert turns.until_hint() == math.inf


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), min_size=1),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 63), st.booleans()), max_size=40),
)
def test_no_cap_is_exceeded_and_what_is_wanted_is_not_either(caps, rounds):
    turns = CappedRotation(dict.fromkeys("abcdefgh", 1), 15.0, caps)
    held = dict.fromkeys("abcdefgh", 0)
    for wanted, ends, gives_all in rounds:
        turns.wake_all()
        plan = turns.plan(wanted)
        assert sum(plan.shares.values()) <= wanted
        for queue, share in plan.shares.items():
            assert share > 0
            held[queue] += share
            if gives_all:
                turns.gave_all(queue)
            else:
                turns.sleep(queue, None, 30)
            turns.took(queue, share)
            assert held[queue] <= caps.get(queue, math.inf)
        over = [queue for n, queue in enumerate(held) if ends >> n & 1 and held[queue]]
        for queue in over:
            held[queue] -= 1
        turns.ended(over)
