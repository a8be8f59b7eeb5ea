"""extend: a pending task stays pending, its lease ends keepalive from now."""

import pytest

from jobrunner.broker.calls import leases, tasks


def test_the_lease_ends_keepalive_from_now(mail, clock):
    attempt = mail.lease("a")
    clock.advance(10_000)

    assert mail.extend(attempt, keepalive_ms=30_000) == [f"{clock.ms + 30_000:.0f}"]

    assert mail.scores("pending") == {"a": clock.ms + 30_000}
    clock.advance(29_999)
    assert mail.commit(attempt) == ["ok"]


def test_the_end_of_a_lease_never_moves_back(mail, clock):
    attempt = mail.lease("a")
    ends = clock.ms + 30_000

    assert mail.extend(attempt, keepalive_ms=5) == [f"{ends:.0f}"]
    assert mail.scores("pending") == {"a": ends}


def test_it_can_go_on_without_limit(mail, clock):
    attempt = mail.lease("a")
    for _ in range(100):
        clock.advance(29_000)
        (word,) = mail.extend(attempt)
        assert float(word) == clock.ms + 30_000
    assert mail.reserve() == []


def test_a_fraction_of_a_keepalive_is_exact(mail, clock):
    clock.set(1_700_000_000_000.125)
    attempt = mail.lease("a")
    clock.advance(10_000)

    (word,) = mail.extend(attempt, keepalive_ms=30_000.25)

    assert float(word) == mail.scores("pending")["a"] == clock.ms + 30_000.25


def test_a_task_that_was_cancelled_is_asked_to_stop(mail, clock):
    mail.enqueue("a", "b")
    held = mail.reserve(2)
    mail.run(tasks.cancel(mail.keys, "a", keep_ms=1000))
    clock.advance(1000)

    ends = f"{clock.ms + 30_000:.0f}"
    assert mail.extend(*held) == ["!" + ends, ends]


def test_refused_reports_change_nothing(mail, clock):
    old = mail.lease("a")
    clock.advance(30_000)
    (new,) = mail.reserve()
    before = mail.snapshot()

    assert mail.extend(old) == ["lost"]
    assert mail.run(leases.extend(mail.keys, [("ghost", "1", 5)])) == ["gone"]
    clock.advance(30_000)
    assert mail.extend(new) == ["not_reserved"], "a lease that ended is not brought back"
    assert mail.snapshot() == before


def test_each_report_of_a_batch_has_its_own_answer(mail, clock):
    mail.enqueue("a", "b", "c")
    a, b, c = mail.reserve(3)
    mail.commit(b)
    mail.release(c)

    assert mail.extend(a, b, c) == [f"{clock.ms + 30_000:.0f}", "gone", "not_reserved"]


def test_a_server_that_is_full_takes_the_report(mail, clock):
    attempt = mail.lease("a")
    clock.advance(10)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.extend(attempt) == [f"{clock.ms + 30_000:.0f}"]
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_a_key_of_another_type_spoils_no_neighbour(mail, clock):
    mail.enqueue("a", "b")
    held = mail.reserve(2)
    mail.raw.delete(mail.keys.task("a"))
    mail.raw.set(mail.keys.task("a"), "damage")
    clock.advance(10)

    assert mail.extend(*held) == [f"{clock.ms + 30_000:.0f}"] * 2


@pytest.mark.parametrize("amount", [9000])
def test_many_reports_fit_one_call(mail, clock, amount):
    mail.enqueue(*(f"{n:05d}" for n in range(amount)))
    held = mail.reserve(amount)
    clock.advance(10)

    assert mail.extend(*held) == [f"{clock.ms + 30_000:.0f}"] * amount
