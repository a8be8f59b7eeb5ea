"""slice_*: slices of the limits of a queue with partitions, seen in each shard."""

import pytest

from jobrunner.broker.calls import leases, queues, slices
from jobrunner.broker.calls.slices import Begun, Gift

HOUR_US = 3_600_000_000
NONE = (None, None)


@pytest.fixture
def shard(line):
    """shard(number): a shard of the queue mail."""
    return lambda number: line(f"mail@{number}" if number else "mail")


def begin(shard, inflight=None, tokens=None, generation=1):
    """A shard with these slices."""
    shard.configure(
        slice_generation=generation,
        **({} if inflight is None else {"max_inflight": 9, "slice_inflight": inflight}),
        **({} if tokens is None else {"max_tokens": 9, "interval_us": HOUR_US, "slice_tokens": tokens}),
    )
    return shard


def read(shard):
    return shard.run(slices.read(shard.keys))


def give(shard, *gifts, generation=1, hold=None):
    return shard.run(slices.give(shard.keys, generation, gifts, hold=hold))


def take(shard, giver, gift, generation=1):
    return shard.run(slices.take(shard.keys, giver.name, generation, gift))


def test_a_shard_gives_what_it_does_not_use_and_another_takes_it_once(shard):
    giver, taker = begin(shard(0), 5), begin(shard(1), 1)
    giver.enqueue(*"abc")
    giver.reserve(2)
    (gift,) = give(giver, (taker.name, 4, 0))
    assert (gift.shard, gift.leases, gift.tokens) == ("mail@1", 3, 0)
    assert read(giver).inflight == 2
    assert read(giver).gifts == [gift]
    assert giver.reserve(9) == []

    assert take(taker, giver, gift) == "taken"
    assert taker.wakes()
    assert take(taker, giver, gift) == "had"
    assert read(taker).inflight == 4
    assert giver.run(slices.forget(giver.keys, [Gift(gift.shard, "0 9 9 9 9")])) == 0
    assert giver.run(slices.forget(giver.keys, [gift])) == 1
    assert read(giver).gifts == []


def test_a_shard_without_a_rate_gives_no_tokens(shard):
    giver, taker = begin(shard(0), 5), begin(shard(1), 1)
    (gift,) = give(giver, (taker.name, 2, 1))
    assert (gift.leases, gift.tokens) == (2, 0)


def test_all_that_a_shard_says_of_its_limits_is_read(shard, clock):
    there = begin(shard(1), 3, 4, generation=7)
    there.enqueue(*"abcdef")
    there.reserve(2)
    (gift,) = give(there, ("mail@2", 1, 1), generation=7, hold=2)

    assert read(there) == slices.ShardSlices(
        generation=7, inflight=2, tokens=3, hold=None, interval_us=HOUR_US, max_inflight=9, max_tokens=9,
        is_paused=False, waiting=4, pending=2, level=1, enqueued=6, gifts=[gift],
    )  # fmt: skip
    there.configure(slice_hold=1)
    assert read(there).hold == 1


@pytest.mark.parametrize(("paused", "is_so"), [("1", True), (-1, False), (0, False), (1, True), ("", False)])
def test_a_pause_counts_until_it_ends(shard, clock, paused, is_so):
    there = begin(shard(1), 3)
    there.configure(paused=clock.ms + paused if isinstance(paused, int) else paused)
    assert read(there).is_paused == is_so


@pytest.mark.parametrize(("leases", "tokens"), [(2, 2), (2, 0), (0, 2), (1, 2)])
def test_a_gift_may_be_of_leases_and_of_tokens(shard, leases, tokens):
    giver = begin(shard(0), 5, 4)
    (gift,) = give(giver, ("mail@1", leases, tokens))
    assert (gift.leases, gift.tokens) == (leases, tokens)
    assert (read(giver).inflight, read(giver).tokens) == (5 - leases, 4 - tokens)


@pytest.mark.parametrize("tokens", [0, 4])
def test_a_gift_of_leases_alone_leaves_the_bucket_as_it_is(shard, tokens):
    giver = begin(shard(0), 5, tokens)
    (gift,) = give(giver, ("mail@1", 2, 0))
    assert gift.note.split()[1:4] == ["2", "0", "0"]
    assert not giver.raw.exists(giver.keys.bucket)


def test_a_shard_without_a_slice_of_leases_gives_none(shard):
    giver = begin(shard(0), tokens=4)
    (gift,) = give(giver, ("mail@1", 2, 1))
    assert (gift.leases, gift.tokens) == (0, 1)
    assert read(giver).inflight is None


def test_a_gift_of_nothing_is_none(shard):
    giver = begin(shard(0), 5, 4)
    before = giver.snapshot()
    assert give(giver, ("mail@1", 0, 0)) == []
    assert giver.snapshot() == before


def test_a_give_that_is_repeated_gives_nothing_twice_and_one_of_another_generation_nothing(shard):
    giver = begin(shard(0), 5, generation=2)
    first = give(giver, ("mail@1", 2, 0), generation=2)
    assert give(giver, ("mail@1", 2, 0), generation=2) == first
    assert give(giver, ("mail@2", 2, 0), generation=1) == []
    assert read(giver).inflight == 3


@pytest.mark.parametrize(("generation", "answer"), [(1, "early"), (3, "late")])
def test_a_gift_of_another_generation_is_refused(shard, generation, answer):
    giver, taker = begin(shard(0), 5, generation=2), begin(shard(1), 1, generation=generation)
    (gift,) = give(giver, (taker.name, 2, 0), generation=2)
    before = taker.snapshot()
    assert take(taker, giver, gift, generation=2) == answer
    assert taker.snapshot() == before


def test_a_hold_keeps_back_leases_until_they_are_given_away(shard):
    giver, taker = begin(shard(0), 3), begin(shard(1), 0)
    giver.enqueue(*"abcdef")
    held = giver.reserve(9)
    assert give(giver, (taker.name, 1, 0), hold=2) == []
    assert (read(giver).inflight, read(giver).hold, read(giver).usable) == (3, 2, 2)
    giver.commit(held[0])
    assert giver.reserve(9) == []
    assert not giver.run(queues.probe(giver.keys)).has_tasks
    (gift,) = give(giver, (taker.name, 1, 0), hold=2)
    assert (read(giver).inflight, read(giver).hold) == (2, None)
    giver.commit(held[1])
    assert len(giver.reserve(9)) == 1
    assert take(giver, taker, gift) == "taken"
    assert read(giver).inflight == 3


def test_what_is_received_ends_a_hold(shard):
    one, other = begin(shard(0), 3), begin(shard(1), 3)
    one.enqueue(*"abc")
    one.reserve(3)
    give(one, hold=1)
    assert read(one).hold == 1
    (gift,) = give(other, (one.name, 1, 0))
    assert take(one, other, gift) == "taken"
    assert (read(one).inflight, read(one).hold) == (4, None)


def test_tokens_that_are_received_leave_a_hold(shard):
    one = begin(shard(0), 3, 3)
    one.enqueue(*"abc")
    one.reserve(3)
    give(one, hold=1)
    assert take(one, shard(1), Gift(one.name, f"1 0 1 0 {HOUR_US}")) == "taken"
    assert (read(one).tokens, read(one).hold) == (4, 1)


def test_tokens_move_with_the_slice_and_are_never_more_together(shard):
    giver, taker = begin(shard(0), tokens=4), begin(shard(1), tokens=2)
    giver.enqueue(*"abcd")
    taker.enqueue(*"efghijkl")
    assert len(giver.reserve(2)) == 2
    assert len(taker.reserve(9)) == 2
    (gift,) = give(giver, (taker.name, 0, 2))
    assert read(giver).level == 1
    assert take(taker, giver, gift) == "taken"
    assert (read(taker).tokens, read(taker).level) == (4, 1)
    assert len(taker.reserve(9)) == 1
    assert len(giver.reserve(9)) == 1


def test_tokens_flow_as_fast_as_the_slice_is_large(shard, clock):
    giver, taker = begin(shard(0), tokens=4), begin(shard(1), tokens=0)
    taker.enqueue(*"abcdefgh")
    giver.enqueue(*"ijklmnop")
    giver.reserve(4)
    assert taker.reserve(9) == []
    (gift,) = give(giver, (taker.name, 0, 4))
    assert take(taker, giver, gift) == "taken"
    clock.advance(HOUR_US / 2000)
    assert len(taker.reserve(9)) == 2
    assert giver.reserve(9) == []


def test_a_slice_of_nothing_hands_out_nothing(shard):
    there = begin(shard(1), 0)
    there.enqueue("a")
    reply = there.run(leases.reserve(there.keys, 1, token="1"))
    assert (reply.attempts, reply.next_event_ms) == ([], None)


def enter(shard, generation, limits, before, *, may_exceed=False, **fields):
    return shard.run(slices.enter(shard.keys, generation, limits, before, fields, may_exceed=may_exceed))


def settle(shard, generation, limits, others, *, may_exceed=False, **fields):
    return shard.run(slices.settle(shard.keys, generation, limits, others, fields, may_exceed=may_exceed))


@pytest.mark.parametrize(
    ("before", "limit", "slice_", "left"),
    [
        (10, 10, 4, 4), (10, 5, 4, 3), (10, 20, 4, 4), (None, 10, None, 3), (10, 0, 4, 3), (10, 5, 9, 4),
        (None, 10, 5, 5),
    ],
)
def test_a_division_reduces_slices_in_proportion_but_not_below_what_is_used(shard, before, limit, slice_, left):
    there = begin(shard(1), slice_)
    there.enqueue(*"abc")
    there.reserve(3)
    assert enter(there, 2, (limit, None), (before, None), max_attempts=3) == Begun(left, 0)
    assert read(there).generation == 2
    assert read(there).tokens is None
    assert there.run(queues.settings(there.keys))["max_attempts"] == b"3"
    assert enter(there, 3, (0, None), (10, None), may_exceed=True) == Begun(0, 0)


def test_a_division_that_is_repeated_replies_as_before_and_an_older_one_does_nothing(shard):
    there = begin(shard(1), 4)
    assert enter(there, 2, (10, None), (10, None)) == Begun(4, 0)
    (gift,) = give(there, ("mail@2", 3, 0), generation=2)
    assert enter(there, 2, (10, None), (10, None)) == Begun(4, 0)
    assert read(there).gifts == [gift]
    before = there.snapshot()
    assert enter(there, 1, (10, None), (10, None)) == Begun(superseded_by=2)
    assert there.snapshot() == before
    assert enter(there, 3, (10, None), (10, None)) == Begun(1, 0)
    assert read(there).gifts == [], "what was under way is void"


def test_a_division_ends_a_hold(shard):
    there = begin(shard(1), 4)
    there.configure(slice_hold=1)
    enter(there, 2, (10, None), (10, None))
    assert (read(there).inflight, read(there).hold) == (4, None)


def test_the_first_shard_has_what_the_others_have_not(shard):
    first = begin(shard(0), 4, 4)
    generation = first.run(slices.allocate_generation(first.keys, above=2))
    assert settle(first, generation, (10, 8), (3, 8), max_inflight=10) == Begun(7, 0)
    assert read(first).max_inflight == 10
    give(first, ("mail@1", 2, 0), generation=generation)
    assert settle(first, generation, (10, 8), (3, 8)) == Begun(7, 0)
    assert read(first).inflight == 5
    assert settle(first, generation - 1, (10, 8), (3, 8)) == Begun(superseded_by=generation)
    last = first.run(slices.allocate_generation(first.keys))
    assert settle(first, generation, (10, 8), (3, 8)) == Begun(superseded_by=last)
    assert settle(first, last, (None, None), (0, 0)) == Begun()
    assert (read(first).inflight, read(first).tokens) == NONE


def test_too_many_leases_for_the_first_shard_are_refused_and_nothing_changes(shard):
    first = begin(shard(0), 4)
    first.enqueue(*"abc")
    first.reserve(3)
    generation = first.run(slices.allocate_generation(first.keys, above=2))
    before = first.snapshot()
    assert settle(first, generation, (10, None), (8, 0), max_attempts=2).is_held_up
    assert first.snapshot() == before
    assert settle(first, generation, (10, None), (8, 0), may_exceed=True) == Begun(2, 0)


def test_only_one_caller_looks_at_a_time(shard, clock):
    assert shard(0).run(slices.claim(shard(0).keys, for_ms=60_000))
    assert not shard(0).run(slices.claim(shard(0).keys, for_ms=60_000))


def test_tokens_for_a_shard_without_a_rate_are_received_and_change_nothing(shard):
    giver, taker = begin(shard(0), tokens=5), begin(shard(1), 1)
    (gift,) = give(giver, (taker.name, 0, 3))
    assert take(taker, giver, gift) == "taken"
    assert (read(taker).tokens, read(taker).enqueued) == (None, 0)


def test_a_level_that_is_received_in_another_interval_is_never_rounded_up(shard):
    taker = begin(shard(1), tokens=2)
    taker.enqueue("a", "b")
    taker.reserve(2)
    before = float(taker.raw.hget(taker.keys.bucket, "level"))
    assert take(taker, shard(0), Gift(taker.name, "1 0 1 1 7")) == "taken"
    assert float(taker.raw.hget(taker.keys.bucket, "level")) - before == HOUR_US // 7
