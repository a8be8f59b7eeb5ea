"""commit: pending → finished, deleted or kept for a while with the result."""

import pytest

from jobrunner.broker.calls import leases, tasks
from jobrunner.errors import ServerRefused
from jobrunner.task import TaskState


def test_a_task_that_is_not_kept_leaves_nothing_but_the_count(mail):
    attempt = mail.lease("a")

    assert mail.commit(attempt) == ["ok"]

    assert mail.hash("a") == {}
    assert mail.ids("pending") == mail.ids("leases") == []
    assert mail.totals() == {"enqueued": 1, "succeeded": 1}


def test_a_task_that_is_kept_has_its_result_and_an_end_of_life(mail, clock):
    attempt = mail.lease("a", type="send", payload=b"x")
    clock.advance(5)

    assert mail.commit(attempt, keep_ms=60_000, result=b'{"n":1}') == ["ok"]

    found = mail.hash("a")
    assert (found["outcome"], found["result"], found["finished_at"]) == (b"succeeded", b'{"n":1}', b"%d" % clock.ms)
    assert (found["type"], found["payload"]) == (b"send", b"x")
    assert 59_000 < mail.raw.pttl(mail.keys.task("a")) <= 60_000
    assert mail.ids("pending") == mail.ids("leases") == []


def test_a_kept_task_without_a_result_needs_no_words(mail, clock):
    mail.commit(mail.lease("a"), keep_ms=60_000)

    found = mail.hash("a")
    assert found["finished_at"] == b"%d" % clock.ms
    assert "result" not in found
    assert mail.raw.pttl(mail.keys.task("a")) > 0


def test_a_job_that_cancelled_itself_counts_as_cancelled(mail):
    mail.commit(mail.lease("a"), keep_ms=60_000, outcome="cancelled")

    assert mail.hash("a")["outcome"] == b"cancelled"
    assert mail.totals() == {"enqueued": 1, "cancelled": 1}


def test_reports_of_one_call_need_not_say_the_same(mail):
    mail.enqueue(*"abcde")
    held = mail.reserve(5)
    cli = [
        (0, "succeeded", b""),
        (0, "succeeded", b""),
        (9000, "succeeded", b"1"),
        (9000, "cancelled", b""),
        (0, "succeeded", b""),
    ]
    reports = [(attempt.id, attempt.token, *said) for attempt, said in zip(held, cli, strict=True)]

    assert mail.run(leases.commit(mail.keys, reports)) == ["ok"] * 5

    assert [bool(mail.hash(one)) for one in "abcde"] == [False, False, True, True, False]
    assert mail.hash("c")["result"] == b"1"
    assert mail.totals() == {"enqueued": 5, "succeeded": 4, "cancelled": 1}


def test_no_reports_are_no_change(mail):
    assert mail.commit() == []
    assert mail.snapshot() == {}


def test_a_second_report_finds_the_task_gone(mail):
    attempt, kept = mail.lease("a"), mail.lease("b")
    mail.commit(attempt)
    mail.commit(kept, keep_ms=60_000, result=b"1")
    before = mail.snapshot()

    assert mail.commit(attempt, kept) == ["gone", "gone"]
    assert mail.snapshot() == before


def test_the_same_report_twice_in_one_call_counts_once(mail):
    attempt = mail.lease("a")

    assert mail.commit(attempt, attempt) == ["ok", "gone"]
    assert mail.totals() == {"enqueued": 1, "succeeded": 1}


def test_a_task_that_never_was_is_gone(mail):
    assert mail.run(leases.commit(mail.keys, [("ghost", "1", 0, "succeeded", b"")])) == ["gone"]
    assert mail.snapshot() == {}


def test_a_report_at_the_deadline_is_too_late_and_changes_nothing(mail, clock):
    attempt = mail.lease("a")
    before = mail.snapshot()
    clock.advance(30_000)

    assert mail.commit(attempt) == ["not_reserved"]
    assert mail.snapshot() == before


def test_a_report_just_before_the_deadline_is_in_time(mail, clock):
    attempt = mail.lease("a")
    clock.advance(29_999.999)

    assert mail.commit(attempt) == ["ok"]


def test_one_lease_that_ended_does_not_spoil_the_others(mail, clock):
    mail.enqueue("short", keepalive_ms=10)
    mail.enqueue("long")
    short, long = mail.reserve(2)
    clock.advance(10)

    assert mail.commit(short, long) == ["not_reserved", "ok"]


def test_a_task_that_was_put_back_is_not_reserved(mail):
    attempt = mail.lease("a")
    mail.release(attempt)
    before = mail.snapshot()

    assert mail.commit(attempt) == ["not_reserved"]
    assert mail.snapshot() == before


def test_only_the_newest_lease_may_report(mail, clock):
    old = mail.lease("a")
    clock.advance(30_000)
    (new,) = mail.reserve()
    before = mail.snapshot()

    assert mail.commit(old) == ["lost"]
    assert mail.snapshot() == before
    assert mail.commit(new) == ["ok"]


@pytest.mark.parametrize("token", ["", "abc", "nan", "0", "-1"])
def test_a_token_of_no_lease_is_lost(mail, token):
    mail.lease("a")
    before = mail.snapshot()

    assert mail.run(leases.commit(mail.keys, [("a", token, 0, "succeeded", b"")])) == ["lost"]
    assert mail.snapshot() == before


def test_a_task_of_another_queue_is_lost(line):
    raw, clean = line("orders/raw"), line("orders/clean")
    attempt = raw.lease("a")
    before = raw.snapshot()

    assert clean.commit(attempt) == ["lost"]
    assert raw.snapshot() == before


def test_many_reports_fit_one_call(mail):
    mail.enqueue(*(f"{n:05d}" for n in range(9000)))
    held = mail.reserve(9000)

    assert mail.commit(*held) == ["ok"] * 9000
    assert mail.commit(*held[:5000]) == ["gone"] * 5000
    assert mail.snapshot().keys() == {mail.keys.counters, mail.keys.arrival, mail.keys.wake}


@pytest.mark.parametrize("keep_ms", [0, 60_000])
def test_a_server_that_is_full_takes_the_report(mail, keep_ms):
    attempt = mail.lease("a")
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.commit(attempt, keep_ms=keep_ms, result=b"1") == ["ok"]
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert bool(mail.hash("a")) == bool(keep_ms)


@pytest.mark.parametrize("keep_ms", [0, 60_000])
def test_a_hash_that_was_deleted_meanwhile_does_not_come_back(mail, keep_ms):
    attempt = mail.lease("a")
    mail.raw.delete(mail.keys.task("a"))

    assert mail.commit(attempt, keep_ms=keep_ms) == ["ok"]
    assert not mail.raw.exists(mail.keys.task("a"))
    assert mail.ids("pending") == []


def test_a_key_of_another_type_spoils_no_neighbour(mail):
    mail.enqueue("a", "b")
    held = mail.reserve(2)
    mail.raw.delete(mail.keys.task("a"))
    mail.raw.set(mail.keys.task("a"), "damage")

    assert mail.commit(*held, keep_ms=60_000) == ["ok", "ok"]
    assert mail.hash("b")["finished_at"]
    assert mail.raw.pttl(mail.keys.task("a")) > 0


def test_who_waits_for_the_end_is_told_and_can_read_it(mail, raw, keys):
    attempt = mail.lease("a")
    mail.run(tasks.show(keys, "a", queue="mail", awaited=True))
    with raw.pubsub() as ears:
        ears.subscribe(mail.keys.finished + b"a")
        ears.get_message(timeout=5)
        mail.commit(attempt, keep_ms=0, result=b"1")
        heard = ears.get_message(timeout=5)

    assert heard["data"] == b"succeeded"
    assert mail.hash("a")["result"] == b"1"
    assert 0 < raw.pttl(mail.keys.task("a")) <= 5000
    assert not raw.exists(mail.keys.waiters)


def test_a_user_without_channels_reports_although_somebody_waits(mail, keys, weak_broker):
    first, second, last = (mail.lease(one, max_attempts=1) for one in "abc")
    for one in "abc":
        mail.run(tasks.show(keys, one, queue="mail", awaited=True))
    mail.run = weak_broker("resetchannels").run

    assert mail.commit(first, second, keep_ms=60_000, result=b"1") == ["ok", "ok"]
    assert mail.fail(last) == ["dead"]
    assert mail.totals() == {"enqueued": 3, "succeeded": 2, "failed": 1, "dead": 1}
    assert not mail.raw.exists(mail.keys.waiters)


def test_a_command_that_is_denied_half_way_leaves_the_lease(mail, weak_broker):
    attempt = mail.lease("a")

    with pytest.raises(ServerRefused):
        weak_broker("-hset", "-unlink").run(leases.commit(mail.keys, [("a", attempt.token, 0, "succeeded", b"")]))

    assert mail.ids("pending") == ["a"]
    assert mail.commit(attempt) == ["ok"]


def test_a_dropped_task_counts_as_dropped_and_reads_as_cancelled(mail, keys):
    attempt = mail.lease("a")

    assert mail.commit(attempt, keep_ms=60_000, outcome="dropped") == ["ok"]

    record = mail.run(tasks.show(keys, "a", queue="mail"))
    assert record is not None
    assert record.state is TaskState.CANCELLED
    assert mail.totals() == {"enqueued": 1, "dropped": 1}


def test_the_end_of_a_dropped_task_of_a_flow_is_that_of_a_cancelled_one(mail):
    attempt = mail.lease("a")

    mail.run(leases.commit(mail.keys, [(attempt.id, attempt.token, 0, "dropped", b"", b"[somewhere]")]))

    assert mail.raw.hgetall(mail.keys.outbox) == {b"cancelled:[somewhere]": b""}
