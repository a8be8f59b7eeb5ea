"""setback and begin: batches that come to no decision, and writes."""

import pytest

from jobrunner.broker.calls import batches, queues
from jobrunner.errors import BatchLost


@pytest.fixture
def held(mail):
    mail.enqueue("x", "y", "z")
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=3, lease_ms=1000, turn=1))
    return mail


def setback(line, fate="failed", *, batch="b", epoch=1, delay_ms=0, reason="why"):
    return line.run(batches.failed_attempt(line.keys, batch, epoch, fate=fate, delay_ms=delay_ms, reason=reason))


def claim(line, batch="b"):
    return line.run(batches.claim(line.keys, batch, lease_ms=1000))


def test_the_first_failure_makes_it_due_again_after_the_delay(held, clock):
    assert setback(held, delay_ms=500) == "again"

    assert held.scores("batches") == {"b": clock.ms + 500}
    with pytest.raises(BatchLost):
        setback(held)


def test_the_second_failure_makes_parts_of_it_that_are_due_now(held, clock):
    setback(held)
    claim(held)
    assert setback(held, epoch=2, delay_ms=500) == "split"

    names = [f"b.p{n}of3" for n in (1, 2, 3)]
    assert held.scores("batches") == dict.fromkeys(names, clock.ms)
    parts = [claim(held, name) for name in names]
    lists = [held.run(batches.members(held.keys, part.root, part.first, part.size)) for part in parts]
    assert lists == [["x"], ["y"], ["z"]]
    assert [part.failures for part in parts] == [2, 2, 2]
    assert setback(held, batch=names[1]) == "again"


def test_a_part_that_is_split_again_is_forgotten_after_a_day(mail):
    ids = [f"i{n:02}" for n in range(32)]
    mail.enqueue(*ids)
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=32, lease_ms=1000, turn=1))
    for batch, epoch in (("b", 1), ("b", 2), ("b.p1of4", 1)):
        if (batch, epoch) != ("b", 1):
            claim(mail, batch)
        setback(mail, batch=batch, epoch=epoch)

    key = mail.keys.batch + b"b.p1of4"
    assert mail.raw.hget(key, "state") == b"split"
    assert 86_000_000 < mail.raw.pttl(key) <= 86_400_000
    assert mail.raw.pttl(mail.keys.batch + b"b") == -1, "its parts need the root"
    assert mail.raw.hget(key + b".p1of8", "queue") == b"mail"
    root = mail.raw.hmget(mail.keys.batch + b"b", "size", "whole")
    assert root == [None, b"32"], "version 0.1.0 takes parts of a root with a size for halves"


@pytest.mark.parametrize(("own", "tries"), [(1, 1), (3, 3), (None, 2)])
def test_an_item_that_is_alone_has_its_own_number_of_attempts(mail, own, tries):
    mail.configure(max_attempts=2)
    mail.enqueue("x", **({} if own is None else {"max_attempts": own}))
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=1, lease_ms=1000, turn=1))
    fates = [setback(mail, epoch=1)]
    while fates[-1] == "again":
        fates.append(setback(mail, epoch=claim(mail).epoch))

    assert fates == ["again"] * (tries - 1) + ["dead"]


def test_a_failure_of_an_item_that_is_alone_counts_beside_its_expired_leases(mail, clock):
    mail.configure(max_attempts=2)
    mail.enqueue("x")
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=1, lease_ms=1000, turn=1))
    clock.advance(1000)

    assert setback(mail, epoch=claim(mail).epoch) == "dead"


def test_a_row_that_is_to_blame_is_tried_again_after_the_delay_when_it_is_alone(mail, clock):
    mail.enqueue("x", max_attempts=2)
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=1, lease_ms=1000, turn=1))
    assert setback(mail, "blamed", delay_ms=500) == "again"
    assert mail.scores("batches") == {"b": clock.ms + 500}


def test_no_staged_key_is_left_however_many(held):
    for n in range(1201):
        held.run(batches.stage(held.keys, "b", 1, f"n{n}", ["x", "mail", "1", ""]))

    assert [setback(held), setback(held), setback(held)] == ["more", "more", "again"]
    assert len(held.raw.keys(held.keys.batch + b"*")) == 2


def test_a_release_counts_no_failure(held, clock):
    assert setback(held, "released", delay_ms=500) == "again"
    assert (held.scores("batches"), held.scores("finishing")) == ({"b": clock.ms + 500}, {})
    clock.advance(500)
    assert claim(held).failures == 0
    assert held.raw.hget(held.keys.batch + b"b", "expiries") is None


def test_a_write_that_is_released_is_due_where_writes_are_given_up(mail, clock):
    mail.run(batches.begin(mail.keys, "w", lease_ms=1000, shared={}))
    assert setback(mail, "released", batch="w", delay_ms=500) == "again"
    assert (mail.scores("batches"), mail.scores("finishing")) == ({}, {"w": clock.ms + 500})


def test_a_batch_that_is_divided_is_split_unless_its_member_is_alone(held, clock):
    assert setback(held, "divided") == "split"
    names = [f"b.p{n}of3" for n in (1, 2, 3)]
    assert held.scores("batches") == dict.fromkeys(names, clock.ms)
    part = claim(held, names[0])
    assert (part.failures, part.error) == (0, "why")
    assert setback(held, "divided", batch=names[0], delay_ms=5) == "again"
    assert held.scores("batches")[names[0]] == clock.ms + 5


def test_a_batch_of_two_is_divided_too(mail):
    mail.enqueue("x", "y")
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=2, lease_ms=1000, turn=1))
    assert setback(mail, "divided") == "split"
    parts = [mail.raw.hgetall(mail.keys.batch + b"b.p%dof2" % n) for n in (1, 2)]
    assert [(part[b"failures"], part[b"expiries"], part[b"error"]) for part in parts] == [(b"0", b"0", b"why")] * 2


def test_when_other_processes_may_finish_a_batch_without_rows(held, clock):
    setback(held, "dissolved")
    assert held.scores("finishing") == {"b": clock.ms}

    held.enqueue("dies")
    held.run(batches.fill(held.keys, "c", 1, had=0, count=1, lease_ms=1000, turn=2))
    assert setback(held, "poison", batch="c") == "dead"
    assert held.scores("finishing")["c"] == clock.ms + 60_000, "first its holder: two would count the death twice"


@pytest.mark.parametrize("fate", ["failed", "blamed", "poison", "divided", "released", "dissolved"])
def test_a_server_that_is_full_takes_each_word(held, fate):
    held.raw.config_set("maxmemory", 1)
    try:
        said = setback(held, fate)
    finally:
        held.raw.config_set("maxmemory", 0)
    words = {"failed": "again", "released": "again", "dissolved": "dissolved"}
    assert said == words.get(fate, "split")


def test_a_batch_that_is_dissolved_goes_back_to_its_places(held, clock):
    clock.advance(5)
    held.enqueue("later")
    clock.advance(5)
    assert setback(held, "dissolved") == "dissolved"
    with pytest.raises(BatchLost):  # a renewal that comes late would keep others from rolling it forward
        held.run(batches.renew(held.keys, "b", 1, lease_ms=1000))
    held.wakes()
    assert held.run(batches.advance(held.keys, "b")).ended == 3
    assert held.ids("waiting") == ["x", "y", "z", "later"]
    assert held.wakes()
    assert held.totals() == {"enqueued": 4}


@pytest.fixture
def limited(mail):
    """A batch that used up the tokens of its queue, and those of its partition."""
    hour = 3_600_000_000
    mail.run(queues.configure(
        mail.keys, {"max_tokens": 3, "interval_us": hour, "key_tokens": 3, "key_interval_us": hour}
    ))  # fmt: skip
    mail.enqueue("x", "y", "z", "later", key="a")
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=9, lease_ms=1000, turn=1))
    assert len(mail.ids("pending")) == 3
    return mail


def test_a_batch_that_is_dissolved_before_it_began_gives_back_the_tokens_of_the_rate(limited):
    """A worker that stopped while it gathered a batch used up the rate of an hour."""
    setback(limited, "dissolved")
    while not limited.run(batches.advance(limited.keys, "b", count=2)).done:
        pass

    assert [held.id for held in limited.reserve(9)] == ["x", "y", "z"]


def test_a_batch_that_is_dissolved_gives_back_no_more_tokens_than_it_took(mail):
    mail.run(queues.configure(mail.keys, {"key_tokens": 4, "key_interval_us": 3_600_000_000}))
    mail.enqueue("v", "w", "x", "y", "later", key="a")
    assert len(mail.reserve(2)) == 2
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=9, lease_ms=1000, turn=1))
    setback(mail, "dissolved")
    mail.run(batches.advance(mail.keys, "b"))
    assert [held.id for held in mail.reserve(9)] == ["x", "y"]


def test_members_without_a_key_go_back_to_a_queue_with_a_rate_of_keys(mail):
    mail.run(queues.configure(mail.keys, {"key_tokens": 3, "key_interval_us": 3_600_000_000}))
    mail.enqueue("x", "y")
    mail.run(batches.fill(mail.keys, "b", 1, had=0, count=9, lease_ms=1000, turn=1))
    setback(mail, "dissolved")
    mail.run(batches.advance(mail.keys, "b"))
    assert [held.id for held in mail.reserve(9)] == ["x", "y"]


def test_a_batch_that_had_begun_gives_back_no_tokens(limited, clock):
    clock.advance(1001)
    assert claim(limited).epoch == 2
    setback(limited, "dissolved", epoch=2)
    limited.run(batches.advance(limited.keys, "b"))

    assert limited.reserve(9) == []


@pytest.mark.parametrize("damage", ["deleted", "text"])
def test_a_member_that_cannot_be_read_is_dropped_when_its_batch_is_dissolved(held, damage):
    held.raw.delete(held.keys.task("y"))
    if damage == "text":
        held.raw.set(held.keys.task("y"), "x")
    assert setback(held, "dissolved") == "dissolved"
    held.run(batches.advance(held.keys, "b"))
    assert (held.ids("waiting"), held.ids("pending")) == (["x", "z"], [])
    assert held.totals() == {"enqueued": 3, "orphaned": 1}
    assert not held.raw.exists(held.keys.task("y"))


def test_a_write_begins_anew_under_the_same_id(mail, clock):
    def begin():
        return mail.run(batches.begin(mail.keys, "w", lease_ms=1000, shared={"type": "T"}))

    assert (begin().epoch, begin().epoch, begin().state) == (1, 2, "open")
    assert mail.scores("finishing") == {"w": clock.ms + 601_000}
    mail.run(batches.stage(mail.keys, "w", 3, "n", ["i", "mail", "{}", '{"new":1}']))
    mail.run(batches.decide(mail.keys, "w", 3, ["n"], rest="dropped"))
    assert (begin().state, begin().epoch, begin().targets) == ("committed", 3, ("mail",))
    assert mail.run(batches.advance(mail.keys, "w")).new == 1
    assert begin().state == "done"
    assert mail.hash("i")["type"] == b"T"
