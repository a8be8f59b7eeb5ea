"""cancel: waiting, scheduled or dead → cancelled; a task under a lease is asked to stop."""

import pytest

from jobrunner.broker.calls import tasks


def cancelled(mail, task_id, keep_ms=60_000):
    return mail.run(tasks.cancel(mail.keys, task_id, keep_ms=keep_ms))


def put(mail, state):
    if state == "waiting":
        mail.enqueue("a")
    elif state == "scheduled":
        mail.enqueue("a", delay_ms=1000)
    else:
        mail.fail(mail.lease("a"), fate="dead")


@pytest.mark.parametrize("state", ["waiting", "scheduled", "dead"])
def test_a_task_that_nobody_holds_is_cancelled(mail, clock, state):
    put(mail, state)
    assert mail.ids(state) == ["a"]

    assert cancelled(mail, "a") == "ok"

    assert mail.ids(state) == []
    assert (mail.hash("a")["outcome"], mail.hash("a")["finished_at"]) == (b"cancelled", b"%d" % clock.ms)
    assert 59_000 < mail.raw.pttl(mail.keys.task("a")) <= 60_000
    assert mail.totals()["cancelled"] == 1
    assert mail.reserve() == []


def test_a_task_under_a_lease_is_asked_to_stop_and_stays(mail):
    attempt = mail.lease("a")
    scores = mail.scores("pending")

    assert cancelled(mail, "a") == "reserved"
    assert cancelled(mail, "a") == "reserved"

    assert mail.hash("a")["cancel_requested"] == b"1"
    assert mail.scores("pending") == scores
    assert mail.raw.pttl(mail.keys.task("a")) == -1
    assert mail.commit(attempt, outcome="cancelled") == ["ok"]
    assert mail.totals() == {"enqueued": 1, "cancelled": 1}


def test_a_lease_that_ended_does_not_protect_its_task(mail, clock):
    attempt = mail.lease("a")
    clock.advance(30_000)

    assert cancelled(mail, "a") == "ok"
    assert mail.hash("a")["attempts"] == b"1"
    assert mail.ids("pending") == mail.ids("leases") == []
    assert mail.commit(attempt) == ["gone"]
    assert mail.reserve() == []


def test_what_is_over_is_gone(mail):
    mail.commit(mail.lease("deleted"))
    mail.commit(mail.lease("kept"), keep_ms=60_000)
    mail.enqueue("cancelled")
    cancelled(mail, "cancelled")
    before = mail.snapshot()

    assert [cancelled(mail, one) for one in ("deleted", "kept", "cancelled", "ghost")] == ["gone"] * 4
    assert mail.snapshot() == before


def test_attempts_that_were_made_are_remembered(mail, keys):
    mail.fail(mail.lease("a"))
    cancelled(mail, "a")

    record = mail.run(tasks.show(keys, "a", queue="mail"))
    assert (record.state, record.attempts, record.retry_count) == ("cancelled", 1, 1)


def test_a_member_without_a_hash_leaves_nothing_behind(mail):
    mail.enqueue("a")
    mail.raw.delete(mail.keys.task("a"))

    assert cancelled(mail, "a") == "gone"
    assert mail.ids("waiting") == []
    assert not mail.raw.exists(mail.keys.task("a"))
    assert mail.totals()["orphaned"] == 1


def test_a_pending_member_without_a_hash_leaves_nothing_behind(mail):
    mail.lease("a")
    mail.raw.delete(mail.keys.task("a"))

    assert cancelled(mail, "a") == "gone"
    assert mail.ids("pending") == mail.ids("leases") == []
    assert not mail.raw.exists(mail.keys.task("a"))


def test_a_key_of_another_type_is_no_task(mail):
    mail.enqueue("a")
    mail.raw.delete(mail.keys.task("a"))
    mail.raw.set(mail.keys.task("a"), "text")

    assert cancelled(mail, "a") == "gone"
    assert mail.ids("waiting") == []


def test_who_waits_is_told(mail, raw, keys):
    mail.enqueue("a")
    mail.run(tasks.show(keys, "a", queue="mail", awaited=True))
    with raw.pubsub() as ears:
        ears.subscribe(mail.keys.finished + b"a")
        ears.get_message(timeout=5)
        cancelled(mail, "a")
        heard = ears.get_message(timeout=5)

    assert heard["data"] == b"cancelled"
    assert not raw.exists(mail.keys.waiters)


@pytest.mark.parametrize("held", [True, False])
def test_a_server_that_is_full_takes_it(mail, held):
    mail.enqueue("a")
    if held:
        mail.reserve()
    mail.raw.config_set("maxmemory", 1)
    try:
        assert cancelled(mail, "a") == ("reserved" if held else "ok")
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_what_is_dead_no_more_can_be_left(mail):
    mail.lease("held")
    for name in ("dead", "again"):
        mail.fail(mail.lease(name), fate="dead")
    mail.run(tasks.requeue(mail.keys, ["again"], start_ms=0, step_ms=0, fields=[]))
    before = mail.snapshot()

    for name in ("held", "again", "none"):
        assert mail.run(tasks.cancel(mail.keys, name, keep_ms=60_000, leave="alive")) == "gone"

    assert mail.snapshot() == before
    assert mail.run(tasks.cancel(mail.keys, "dead", keep_ms=60_000, leave="alive")) == "ok"
    assert (mail.ids("dead"), mail.ids("waiting"), mail.ids("pending")) == ([], ["again"], ["held"])


def test_what_is_dead_can_be_left(mail):
    mail.fail(mail.lease("dead"), fate="dead")
    mail.enqueue("waiting")
    before = mail.hash("dead")

    said = [mail.run(tasks.cancel(mail.keys, one, keep_ms=60_000, leave="dead")) for one in ("dead", "waiting", "none")]

    assert said == ["gone", "ok", "gone"]
    assert (mail.ids("dead"), mail.hash("dead"), mail.ids("waiting")) == (["dead"], before, [])
