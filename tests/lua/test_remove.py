"""remove: waiting, scheduled, dead or finished → gone; run_now: scheduled → waiting."""

from jobrunner.broker.calls import tasks


def test_a_task_goes_from_whatever_state_with_its_hash(mail):
    mail.fail(mail.lease("dead"), fate="dead")
    mail.enqueue("a")
    mail.enqueue("later", delay_ms=1000)

    assert mail.run(tasks.remove(mail.keys, ["a", "later", "dead", "none"])) == ["ok", "ok", "ok", "gone"]
    assert (mail.scores("waiting"), mail.scores("scheduled"), mail.scores("dead")) == ({}, {}, {})
    assert mail.hash("a") == {}
    assert mail.totals()["purged"] == 3


def test_a_finished_task_leaves_the_history_and_counts_there(mail):
    mail.configure(history_ms=60_000)
    mail.commit(mail.lease("done"))

    assert mail.run(tasks.remove(mail.keys, ["done"])) == ["ok"]
    assert (mail.ids("done"), mail.hash("done")) == ([], {})
    assert mail.totals() == {"enqueued": 1, "succeeded": 1, "history_purged": 1}


def test_what_is_dead_no_more_can_be_left(mail):
    for name in ("dead", "again"):
        mail.fail(mail.lease(name), fate="dead")
    mail.run(tasks.requeue(mail.keys, ["again"], start_ms=0, step_ms=0, fields=[]))

    assert mail.run(tasks.remove(mail.keys, ["dead", "again", "none"], dead_only=True)) == ["ok", "gone", "gone"]
    assert (mail.ids("waiting"), mail.ids("dead"), mail.totals()["purged"]) == (["again"], [], 1)


def test_a_task_that_a_worker_has_stays(mail):
    mail.lease("held")
    before = mail.snapshot()

    assert mail.run(tasks.remove(mail.keys, ["held"])) == ["reserved"]
    assert mail.snapshot() == before


def test_a_lease_that_ended_does_not_protect_its_task(mail, clock):
    """It was refused as reserved, until a worker asked the queue, although cancel took it."""
    mail.configure(key_inflight=1, keepalive_ms=1000)
    late = mail.lease("late", key="k", then=b"join:x")
    mail.raw.hset(mail.keys.settings, "keepalive_ms", 1001)
    held = mail.lease("held", key="other")
    clock.advance(1000)
    mail.enqueue("next", key="k")

    assert mail.run(tasks.remove(mail.keys, ["late", "held"])) == ["ok", "reserved"]

    assert (mail.ids("pending"), mail.ids("leases"), mail.hash("late")) == (["held"], ["held"], {})
    assert mail.totals() == {"enqueued": 3, "purged": 1}
    assert mail.raw.hgetall(mail.keys.outbox) == {b"cancelled:join:x": b""}
    assert mail.commit(late) == ["gone"]
    assert [one.id for one in mail.reserve()] == ["next"]
    assert mail.commit(held) == ["ok"]


def test_what_is_left_of_a_damaged_dead_task_goes_too(mail):
    mail.fail(mail.lease("dead"), fate="dead")
    mail.raw.set(mail.keys.task("dead"), "damage")

    assert mail.run(tasks.remove(mail.keys, ["dead"])) == ["ok"]
    assert (mail.ids("dead"), mail.raw.exists(mail.keys.task("dead"))) == ([], 0)


def test_a_scheduled_task_waits_behind_those_that_wait(mail, clock):
    mail.enqueue("later", delay_ms=60_000)
    mail.enqueue("a")
    mail.wakes()

    assert mail.run(tasks.run_now(mail.keys, ["later", "a", "none"])) == ["ok", "not_scheduled", "not_scheduled"]
    assert mail.wakes()
    assert [attempt.id for attempt in mail.reserve(2)] == ["a", "later"]
    mail.wakes()
    assert mail.run(tasks.run_now(mail.keys, ["later"])) == ["not_scheduled"]
    assert not mail.wakes()


def test_a_task_that_is_run_now_keeps_its_priority(mail):
    mail.enqueue("urgent", priority=2, delay_ms=60_000)
    mail.enqueue("last", priority=0, delay_ms=60_000)
    mail.enqueue("between")
    mail.run(tasks.run_now(mail.keys, ["last", "urgent"]))
    assert mail.ids("waiting") == ["urgent", "between", "last"]


def test_a_task_that_is_run_now_keeps_its_new_place(mail, clock):
    mail.enqueue("later", delay_ms=60_000)
    mail.run(tasks.run_now(mail.keys, ["later"]))
    mail.enqueue("a")
    (held,) = mail.reserve()
    assert held.id == "later"
    mail.release(held)
    assert [attempt.id for attempt in mail.reserve(2)] == ["later", "a"]


def test_a_dead_task_goes_whose_id_an_entry_of_the_history_has_as_well(mail):
    mail.configure(history_ms=60_000)
    mail.commit(mail.lease("a"))
    mail.raw.delete(mail.keys.task("a"))
    mail.fail(mail.lease("a"), fate="dead")

    assert mail.run(tasks.remove(mail.keys, ["a"])) == ["ok"]
    assert (mail.ids("dead"), mail.ids("done"), mail.hash("a")) == ([], [], {})
    assert (mail.totals()["purged"], mail.totals()["history_purged"]) == (1, 1)


def test_a_task_whose_lease_is_over_goes_with_its_lease(mail, clock):
    mail.lease("late")
    clock.advance(30_000)

    assert mail.run(tasks.remove(mail.keys, ["late"])) == ["ok"]
    assert (mail.ids("pending"), mail.ids("leases"), mail.hash("late")) == ([], [], {})
