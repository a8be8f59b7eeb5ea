"""batch_begin: a batch without members, for what a writer adds."""

import pytest

from jobrunner.broker.calls import batches

HOUR_MS, DAY_MS, ABANDONED_MS = 3_600_000, 86_400_000, 600_000
NEW = ["new", "b", b"1", '{"new":1}']


def begin(mail, batch="w", *, lease_ms=1000, attempt="", **shared):
    return mail.run(batches.begin(mail.keys, batch, lease_ms=lease_ms, shared=shared, attempt=attempt))


def decide(mail, epoch, *rows, batch="w"):
    words = [word for row in rows for word in row]
    mail.run(batches.stage(mail.keys, batch, epoch, "n", words))
    mail.run(batches.decide(mail.keys, batch, epoch, {"n": len(rows)}, rest="dropped"))


def end(mail, batch="w"):
    while not mail.run(batches.advance(mail.keys, batch)).done:
        pass


@pytest.fixture
def raw_orders(line):
    return line("o/a")


def test_it_is_a_batch_of_no_members_that_its_writer_holds(raw_orders, clock):
    begun = begin(raw_orders, type="T")

    assert (begun.epoch, begun.state, begun.ends_ms) == (1, "open", clock.ms + 1000)
    assert (begun.rows, begun.targets) == (None, ())
    assert raw_orders.raw.hgetall(raw_orders.keys.batch + b"w") == {
        b"queue": b"o/a", b"state": b"open", b"epoch": b"1", b"ends": b"%d" % (clock.ms + 1000), b"number": b"0",
        b"list": b"w", b"first": b"0", b"size": b"0", b"failures": b"0", b"attempt": b"", b"s:type": b"T",
    }  # fmt: skip
    assert raw_orders.scores("finishing") == {"w": clock.ms + 1000 + ABANDONED_MS}, "then it is taken back"


def test_a_renewal_makes_the_lease_of_a_write_as_short_as_it_says(raw_orders, clock):
    begin(raw_orders, lease_ms=DAY_MS)
    clock.advance(5)

    raw_orders.run(batches.renew(raw_orders.keys, "w", 1, lease_ms=HOUR_MS))

    assert raw_orders.raw.hget(raw_orders.keys.batch + b"w", "ends") == b"%d" % (clock.ms + HOUR_MS)
    assert raw_orders.scores("finishing") == {"w": clock.ms + HOUR_MS + ABANDONED_MS}


def test_a_renewal_lets_a_decided_write_rest_no_shorter(raw_orders, clock):
    begin(raw_orders, lease_ms=HOUR_MS)
    decide(raw_orders, 1, NEW)
    before = raw_orders.scores("finishing")

    raw_orders.run(batches.renew(raw_orders.keys, "w", 1, lease_ms=1))
    assert raw_orders.scores("finishing") == before
    raw_orders.run(batches.renew(raw_orders.keys, "w", 1, lease_ms=DAY_MS))
    assert raw_orders.scores("finishing") == {"w": clock.ms + DAY_MS}


def test_the_next_writer_takes_it_over_without_what_was_staged(raw_orders, clock):
    begin(raw_orders)
    raw_orders.run(batches.stage(raw_orders.keys, "w", 1, "n", NEW))
    clock.advance(5)

    begun = begin(raw_orders)
    assert (begun.epoch, begun.state, begun.ends_ms) == (2, "open", clock.ms + 1000)
    assert not raw_orders.raw.keys(raw_orders.keys.batch + b"w:*")


@pytest.mark.parametrize("attempt", ["", "1"])
def test_what_is_decided_is_said_with_its_rows_and_where_they_go(raw_orders, line, attempt):
    begin(raw_orders, attempt=attempt)
    decide(raw_orders, 1, NEW, ["more", "b", b"2", '{"new":1}'])
    before = raw_orders.snapshot()

    again = begin(raw_orders, attempt=attempt)
    assert (again.epoch, again.state, again.ends_ms, again.rows, again.targets) == (1, "committed", 0, 2, ("b",))
    assert raw_orders.snapshot() == before

    end(raw_orders)
    again = begin(raw_orders, attempt=attempt)
    assert (again.epoch, again.state, again.ends_ms, again.rows, again.targets) == (1, "done", 0, 2, ())
    assert line("o/b").ids("waiting") == ["new", "more"]


def test_how_many_rows_an_earlier_version_decided_is_not_known(raw_orders):
    begin(raw_orders)
    decide(raw_orders, 1, NEW)
    raw_orders.raw.hdel(raw_orders.keys.batch + b"w", "rows")
    assert begin(raw_orders).rows is None
    end(raw_orders)
    assert begin(raw_orders).rows is None


def test_calls_of_one_attempt_share_the_lease_and_others_take_it_over(raw_orders, clock):
    first = begin(raw_orders, attempt="1")
    clock.advance(999)
    assert begin(raw_orders, attempt="1") == first
    assert begin(raw_orders, attempt="2").epoch == 2
    clock.advance(1000)
    assert begin(raw_orders, attempt="2").epoch == 3, "its lease has ended"


@pytest.mark.parametrize(("attempt", "days"), [("", 1), ("1", 30)])
def test_a_batch_that_is_done_is_remembered_for_a_while(raw_orders, attempt, days):
    begin(raw_orders, attempt=attempt)
    decide(raw_orders, 1, NEW)
    end(raw_orders)
    left_ms = raw_orders.raw.pttl(raw_orders.keys.batch + b"w")
    assert days * DAY_MS - HOUR_MS < left_ms <= days * DAY_MS


@pytest.mark.parametrize("is_over", [False, True])
def test_a_writer_whose_batch_was_given_up_starts_anew(raw_orders, clock, is_over):
    begin(raw_orders)
    raw_orders.run(batches.stage(raw_orders.keys, "w", 1, "n", NEW))
    clock.advance(1000 + DAY_MS)
    claimed = raw_orders.run(batches.claim(raw_orders.keys, "w", lease_ms=1000))
    raw_orders.run(batches.failed_attempt(raw_orders.keys, "w", claimed.epoch, fate="failed", reason="given up"))
    if is_over:
        end(raw_orders)
        assert raw_orders.raw.pttl(raw_orders.keys.batch + b"w") > 0

    begun = begin(raw_orders)
    assert (begun.epoch, begun.state) == (claimed.epoch + 1, "open")
    assert raw_orders.raw.pttl(raw_orders.keys.batch + b"w") == -1, "it does not end while it is written"
