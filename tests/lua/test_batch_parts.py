"""Parts of a batch, and their claims: the reply as a whole, a claim that is sent again."""

import pytest

from jobrunner.broker.calls import batches
from jobrunner.broker.calls.batches import Claimed
from jobrunner.errors import BatchLost


@pytest.fixture
def raw_orders(line):
    return line("o/a")


@pytest.fixture
def held(raw_orders):
    """The queue o/a with the batch "b" of twelve members."""
    raw_orders.enqueue(*"abcdefghijkl")
    raw_orders.run(batches.fill(raw_orders.keys, "b", 1, had=0, count=12, lease_ms=1000, turn=1))
    return raw_orders


def claim(line, batch="b", name=""):
    return line.run(batches.claim(line.keys, batch, lease_ms=1000, name=name))


def decide(line, batch="b", epoch=1, *rows):
    if rows:
        line.run(batches.stage(line.keys, batch, epoch, "n", [word for row in rows for word in row]))
    line.run(batches.decide(line.keys, batch, epoch, ["n"] if rows else [], rest="dropped"))


def test_all_that_a_driver_has_to_know_is_in_the_reply(held, clock):
    clock.advance(1000)
    assert claim(held) == Claimed(
        id="b", root="b", epoch=2, state="open", ends_ms=clock.ms + 1000, size=12, failures=0, first=0,
        error="its driver died, hung or was cut off", targets=(), claim="", others_worked=False,
    )  # fmt: skip
    decide(held, "b", 2, ["a", "b", b"1", ""])
    clock.advance(1000)
    assert claim(held, name="n") == Claimed(
        id="b", root="b", epoch=3, state="committed", ends_ms=clock.ms + 1000, size=12, failures=0, first=0,
        error="its driver died, hung or was cut off", targets=("b",), claim="n", others_worked=False,
        rest="dropped",
    )  # fmt: skip


def test_a_batch_that_never_failed_has_no_error(held, clock):
    held.run(batches.failed_attempt(held.keys, "b", 1, fate="released"))
    found = claim(held)
    assert isinstance(found, Claimed)
    assert (found.error, found.epoch, found.failures) == ("", 2, 0)


def test_a_claim_that_is_sent_again_under_its_name_changes_nothing(held, clock):
    clock.advance(1000)
    first = claim(held, name="n")
    clock.advance(999)
    before = held.snapshot()

    assert claim(held, name="n") == first
    assert claim(held, name="other") is False
    assert claim(held) is False
    assert held.snapshot() == before
    clock.advance(1)
    again = claim(held, name="n")
    assert isinstance(again, Claimed)
    assert again.epoch == 3, "its lease had ended"


def test_a_single_member_whose_driver_died_too_often_is_rolled_forward_by_anyone(raw_orders, clock):
    raw_orders.configure(max_attempts=1)
    raw_orders.enqueue("x")
    raw_orders.run(batches.fill(raw_orders.keys, "b", 1, had=0, count=1, lease_ms=1000, turn=1))
    clock.advance(1000)

    found = claim(raw_orders)
    assert isinstance(found, Claimed)
    assert found.state == "committed"
    assert (raw_orders.scores("batches"), raw_orders.scores("finishing")) == ({}, {"b": clock.ms + 1000})


def test_parts_learn_that_another_one_was_decided_and_the_whole_of_none(held):
    held.run(batches.failed_attempt(held.keys, "b", 1, fate="blamed", reason="E: no"))
    assert set(held.scores("batches")) == {f"b.p{n}of4" for n in (1, 2, 3, 4)}
    first = claim(held, "b.p1of4")
    assert isinstance(first, Claimed)
    assert (first.root, first.first, first.size, first.error, first.others_worked) == ("b", 0, 3, "E: no", False)
    decide(held, "b.p1of4", 1, ["a", "b", b"1", ""])

    second = claim(held, "b.p2of4")
    assert isinstance(second, Claimed)
    assert (second.first, second.size, second.others_worked) == (3, 3, True)


def test_a_part_takes_no_more_members(held):
    held.enqueue("later")
    held.run(batches.failed_attempt(held.keys, "b", 1, fate="blamed", reason="E: no"))
    assert isinstance(claim(held, "b.p1of4"), Claimed)
    before = held.snapshot()
    with pytest.raises(BatchLost, match="part of a batch"):
        held.run(batches.fill(held.keys, "b.p1of4", 1, had=3, count=1, lease_ms=1000, turn=1))
    assert held.snapshot() == before


def test_the_lease_of_a_decided_batch_is_renewed_where_it_is_finished(held, clock):
    decide(held)
    clock.advance(500)
    assert held.run(batches.renew(held.keys, "b", 1, lease_ms=1000)) == clock.ms + 1000
    assert (held.scores("batches"), held.scores("finishing")) == ({}, {"b": clock.ms + 1000})
    while not held.run(batches.advance(held.keys, "b", count=99)).done:
        pass
    with pytest.raises(BatchLost):
        held.run(batches.renew(held.keys, "b", 1, lease_ms=1000))


def test_a_part_ends_its_own_members_alone_also_by_the_slice(held):
    held.run(batches.failed_attempt(held.keys, "b", 1, fate="blamed", reason="E: no"))
    claim(held, "b.p2of4")
    decide(held, "b.p2of4")
    steps = [held.run(batches.advance(held.keys, "b.p2of4", count=1)).ended for _ in range(4)]
    assert steps == [1, 1, 1, 0]
    assert held.ids("pending") == list("abcghijkl")


def test_a_lease_is_renewed_by_the_claim_that_has_it(held, clock):
    clock.advance(1000)
    claim(held, name="mine")
    before = held.snapshot()
    with pytest.raises(BatchLost):
        held.run(batches.renew(held.keys, "b", 2, lease_ms=1000, claim="other"))
    assert held.snapshot() == before
    for name in ("mine", ""):
        clock.advance(10)
        assert held.run(batches.renew(held.keys, "b", 2, lease_ms=1000, claim=name)) == clock.ms + 1000


def test_a_part_extends_the_leases_of_its_own_members(held, clock):
    week_ms = 7 * 86_400_000
    held.run(batches.failed_attempt(held.keys, "b", 1, fate="divided", delay_ms=0, reason="no"))
    assert claim(held, "b.p2of4").first == 3
    clock.advance(week_ms * 0.6)
    held.run(batches.renew(held.keys, "b.p2of4", claim(held, "b.p2of4").epoch, lease_ms=week_ms))
    assert [one for one, ends in held.scores("pending").items() if ends == clock.ms + week_ms] == ["d", "e", "f"]
