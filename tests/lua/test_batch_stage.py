"""batch_stage: rows for the list of a batch, which stay invisible until the batch is decided."""

import pytest

from jobrunner.broker.calls import batches
from jobrunner.errors import BatchLost, ServerRefused, UnknownMember


@pytest.fixture
def held(line):
    """Queue o/a with the batch "b" of members x and y."""
    queue = line("o/a")
    queue.enqueue("x", "y")
    queue.run(batches.fill(queue.keys, "b", 1, had=0, count=2, lease_ms=1000, turn=1))
    return queue


def stage(line, *rows, epoch=1, nonce="n", after=None):
    words = [word for row in rows for word in row]
    return line.run(batches.stage(line.keys, "b", epoch, nonce, words, after=after))


def staged(line, nonce="n"):
    return [raw.decode() for raw in line.raw.lrange(line.keys.batch + b"b:rows:1." + nonce.encode(), 0, -1)]


def test_rows_are_appended_in_order(held):
    stage(held, ("x", "b", "1", ""))
    stage(held, ("y", "", "bad", ""))

    assert staged(held) == ["x", "b", "1", "", "y", "", "bad", ""]


def test_a_call_that_says_where_it_is_may_be_repeated(held):
    for _ in range(2):
        stage(held, ("x", "b", "1", ""), after=0)
    for _ in range(2):
        stage(held, ("y", "b", "1", ""), after=1)
    with pytest.raises(BatchLost):
        stage(held, ("y", "b", "1", ""), after=7)

    assert staged(held)[::4] == ["x", "y"]


def test_only_the_holder_stages(held, clock):
    before = held.snapshot()
    with pytest.raises(BatchLost):
        stage(held, ("x", "b", "1", ""), epoch=2)
    clock.advance(1000)
    with pytest.raises(BatchLost):
        stage(held, ("x", "b", "1", ""))
    assert held.snapshot() == before


def test_a_stranger_is_named_and_nothing_of_the_call_is_staged(held):
    with pytest.raises(UnknownMember, match="'z'"):
        stage(held, ("x", "b", "1", ""), ("z", "b", "1", ""))
    assert staged(held) == []


def test_a_new_item_needs_no_member_and_one_that_left_does_no_harm(held):
    held.raw.zrem(held.keys.leases, "x")

    stage(held, ("x", "b", "1", ""), ("new", "b", "1", '{"new":1}'))

    assert staged(held)[::4] == ["x", "new"]


def test_what_is_no_json_is_refused_before_it_can_be_decided(held):
    with pytest.raises(ServerRefused):
        stage(held, ("x", "b", "1", "{"))
    assert staged(held) == []
