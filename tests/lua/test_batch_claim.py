"""claim and renew: a batch is handed out again when its lease ended; the lease is one field, the hold a week."""

import pytest

from jobrunner.broker.calls import batches, queues
from jobrunner.broker.calls.batches import Claimed
from jobrunner.errors import BatchLost

WEEK_MS = 604_800_000


@pytest.fixture
def held(mail):
    mail.enqueue("x", "y")
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=2, lease_ms=1000, turn=1))
    return mail


def claim(line, batch="b"):
    return line.run(batches.claim(line.keys, batch, lease_ms=1000))


def renew(line, epoch=1, lease_ms=1000):
    return line.run(batches.renew(line.keys, "b", epoch, lease_ms=lease_ms))


def test_a_batch_is_claimed_when_its_lease_has_ended_and_not_before(held, clock):
    clock.advance(999)
    assert claim(held) is False
    clock.advance(1)

    found = claim(held)

    assert isinstance(found, Claimed)
    assert (found.epoch, found.state, found.size, found.first, found.root) == (2, "open", 2, 0, "b")
    assert claim(held) is False


def test_what_was_staged_before_is_removed(held, clock):
    held.run(batches.stage(held.keys, "b", 1, "n", ["x", "mail", "1", ""]))
    clock.advance(1000)
    claim(held)

    assert sorted(held.raw.keys(held.keys.batch + b"*")) == [held.keys.batch + b"b", held.keys.batch + b"b:members"]


def test_what_was_staged_is_removed_also_when_the_end_of_the_lease_is_damaged(held, clock):
    held.run(batches.stage(held.keys, "b", 1, "n", ["x", "mail", "1", ""]))
    held.raw.hset(held.keys.batch + b"b", "ends", "x")
    clock.advance(1000)
    assert isinstance(claim(held), Claimed)

    assert sorted(held.raw.keys(held.keys.batch + b"*")) == [held.keys.batch + b"b", held.keys.batch + b"b:members"]


def test_a_claim_of_a_decided_batch_keeps_the_rows_that_were_decided(line, clock):
    source, target = line("o/a"), line("o/b")
    source.enqueue("x", "y")
    source.run(batches.fill(source.keys, "b", 1, had=0, count=2, lease_ms=1000, turn=1))
    source.run(batches.stage(source.keys, "b", 1, "n", ["x", "b", "1", ""]))
    source.run(batches.decide(source.keys, "b", 1, ["n"], rest="dropped"))
    clock.advance(1000)
    assert isinstance(claim(source), Claimed)

    assert source.run(batches.advance(source.keys, "b", count=9)).moved == 1
    assert target.ids("waiting") == ["x"]


def test_a_paused_queue_hands_no_batch_out_but_a_decided_one(held, clock):
    held.run(queues.configure(held.keys, {"paused": 1}))
    clock.advance(1000)
    assert claim(held) is False
    held.run(queues.configure(held.keys, {"paused": ""}))
    claim(held)
    held.run(batches.decide(held.keys, "b", 2, [], rest="dropped"))
    held.run(queues.configure(held.keys, {"paused": 1}))
    clock.advance(1000)

    found = claim(held)

    assert isinstance(found, Claimed)
    assert found.state == "committed"


def test_drivers_that_die_again_and_again_have_the_batch_split(held, clock):
    held.configure(max_attempts=2)
    clock.advance(1000)
    claim(held)
    clock.advance(1000)

    assert claim(held) is True

    assert set(held.scores("batches")) == {"b.p1of2", "b.p2of2"}
    found = claim(held, "b.p2of2")
    assert isinstance(found, Claimed)
    assert (found.size, found.first, found.root, found.epoch) == (1, 1, "b", 1)
    clock.advance(1000)
    found = claim(held, "b.p2of2")
    assert isinstance(found, Claimed)
    assert (found.state, found.error) == ("committed", "its driver died, hung or was cut off")
    assert held.run(batches.advance(held.keys, "b.p2of2")).dead == 1
    assert held.ids("dead") == ["y"]


def test_a_batch_that_lost_the_end_of_its_hold_is_handed_out_again(held, clock):
    held.raw.hdel(held.keys.batch + b"b", "hold")
    clock.advance(1000)

    found = claim(held)

    assert isinstance(found, Claimed)
    assert (found.epoch, found.state, found.size) == (2, "open", 2)


@pytest.mark.parametrize("how", ["released", "failed", "expired", "decided"])
def test_a_server_that_is_full_hands_it_out_again(held, clock, how):
    if how == "decided":
        held.run(batches.decide(held.keys, "b", 1, [], rest="dropped"))
        clock.advance(1000)
    elif how == "expired":
        clock.advance(1000)
    else:
        held.run(batches.failed_attempt(held.keys, "b", 1, fate=how, delay_ms=0, reason="why"))
    held.raw.config_set("maxmemory", 1)
    try:
        found = claim(held)
    finally:
        held.raw.config_set("maxmemory", 0)

    assert isinstance(found, Claimed)
    assert found.epoch == 2
    assert max(held.scores("batches" if how != "decided" else "finishing").values()) == clock.ms + 1000


def test_a_name_without_a_batch_is_forgotten(held, clock):
    held.raw.delete(held.keys.batch + b"b")
    clock.advance(1000)

    assert claim(held) is True
    assert held.scores("batches") == {}


def test_a_lease_is_renewed_from_now(held, clock):
    clock.advance(900)
    assert renew(held) == clock.ms + 1000
    assert held.scores("batches") == {"b": clock.ms + 1000}
    clock.advance(999)
    assert claim(held) is False


def test_a_server_that_is_full_renews_a_lease_and_the_hold(held, clock):
    clock.advance(900)
    renew(held, lease_ms=WEEK_MS)
    clock.advance(WEEK_MS * 0.6)
    held.raw.config_set("maxmemory", 1)
    try:
        renew(held, lease_ms=WEEK_MS)
    finally:
        held.raw.config_set("maxmemory", 0)
    assert held.scores("pending") == dict.fromkeys("xy", clock.ms + WEEK_MS)


def test_what_ended_or_is_anothers_is_not_renewed(held, clock):
    with pytest.raises(BatchLost):
        renew(held, epoch=2)
    clock.advance(1000)
    before = held.snapshot()
    with pytest.raises(BatchLost):
        renew(held)
    assert held.snapshot() == before


def test_the_hold_is_extended_in_its_second_half_for_members_that_are_there(held, clock):
    renew(held, lease_ms=WEEK_MS)
    assert held.scores("pending")["x"] == clock.ms + WEEK_MS
    start = clock.ms
    held.raw.zrem(held.keys.leases, "y")
    clock.advance(WEEK_MS * 0.6)
    renew(held, lease_ms=WEEK_MS)

    assert held.scores("pending") == {"x": clock.ms + WEEK_MS, "y": start + WEEK_MS}


@pytest.mark.parametrize(
    ("size", "slices"), [(1000, [1000]), (1001, [1000, 1001]), (2000, [1000, 2000]), (2500, [1000, 2000, 2500])]
)
def test_the_hold_of_many_members_is_extended_in_slices(mail, clock, size, slices):
    ids = [f"i{n:04}" for n in range(size)]
    for first in range(0, size, 500):
        mail.enqueue(*ids[first : first + 500])
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=size, lease_ms=WEEK_MS, turn=1))
    start = clock.ms
    clock.advance(WEEK_MS * 0.6)
    for extended in slices:
        assert mail.raw.hget(mail.keys.batch + b"b", "hold") == b"%d" % (start + WEEK_MS)
        renew(mail, lease_ms=WEEK_MS)
        assert mail.raw.zcount(mail.keys.pending, clock.ms + WEEK_MS, "+inf") == extended

    assert float(mail.raw.hget(mail.keys.batch + b"b", "hold")) == clock.ms + WEEK_MS * 0.75
    before = mail.snapshot()
    renew(mail, lease_ms=WEEK_MS)
    assert mail.snapshot() == before

    clock.advance(WEEK_MS * 0.5)
    for extended in slices:  # again from the first one on
        renew(mail, lease_ms=WEEK_MS)
        assert mail.raw.zcount(mail.keys.pending, clock.ms + WEEK_MS, "+inf") == extended


def test_the_hold_is_not_extended_in_its_first_half(held, clock):
    start = clock.ms
    clock.advance(WEEK_MS * 0.2)
    claim(held)
    renew(held, epoch=2, lease_ms=WEEK_MS)

    assert held.scores("pending") == {"x": start + WEEK_MS, "y": start + WEEK_MS}


def test_a_part_holds_its_members_as_long_as_its_batch_did(held, clock):
    held.configure(max_attempts=1)
    clock.advance(1000)
    assert claim(held) is True
    clock.advance(WEEK_MS - 1000)

    found = claim(held, "b.p1of2")

    assert isinstance(found, Claimed)
    assert (found.state, found.failures) == ("committed", 0), "given back, not run once more"


def test_a_batch_that_nobody_took_for_a_week_is_over_as_its_members_are_in_line_again(held, clock):
    clock.advance(WEEK_MS)

    found = claim(held)

    assert isinstance(found, Claimed)
    assert (found.state, found.failures) == ("committed", 0)
    assert held.run(batches.advance(held.keys, "b")).done
    assert {one.id: one.number for one in held.reserve(9)} == {"x": 2, "y": 2}
    assert claim(held) is False


def test_a_batch_of_a_week_gives_back_members_that_came_later(held, clock):
    held.enqueue("z")
    clock.advance(900)
    held.run(batches.fill(held.keys, "b", 1, had=2, count=1, lease_ms=1000, turn=2))
    clock.advance(WEEK_MS - 900)

    claim(held)
    assert held.run(batches.advance(held.keys, "b")).ended == 1

    assert {one.id: one.number for one in held.reserve(9)} == {"x": 2, "y": 2, "z": 1}


@pytest.mark.parametrize("writers", [1, 700])
def test_a_batch_that_is_split_as_its_drivers_died_leaves_nothing_staged(held, clock, writers):
    held.configure(max_attempts=1)
    for n in range(writers):
        held.run(batches.stage(held.keys, "b", 1, f"n{n}", ["x", "mail", "1", ""]))
    clock.advance(1000)

    while claim(held) is True:
        pass

    assert set(held.scores("batches")) == {"b.p1of2", "b.p2of2"}
    kept = {key.removeprefix(held.keys.batch) for key in held.raw.keys(held.keys.batch + b"*")}
    assert kept == {b"b", b"b:members", b"b.p1of2", b"b.p2of2"}
