"""requeue: dead → waiting, with its counts at zero."""

import pytest

from jobrunner.broker.calls import tasks


def requeued(mail, *ids):
    return mail.run(tasks.requeue(mail.keys, ids))


def bury(mail, *ids, **options):
    mail.enqueue(*ids, **options)
    mail.fail(*mail.reserve(len(ids)), fate="dead", error="boom")


def test_the_dead_may_come_back_one_behind_the_other(mail, clock):
    bury(mail, "a", "b", "c", "d")
    call = tasks.requeue(mail.keys, ["a", "nope", "b", "c"], start_ms=100, step_ms=50)

    assert mail.run(call) == ["ok", "gone", "ok", "ok"]

    assert mail.scores("scheduled") == {"a": clock.ms + 100, "b": clock.ms + 150, "c": clock.ms + 200}
    assert mail.ids("dead") == ["d"]
    assert mail.reserve(9) == []
    clock.advance(150)
    assert [attempt.id for attempt in mail.reserve(9)] == ["a", "b"]


def test_a_dead_task_may_come_back_with_another_payload(mail):
    bury(mail, "a", payload=b"wrong")

    assert mail.run(tasks.requeue(mail.keys, ["a"], fields=["payload", b"right"])) == ["ok"]

    assert mail.reserve()[0].payload == b"right"


def test_a_task_that_is_not_dead_keeps_its_payload(mail):
    mail.enqueue("a", payload=b"old")
    assert mail.run(tasks.requeue(mail.keys, ["a"], fields=["payload", b"new"])) == ["not_dead"]
    assert mail.hash("a")["payload"] == b"old"


def test_attempts_start_anew_and_the_total_goes_on(mail, clock):
    """It was lost with each requeue, so a task that an operator revived each day showed one attempt."""
    mail.enqueue("a", max_attempts=3)
    for _ in range(3):
        clock.advance(1)
        mail.fail(*mail.reserve(), error="boom")
    assert mail.ids("dead") == ["a"]
    requeued(mail, "a")
    assert (mail.hash("a")["retry_count"], mail.hash("a")["total_attempts"]) == (b"0", b"3")

    mail.fail(*mail.reserve(), fate="dead", error="boom")
    requeued(mail, "a")
    assert (mail.hash("a")["retry_count"], mail.hash("a")["total_attempts"]) == (b"0", b"4")
    assert mail.reserve()[0].number == 1


def test_a_dead_task_waits_again_as_if_it_were_new(mail, clock):
    bury(mail, "a", expires_in_ms=50)
    mail.raw.hset(mail.keys.task("a"), mapping={"unknown_since": "1", "suspect": "1", "expiries": "1", "hops": "5"})
    mail.wakes()
    clock.advance(1000)

    assert requeued(mail, "a") == ["ok"]

    assert mail.ids("dead") == []
    assert mail.scores("waiting") == {"a": clock.ms + 0.5}
    found = mail.hash("a")
    assert found["retry_count"] == b"0"
    assert found["error"] == b"boom", "why it died may be asked until it fails again"
    assert found["expires_in_ms"] == b"never", "someone asked for it now, however long ago it was enqueued"
    assert not {"died_at", "expiries", "cancel_requested", "unknown_since", "suspect", "group", "hops"} & found.keys()
    assert mail.totals()["requeued"] == 1
    assert mail.wakes()
    (attempt,) = mail.reserve()
    assert (attempt.number, attempt.retry_count) == (1, 0)


def test_it_goes_behind_all_that_wait_in_the_order_asked_for(mail):
    bury(mail, "a", "b")
    mail.enqueue("z")

    assert requeued(mail, "b", "a") == ["ok", "ok"]
    assert mail.ids("waiting") == ["z", "b", "a"]


def test_a_priority_counts_again(mail):
    bury(mail, "urgent", priority=2)
    mail.enqueue("plain")
    requeued(mail, "urgent")

    assert mail.ids("waiting") == ["urgent", "plain"]


def test_what_is_not_dead_is_left_alone(mail):
    mail.lease("held")
    mail.commit(mail.lease("kept"), keep_ms=60_000)
    mail.enqueue("later", delay_ms=5)
    mail.enqueue("waits")
    before = mail.snapshot()

    assert requeued(mail, "waits", "later", "held", "kept", "ghost") == ["not_dead"] * 4 + ["gone"]
    assert mail.snapshot() == before


def test_twice_in_one_call_is_once(mail):
    bury(mail, "a")

    assert requeued(mail, "a", "a") == ["ok", "not_dead"]
    assert mail.ids("waiting") == ["a"]
    assert mail.totals()["requeued"] == 1


def test_a_member_without_a_hash_is_dropped(mail):
    bury(mail, "a", "b")
    mail.raw.delete(mail.keys.task("a"))

    assert requeued(mail, "a", "b") == ["gone", "ok"]
    assert mail.ids("dead") == []
    assert mail.ids("waiting") == ["b"]
    assert mail.hash("a") == {}
    assert mail.totals()["orphaned"] == 1


def test_an_old_lease_is_still_over(mail):
    mail.enqueue("a")
    (attempt,) = mail.reserve()
    mail.fail(attempt, fate="dead")
    requeued(mail, "a")
    assert mail.commit(attempt) == ["not_reserved"]
    mail.reserve()
    assert mail.commit(attempt) == ["lost"]


@pytest.mark.parametrize("amount", [500])
def test_a_server_that_is_full_takes_it(mail, amount):
    bury(mail, *(f"{n:03d}" for n in range(amount)))
    mail.raw.config_set("maxmemory", 1)
    try:
        assert requeued(mail, *mail.ids("dead")) == ["ok"] * amount
    finally:
        mail.raw.config_set("maxmemory", 0)
