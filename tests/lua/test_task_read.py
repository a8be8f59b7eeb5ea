"""task_read: one task as it stands."""

from datetime import UTC, datetime

import pytest

from jobrunner.broker.calls import tasks


@pytest.fixture
def show(mail, keys):
    return lambda task_id, queue="mail", **options: mail.run(tasks.show(keys, task_id, queue=queue, **options))


def instant(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_a_task_has_its_state_and_the_instant_that_goes_with_it(mail, clock, show):
    mail.enqueue("a", type="send", payload=b"x", delay_ms=100)
    assert (show("a").state, show("a").when) == ("scheduled", instant(clock.ms + 100))
    clock.advance(100)
    (attempt,) = mail.reserve()
    assert (show("a").state, show("a").when) == ("pending", instant(clock.ms + 30_000))
    mail.release(attempt)
    assert (show("a").state, show("a").when) == ("waiting", None)
    mail.fail(*mail.reserve(), fate="dead")
    assert (show("a").state, show("a").when) == ("dead", instant(clock.ms))
    record = show("a")
    assert (record.id, record.type, record.queue, record.payload) == ("a", "send", "mail", b"x")
    assert record.enqueue_time == instant(clock.ms - 100)


def test_a_finished_task_has_its_result(mail, clock, show):
    mail.commit(mail.lease("a"), keep_ms=60_000, result=b"[1]")
    mail.commit(mail.lease("b"), keep_ms=60_000)

    assert (show("a").state, show("a").when, show("a").result) == ("succeeded", instant(clock.ms), b"[1]")
    assert (show("b").state, show("b").when, show("b").result) == ("succeeded", instant(clock.ms), None)


def test_attempts_and_failures_are_counted_as_the_task_goes(mail, clock, show):
    def counts():
        return show("a").attempts, show("a").retry_count

    mail.enqueue("a")
    assert counts() == (0, 0)
    (attempt,) = mail.reserve()
    assert counts() == (1, 0)
    mail.fail(attempt)
    assert counts() == (1, 1)
    mail.reserve()
    assert counts() == (2, 1)
    clock.advance(30_000)
    (attempt,) = mail.reserve()
    assert counts() == (3, 2)
    mail.release(attempt)
    assert counts() == (2, 2), "a graceful release takes the attempt back"
    (attempt,) = mail.reserve()
    mail.commit(attempt, keep_ms=60_000)
    assert counts() == (3, 2)


def test_a_task_of_a_pipeline_is_found_in_its_queue(line, keys):
    raw = line("orders/raw")
    raw.enqueue("a")

    record = raw.run(tasks.show(keys, "a", queue="orders/clean"))
    assert (record.state, record.queue) == ("waiting", "orders/raw")


def test_a_task_that_is_not_there_is_none_and_leaves_no_trace(mail, show):
    assert show("ghost", awaited=True) is None
    assert mail.snapshot() == {}


def test_a_hash_in_no_set_is_none(mail, show):
    mail.enqueue("a")
    mail.raw.delete(mail.keys.waiting)

    assert show("a") is None


def test_a_key_of_another_type_is_none(mail, show):
    mail.raw.set(mail.keys.task("a"), "text")

    assert show("a") is None


def test_looking_changes_nothing(mail, show):
    mail.enqueue("a")
    before = mail.snapshot()

    show("a")
    assert mail.snapshot() == before


def test_that_someone_waits_is_noted_with_the_time(mail, clock, show):
    mail.enqueue("a")
    show("a", awaited=True)
    assert dict(mail.raw.zrange(mail.keys.waiters, 0, -1, withscores=True)) == {b"a": clock.ms}
    assert 3_590_000 < mail.raw.pttl(mail.keys.waiters) <= 3_600_000, "it does not outlive its queue for longer"


def test_a_task_that_is_over_is_not_awaited(mail, show):
    mail.fail(mail.lease("dead"), fate="dead")
    mail.commit(mail.lease("kept"), keep_ms=60_000)

    show("dead", awaited=True)
    show("kept", awaited=True)
    assert not mail.raw.exists(mail.keys.waiters)


def test_who_has_not_asked_for_an_hour_is_forgotten(mail, clock, show):
    mail.enqueue("a", "b")
    show("a", awaited=True)
    clock.advance(3_600_000)
    show("b", awaited=True)

    assert mail.raw.zrange(mail.keys.waiters, 0, -1) == [b"b"]


def test_a_server_that_is_full_still_shows(mail, show):
    mail.enqueue("a")
    mail.raw.config_set("maxmemory", 1)
    try:
        assert show("a", awaited=True).state == "waiting"
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_a_hash_with_very_many_fields_is_shown_whole(mail, show):
    mail.enqueue("a")
    mail.raw.hset(mail.keys.task("a"), mapping={f"x{n}": n for n in range(9000)})

    assert show("a").fields["x8999"] == b"8999"
