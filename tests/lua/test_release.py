"""release: pending → waiting at the original place, or → scheduled after a delay. No attempt is spent."""

import pytest

from jobrunner.broker.calls import leases


def test_a_released_task_is_back_at_its_place_with_its_attempt_unspent(mail):
    mail.enqueue("A", "B", "C")
    before = mail.scores("waiting")
    held = mail.reserve(2)
    mail.wakes()

    assert mail.release(*held) == ["waiting", "waiting"]

    assert mail.scores("waiting") == before
    assert mail.ids("pending") == mail.ids("leases") == []
    assert mail.hash("A")["retry_count"] == b"0"
    assert mail.wakes()
    assert [(attempt.id, attempt.number) for attempt in mail.reserve(3)] == [("A", 1), ("B", 1), ("C", 1)]
    assert mail.totals() == {"enqueued": 3}


def test_a_priority_is_part_of_the_place(mail):
    attempt = mail.lease("urgent", priority=2)
    mail.enqueue("plain")
    mail.release(attempt)

    assert mail.ids("waiting") == ["urgent", "plain"]


def test_a_snoozed_task_is_scheduled(mail, clock):
    attempt = mail.lease("a")

    assert mail.release(attempt, delay_ms=500) == ["scheduled"]

    assert mail.scores("scheduled") == {"a": clock.ms + 500}
    clock.advance(499.999)
    assert mail.reserve() == []
    clock.advance(0.001)
    assert [(one.id, one.number, one.retry_count) for one in mail.reserve()] == [("a", 1, 0)]


def test_a_snooze_of_nothing_waits_at_once_behind_what_arrived_before(mail, clock):
    clock.advance(0.25)
    attempt = mail.lease("a")
    mail.enqueue("b")

    assert mail.release(attempt, delay_ms=0) == ["scheduled"]

    assert [one.id for one in mail.reserve(9)] == ["b", "a"]


def test_a_snoozed_task_keeps_its_priority(mail):
    held = mail.lease("urgent", priority=2), mail.lease("last", priority=0)
    mail.enqueue("between")
    mail.release(*held, delay_ms=0)
    assert mail.ids("waiting") == ["urgent", "between", "last"]


def test_a_snoozed_task_is_ordered_by_its_new_due_time(mail, clock):
    snoozed = mail.lease("early", priority=2)
    mail.release(snoozed, delay_ms=100)
    clock.advance(50)
    mail.enqueue("later", priority=2)
    clock.advance(50)

    assert [attempt.id for attempt in mail.reserve(2)] == ["later", "early"]


def test_a_failure_before_is_still_counted(mail):
    mail.fail(mail.lease("a"))
    mail.release(*mail.reserve())

    (attempt,) = mail.reserve()
    assert (attempt.number, attempt.retry_count) == (2, 1)


def test_refused_reports_change_nothing(mail, clock):
    old = mail.lease("a")
    clock.advance(30_000)
    (new,) = mail.reserve()
    before = mail.snapshot()

    assert mail.release(old) == ["lost"]
    assert mail.run(leases.release(mail.keys, [("ghost", "1", "")])) == ["gone"]
    clock.advance(30_000)
    assert mail.release(new) == ["not_reserved"]
    assert mail.snapshot() == before


def test_a_second_release_finds_nobody_holding_it(mail):
    attempt = mail.lease("a")

    assert mail.release(attempt, attempt) == ["waiting", "gone"]
    assert mail.release(attempt) == ["not_reserved"]
    assert mail.ids("waiting") == ["a"]


def test_a_hash_that_was_deleted_meanwhile_does_not_come_back(mail):
    attempt = mail.lease("a")
    mail.raw.delete(mail.keys.task("a"))

    assert mail.release(attempt, delay_ms=5) == ["gone"]
    assert mail.hash("a") == {}
    assert mail.ids("pending") == mail.ids("scheduled") == []
    assert mail.totals()["orphaned"] == 1


@pytest.mark.parametrize("damage", ["", "abc", "nan", "inf"])
def test_a_place_that_is_no_number_is_now(mail, clock, damage):
    attempt = mail.lease("a")
    mail.raw.hset(mail.keys.task("a"), "place", damage)

    assert mail.release(attempt) == ["waiting"]
    assert mail.scores("waiting") == {"a": clock.ms}


@pytest.mark.parametrize("delay_ms", ["", 500])
def test_a_server_that_is_full_takes_the_report(mail, delay_ms):
    attempt = mail.lease("a")
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.release(attempt, delay_ms=delay_ms) == ["waiting" if delay_ms == "" else "scheduled"]
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_what_did_not_begin_is_due_later_and_keeps_its_time_to_start_by(mail, clock):
    held = mail.lease("a", expires_in_ms=60_000)
    began = clock.ms

    assert mail.release(held, delay_ms="~500") == ["scheduled"]
    assert mail.scores("scheduled") == {"a": clock.ms + 500}
    assert float(mail.hash("a")["place"]) == clock.ms + 500
    assert mail.hash("a")["expires_in_ms"] == b"60000"
    assert float(mail.hash("a")["unknown_since"]) == began

    clock.advance(500)
    (held,) = mail.reserve()
    assert (held.number, held.retry_count, held.unknown_since_ms) == (1, 0, began)
    mail.release(held, delay_ms="~500")
    assert float(mail.hash("a")["unknown_since"]) == began, "since the first time"
    clock.advance(60_000)
    assert mail.reserve() == []
    assert mail.ids("dead") == ["a"]


@pytest.mark.parametrize(("delay_ms", "state"), [("!", "waiting"), (0, "scheduled"), (500, "scheduled")])
def test_what_had_begun_has_no_time_to_start_by_any_more(mail, clock, delay_ms, state):
    held = mail.lease("a", expires_in_ms=60_000)
    place = float(mail.hash("a")["place"])

    assert mail.release(held, delay_ms=delay_ms) == [state]
    if delay_ms == "!":
        assert mail.scores("waiting") == {"a": place}
    clock.advance(60_000)

    assert [again.id for again in mail.reserve()] == ["a"]


@pytest.mark.parametrize(("delay_ms", "goes_on"), [("!", True), ("", False)])
def test_the_limit_of_the_queue_ends_only_what_did_not_begin(mail, clock, delay_ms, goes_on):
    mail.configure(expires_in_ms=60_000)
    mail.release(mail.lease("a"), delay_ms=delay_ms)
    clock.advance(60_000)

    assert [again.id for again in mail.reserve()] == ["a"] * goes_on
    assert mail.ids("dead") == ["a"] * (not goes_on)


def test_a_worker_reads_since_when_the_job_of_a_plain_task_is_unknown(mail, clock):
    """Without an option, its hash has only the mark that there is more to read by this release."""
    began = clock.ms
    mail.release(mail.lease("a"), delay_ms="~500")
    clock.advance(500)
    (held,) = mail.reserve()
    assert held.unknown_since_ms == began


def unknown_again(mail, clock, ways):
    """For how long a job of "a" has been unknown, as the next worker reads it: it was handed back as such a second
    before its last attempt ended in these ways."""
    mail.release(mail.lease("a", max_attempts=9), delay_ms="~0")
    for way in ways:
        clock.advance(1000)
        (held,) = mail.reserve()
        way(mail, held)
    clock.advance(60_000)
    (held,) = mail.reserve()
    return held.unknown_since_ms and clock.ms - held.unknown_since_ms


def moved(mail, held):
    mail.run(leases.move(mail.keys, mail.keys, [(held.id, held.token, "", 0, ())]))


BEGUN = {
    "failed": lambda mail, held: mail.fail(held),
    "snoozed": lambda mail, held: mail.release(held, delay_ms=5),
    "interrupted": lambda mail, held: mail.release(held, delay_ms="!"),
    "crashed": lambda mail, held: mail.crash(held),
    "expired": lambda _mail, _held: None,
    "moved": moved,
}


@pytest.mark.parametrize("way", BEGUN)
def test_an_attempt_that_began_ends_the_time_for_which_its_job_was_unknown(mail, clock, way):
    assert unknown_again(mail, clock, [BEGUN[way]]) == 0


@pytest.mark.parametrize(
    "ways", [[], [lambda mail, held: mail.release(held)], [lambda mail, held: mail.fail(held, fate="unbegun")] * 2]
)
def test_what_did_not_begin_leaves_that_time_as_it_is(mail, clock, ways):
    assert unknown_again(mail, clock, ways) == 60_000 + 1000 * len(ways)
