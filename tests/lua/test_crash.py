"""crash: tasks that had begun when their worker died go back to their places; their attempts count."""

import pytest

from jobrunner.broker.calls import leases


def test_a_task_goes_back_to_its_place_with_its_attempt_spent(mail):
    mail.enqueue("A", "B", "C")
    before = mail.scores("waiting")
    held = mail.reserve(2)
    mail.wakes()

    assert mail.crash(*held) == ["waiting", "waiting"]

    assert mail.scores("waiting") == before
    assert mail.ids("pending") == mail.ids("leases") == []
    assert mail.hash("A")["retry_count"] == mail.hash("A")["expiries"] == b"1"
    assert b"\t1\tcrashed\t" in mail.hash("A")["failures"]
    assert b"its worker died (signal 9)" in mail.hash("A")["failures"]
    assert mail.wakes()
    assert mail.totals() == {"enqueued": 3, "recovered": 2}


def test_the_worker_that_died_is_noted(mail):
    one = mail.lease("a")
    mail.run(leases.crash(mail.keys, [(one.id, one.token, False)], reason="its worker died", worker="w1"))

    assert b"\t1\tcrashed\tw1\tits worker died" in mail.hash("a")["failures"]


def test_the_worker_of_the_lease_is_noted_where_none_is_named(mail):
    mail.enqueue("a")
    (held,) = mail.run(leases.reserve(mail.keys, 1, token=2**51 + 2**27 * 171)).attempts
    mail.crash(held)

    assert mail.hash("a")["failures"].split(b"\t")[1:4] == [b"1", b"crashed", b"0000ab"]


def test_a_server_that_is_full_takes_the_report(mail):
    mail.enqueue("a")
    mail.enqueue("b", max_attempts=1)
    held = mail.reserve(2)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.crash(*held) == ["waiting", "dead"]
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_the_last_attempt_is_the_death_of_it(mail):
    attempt = mail.lease("a", max_attempts=1)
    mail.wakes()

    assert mail.crash(attempt) == ["dead"]
    assert mail.wakes(), "a limit may have kept a worker from the next task"

    assert mail.hash("a")["error"] == b"its worker died (signal 9) in attempt 1"
    assert mail.ids("dead") == ["a"]
    assert mail.totals()["dead"] == 1


def test_as_many_crashes_as_it_may_have_are_the_death_of_it(mail):
    first = mail.lease("a", max_attempts=0, max_stalled=2)
    assert mail.crash(first) == ["waiting"]
    assert mail.crash(*mail.reserve()) == ["dead"]


def test_only_the_newest_lease_counts(mail, clock):
    old = mail.lease("a")
    clock.advance(40_000)
    (newer,) = mail.reserve()
    before = mail.snapshot()

    assert mail.crash(old) == ["lost"]

    assert mail.snapshot() == before
    assert mail.crash(newer) == ["waiting"]
    assert mail.crash(newer) == ["not_reserved"], "twice is once"


def test_what_is_over_stays_so(mail):
    attempt = mail.lease("a")
    mail.commit(attempt)
    assert mail.crash(attempt) == ["gone"]


def test_a_task_that_cannot_be_read_is_gone(mail):
    attempt, other = mail.lease("a"), mail.lease("b")
    mail.raw.set(mail.keys.task("a"), "text")
    assert mail.crash(attempt, other) == ["gone", "waiting"]
    assert mail.totals()["orphaned"] == 1


def test_the_leases_of_a_worker_are_found_by_their_numbers(mail):
    mail.enqueue("a", "b", "c", "d")
    keys = mail.keys
    mail.run(leases.reserve(keys, 1, token=2**51 + 4))
    mail.run(leases.reserve(keys, 2, token=2**51 + 5))
    mail.run(leases.reserve(keys, 1, token="of a program"))

    assert mail.run(leases.taken_in(keys, 2**51 + 5, 2**51 + 9)) == [("b", 2**51 + 5), ("c", 2**51 + 6)]
    assert mail.run(leases.taken_in(keys, 2**51, 2**52 - 1)) == [("a", 2**51 + 4), ("b", 2**51 + 5), ("c", 2**51 + 6)]


@pytest.mark.parametrize(("token", "worker"), [(2**51 + 5, b"000000"), (2**51 + 2**27 * 171, b"0000ab"), (7, b"")])
def test_a_lease_that_ended_is_noted_with_its_worker(mail, clock, token, worker):
    mail.enqueue("a")
    mail.run(leases.reserve(mail.keys, 1, token=token))
    clock.advance(30_000)
    mail.reserve(0)

    assert mail.hash("a")["failures"].split(b"\t")[1:4] == [b"1", b"expired", worker]


def test_each_attempt_that_failed_has_a_line_of_its_own(mail):
    mail.enqueue("a", max_attempts=0)
    for _ in range(12):
        mail.crash(*mail.reserve())
    lines = mail.hash("a")["failures"].split(b"\n")
    assert [line.split(b"\t")[1] for line in lines] == [b"%d" % n for n in range(3, 13)]
    assert all(line[:1].isdigit() for line in lines)


def test_what_may_be_to_blame_is_told_apart_until_it_reports(mail):
    assert mail.crash(mail.lease("a"), suspect=True) == ["waiting"]
    (attempt,) = mail.reserve()
    assert attempt.suspect
    mail.release(attempt)
    (attempt,) = mail.reserve()
    assert attempt.suspect, "it did not run"
    mail.fail(attempt)
    assert [one.suspect for one in mail.reserve()] == [0]


def test_a_worker_that_was_killed_from_outside_is_no_fault_of_its_tasks_but_at_the_third_time(mail):
    mail.enqueue("a")
    for crashes in range(3):
        (attempt,) = mail.reserve()
        assert not attempt.suspect, crashes
        mail.crash(attempt)
    assert mail.reserve()[0].suspect


def test_what_outlived_its_quarantine_is_no_suspect_any_more(mail):
    mail.crash(mail.lease("a"), suspect=True)
    mail.crash(*mail.reserve())
    assert not mail.reserve()[0].suspect


def test_a_lease_that_ended_without_a_word_makes_a_suspect_only_at_the_third_time(mail, clock):
    """No process need have died: its server may have been away."""
    mail.enqueue("a")
    for ends in range(3):
        (attempt,) = mail.reserve()
        assert not attempt.suspect, ends
        clock.advance(31_000)
    assert mail.reserve()[0].suspect


def test_a_lease_that_ended_clears_nobody_of_suspicion(mail, clock):
    mail.crash(mail.lease("a"), suspect=True)
    assert mail.reserve()[0].suspect
    clock.advance(31_000)
    assert mail.reserve()[0].suspect
