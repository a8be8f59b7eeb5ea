"""batch_decide: the one step from which on a batch happens."""

import pytest

from jobrunner.broker.calls import batches
from jobrunner.errors import BatchLost, ServerRefused


@pytest.fixture
def held(line):
    queue = line("o/a")
    queue.enqueue("x", "y")
    queue.run(batches.fill(queue.keys, "b", 1, had=0, count=2, lease_ms=1000, turn=1))
    queue.run(batches.stage(queue.keys, "b", 1, "n", ["x", "b", "1", ""]))
    return queue


def decide(line, epoch=1, nonces=("n",)):
    return line.run(batches.decide(line.keys, "b", epoch, list(nonces), rest="dropped"))


def test_it_names_the_targets_and_leaves_the_batch_for_anyone(held, clock):
    assert decide(held) == ("b",)

    assert held.scores("finishing") == {"b": clock.ms + 1000}
    assert held.scores("batches") == {}
    assert held.ids("pending") == ["x", "y"]
    assert held.raw.zcard(held.keys.base + b"b:waiting") == 0


def test_a_write_whose_lease_lasts_a_day_is_for_anyone_a_minute_behind_its_decision(line, clock):
    queue = line("o/a")
    queue.run(batches.begin(queue.keys, "b", lease_ms=86_400_000, shared={}))
    queue.run(batches.stage(queue.keys, "b", 1, "n", ["x", "a", "1", '{"new":1}']))
    decide(queue)
    assert queue.scores("finishing") == {"b": clock.ms + 60_000}


def test_the_same_decision_again_is_answered_as_before_also_when_the_batch_is_done(held, clock):
    decide(held)
    clock.advance(9000)
    assert decide(held) == ("b",)
    while not held.run(batches.advance(held.keys, "b")).done:
        pass
    assert decide(held) == ()


def test_nobody_else_decides(held, clock):
    before = held.snapshot()
    with pytest.raises(BatchLost):
        decide(held, epoch=2)
    clock.advance(1000)
    with pytest.raises(BatchLost):
        decide(held)
    assert held.snapshot() == before
    held.run(batches.claim(held.keys, "b", lease_ms=1000))
    with pytest.raises(BatchLost):
        decide(held)
    decide(held, epoch=2)
    with pytest.raises(BatchLost):
        decide(held, epoch=3)


def test_nothing_is_rolled_forward_before_it(held):
    before = held.snapshot()
    with pytest.raises(BatchLost):
        held.run(batches.advance(held.keys, "b"))
    assert held.snapshot() == before


def test_rows_that_the_server_lost_are_missed(held, clock):
    """A restart or a failover took them, and left the batch and its lease: its members would end without them."""
    held.run(batches.stage(held.keys, "b", 1, "m", ["y", "", "no", ""]))
    for lost in (["n"], ["n", "m"]):
        counts = {"n": 1, "m": 1}
        for nonce in lost:
            held.raw.delete(held.keys.batch + f"b:rows:1.{nonce}".encode())
        with pytest.raises(ServerRefused, match="batch b: the server restarted"):
            held.run(batches.decide(held.keys, "b", 1, counts, rest="dropped"))
    assert held.scores("batches") == {"b": clock.ms + 1000}
    assert held.raw.exists(held.keys.batch + b"b:manifest") == 0


@pytest.mark.parametrize("short", ["n", "m", "o"])
def test_each_list_must_have_as_many_rows_as_its_writer_says(held, short):
    row = ["x", "b", "1", ""]
    held.run(batches.stage(held.keys, "b", 1, "m", 2 * row))
    held.run(batches.stage(held.keys, "b", 1, "o", 3 * row))
    counts = {"n": 1, "m": 2, "o": 3}
    before = held.snapshot()

    with pytest.raises(ServerRefused, match="batch b: the server restarted"):
        held.run(batches.decide(held.keys, "b", 1, counts | {short: counts[short] + 1}, rest="dropped"))
    assert held.snapshot() == before

    held.run(batches.decide(held.keys, "b", 1, counts, rest="dropped", max_hops=7))
    decided = dict(held.raw.hgetall(held.keys.batch + b"b"))
    told = [decided[name] for name in (b"state", b"rest", b"max_hops", b"decided", b"rows")]
    assert told == [b"committed", b"dropped", b"7", b"1", b"6"]
    assert held.raw.lrange(held.keys.batch + b"b:manifest", 0, -1) == [b"1.n", b"1.m", b"1.o"]


def test_lists_that_an_older_decision_named_do_not_count(held):
    held.raw.rpush(held.keys.batch + b"b:manifest", "1.old")
    decide(held)
    assert held.raw.lrange(held.keys.batch + b"b:manifest", 0, -1) == [b"1.n"]
