"""purge: deletes the first tasks of one set, index and hash together."""

import pytest

from jobrunner.broker.calls import queues


def test_index_and_hash_go_together_from_the_front(mail):
    mail.enqueue(*"zmab")

    assert mail.run(queues.purge(mail.keys, "waiting", count=3)) == 3
    assert mail.ids("waiting") == ["b"]
    assert [bool(mail.hash(one)) for one in "zmab"] == [False, False, False, True]
    assert mail.totals() == {"enqueued": 4, "purged": 3}
    assert mail.run(queues.purge(mail.keys, "waiting", count=3)) == 1
    assert mail.run(queues.purge(mail.keys, "waiting", count=3)) == 0


@pytest.mark.parametrize("state", ["scheduled", "dead"])
def test_only_the_set_asked_for_is_touched(mail, state):
    mail.fail(mail.lease("dead"), fate="dead")
    mail.enqueue("scheduled", delay_ms=100)
    mail.enqueue("waiting")

    mail.run(queues.purge(mail.keys, state))

    left = {"dead", "scheduled", "waiting"} - {state}
    assert {one for one in ("dead", "scheduled", "waiting") if mail.ids(one)} == left
    assert {one for one in ("dead", "scheduled", "waiting") if mail.hash(one)} == left


@pytest.mark.parametrize(("state", "posts"), [("waiting", True), ("dead", False), ("done", False)])
def test_the_flow_of_a_task_hears_of_its_end_once(mail, state, posts):
    mail.configure(history_ms=60_000)
    mail.enqueue("a", then=b"joined")
    if state != "waiting":
        (held,) = mail.reserve()
        mail.commit(held) if state == "done" else mail.fail(held, fate="dead")
    mail.raw.delete(mail.keys.outbox)

    assert mail.run(queues.purge(mail.keys, state)) == 1

    assert mail.raw.hgetall(mail.keys.outbox) == ({b"cancelled:joined": b""} if posts else {})


def test_an_empty_set_is_no_change(mail):
    assert mail.run(queues.purge(mail.keys, "waiting")) == 0
    assert mail.snapshot() == {}


def test_a_member_without_a_hash_goes_too(mail):
    mail.enqueue("a")
    mail.raw.delete(mail.keys.task("a"))

    assert mail.run(queues.purge(mail.keys, "waiting")) == 1
    assert mail.ids("waiting") == []


def test_history_whose_records_are_gone_goes_too(mail):
    mail.configure(history_ms=60_000)
    mail.commit(mail.lease("a"))
    mail.raw.delete(mail.keys.task("a"))

    assert mail.run(queues.purge(mail.keys, "done")) == 1
    assert mail.ids("done") == []


def test_what_ended_before_an_instant_goes_and_what_ended_then_or_later_stays(mail, clock):
    mail.configure(history_ms=100_000)
    for one in "abc":
        mail.commit(mail.lease(one))
        clock.advance(0.5)
    before = mail.scores("done")["b"]

    assert mail.run(queues.delete_archived(mail.keys, "done", before_ms=before)) == 1
    assert mail.run(queues.delete_archived(mail.keys, "done", before_ms=before)) == 0

    assert mail.ids("done") == ["b", "c"]
    assert [bool(mail.hash(one)) for one in "abc"] == [False, True, True]
    assert mail.totals()["history_archived"] == 1
    assert float(mail.raw.hget(mail.keys.settings, "history_trimmed")) < before


@pytest.mark.parametrize("state", ["waiting", "scheduled", "dead", "done"])
def test_a_server_that_is_full_is_purged(mail, state):
    """It is how one frees memory."""
    mail.configure(history_ms=100_000)
    if state in ("dead", "done"):
        leases = [mail.lease(one) for one in "ab"]
        mail.commit(*leases) if state == "done" else mail.fail(*leases, fate="dead")
    else:
        mail.enqueue(*"ab", delay_ms=100 if state == "scheduled" else 0)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.run(queues.purge(mail.keys, state)) == 2
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert (mail.ids(state), mail.hash("a")) == ([], {})
    assert mail.raw.hexists(mail.keys.settings, "history_trimmed") == (state == "done")


def test_the_dead_go_in_slices_and_are_counted_as_trimmed(mail, clock):
    ids = [f"t{n:04}" for n in range(600)]
    mail.enqueue(*ids)
    mail.fail(*mail.reserve(600), fate="dead")
    clock.advance(1)

    assert mail.run(queues.delete_archived(mail.keys, "dead", before_ms=clock.ms)) == 500
    assert mail.run(queues.delete_archived(mail.keys, "dead", before_ms=clock.ms)) == 100
    assert mail.totals() == {"enqueued": 600, "failed": 600, "dead": 600, "trimmed": 600}
    assert not mail.raw.hexists(mail.keys.settings, "history_trimmed")
