"""The script that ends a task of a flow writes the outcome to the outbox in the same step; other tasks write none."""

import pytest

from jobrunner.broker.calls import flows, leases, queues, tasks
from jobrunner.broker.keys import Keys
from jobrunner.join import Arrival, Ended, write_onward

THEN = write_onward([Arrival("mail", "j", 0)])


def outbox(mail):
    return {field.decode(): result for field, result in mail.raw.hgetall(mail.keys.outbox).items()}


def outbox_entry(outcome):
    return f"{outcome}:{THEN.decode()}"


def lease(mail, **options):
    return mail.lease("a", then=THEN, **options)


def test_an_attempt_brings_along_whom_to_tell(mail):
    assert lease(mail).then == THEN
    assert mail.lease("b").then is None
    assert mail.lease("c", headers=b"{}").then is None


def test_a_commit_leaves_word_with_its_result(mail):
    held, plain = lease(mail), mail.lease("b")
    reports = [(held.id, held.token, 0, "succeeded", b"[1]", THEN), (plain.id, plain.token, 0, "succeeded", b"2")]
    assert mail.run(leases.commit(mail.keys, reports)) == ["ok", "ok"]
    assert outbox(mail) == {outbox_entry("succeeded"): b"[1]"}


def test_a_commit_that_is_refused_leaves_none(mail, clock):
    held = lease(mail)
    clock.advance(30_000)
    assert mail.run(leases.commit(mail.keys, [(held.id, held.token, 0, "succeeded", b"", THEN)])) == ["not_reserved"]
    assert outbox(mail) == {}


def test_a_job_that_cancels_itself_leaves_word(mail):
    held = lease(mail)
    mail.run(leases.commit(mail.keys, [(held.id, held.token, 0, "cancelled", b"", THEN)]))
    assert outbox(mail) == {outbox_entry("cancelled"): b""}


def test_a_failure_leaves_word_only_when_it_is_the_last(mail, clock):
    assert mail.fail(lease(mail)) == ["scheduled"]
    assert outbox(mail) == {}
    clock.advance(1)
    assert mail.fail(*mail.reserve(), fate="dead") == ["dead"]
    assert outbox(mail) == {outbox_entry("dead"): b""}


def test_a_lease_that_ended_leaves_word_when_the_attempts_are_spent(mail, clock):
    lease(mail, max_attempts=1)
    clock.advance(30_000)
    mail.run(queues.upkeep(mail.keys))
    assert mail.ids("dead") == ["a"]
    assert outbox(mail) == {outbox_entry("dead"): b""}


def test_a_task_that_expires_in_line_leaves_word(mail, clock):
    mail.enqueue("a", then=THEN, expires_in_ms=10)
    clock.advance(11)
    assert mail.reserve() == []
    assert outbox(mail) == {outbox_entry("dead"): b""}


def test_a_dead_task_that_is_not_kept_leaves_word_all_the_same(mail):
    mail.configure(dead_ttl_ms=0)
    mail.fail(lease(mail), fate="dead")
    assert not mail.hash("a")
    assert outbox(mail) == {outbox_entry("dead"): b""}


def test_a_dead_task_that_is_forwarded_leaves_word_and_may_succeed_there(line):
    raw, lost = line("orders/raw"), line("orders/lost")
    raw.configure(dead_letter_queue="orders/lost")
    raw.fail(raw.lease("a", then=THEN), fate="dead")
    assert outbox(raw) == {outbox_entry("dead"): b""}
    (held,) = lost.reserve()
    assert held.then == THEN


def test_a_dead_task_that_is_put_back_leaves_word_of_its_other_end(mail):
    mail.fail(lease(mail), fate="dead")
    mail.run(tasks.requeue(mail.keys, ["a"]))
    (held,) = mail.reserve()
    mail.run(leases.commit(mail.keys, [(held.id, held.token, 0, "succeeded", b"", held.then)]))
    assert set(outbox(mail)) == {outbox_entry("dead"), outbox_entry("succeeded")}


@pytest.mark.parametrize("delay_ms", [None, 1000])
def test_a_task_that_is_cancelled_leaves_word(mail, delay_ms):
    mail.enqueue("a", then=THEN, delay_ms=delay_ms)
    assert mail.run(tasks.cancel(mail.keys, "a", keep_ms=1000)) == "posted"
    assert outbox(mail) == {outbox_entry("cancelled"): b""}


def test_tasks_that_are_purged_leave_word(mail):
    mail.enqueue("a", then=THEN)
    mail.enqueue("b")
    assert mail.run(queues.purge(mail.keys, "waiting")) == 2
    assert outbox(mail) == {outbox_entry("cancelled"): b""}


def test_the_dead_have_left_theirs_when_they_are_purged(mail):
    mail.fail(lease(mail), fate="dead")
    mail.run(queues.purge(mail.keys, "dead"))
    assert outbox(mail) == {outbox_entry("dead"): b""}


def test_history_that_is_purged_leaves_none(mail):
    mail.configure(history_ms=60_000)
    mail.commit(lease(mail))  # without its `then`: as if the outcome was passed on already
    assert mail.run(queues.purge(mail.keys, "done")) == 1
    assert outbox(mail) == {}


def test_a_task_that_is_popped_or_deleted_leaves_word(mail):
    mail.enqueue("a", then=THEN)
    mail.run(leases.pop(mail.keys, 1))
    assert outbox(mail) == {outbox_entry("succeeded"): b""}
    mail.raw.delete(mail.keys.outbox)
    lease(mail)
    mail.run(tasks.delete(mail.keys, "a"))
    assert outbox(mail) == {outbox_entry("succeeded"): b""}


def test_a_task_that_is_removed_leaves_word_unless_it_has_ended(mail):
    mail.fail(lease(mail), fate="dead")
    mail.raw.delete(mail.keys.outbox)
    assert mail.run(tasks.remove(mail.keys, ["a"])) == ["ok"]
    assert outbox(mail) == {}
    mail.enqueue("a", then=THEN)
    assert mail.run(tasks.remove(mail.keys, ["a"])) == ["ok"]
    assert outbox(mail) == {outbox_entry("cancelled"): b""}


def test_a_task_that_moves_keeps_whom_to_tell(line):
    raw, clean = line("orders/raw"), line("orders/clean")
    held = raw.lease("a", then=THEN)
    raw.run(leases.move(raw.keys, clean.keys, [("a", held.token, "", 0, ())]))
    assert outbox(raw) == {}
    (moved,) = clean.reserve()
    assert moved.then == THEN


def test_a_server_that_is_full_takes_the_word(mail):
    held = lease(mail)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.run(leases.commit(mail.keys, [(held.id, held.token, 0, "succeeded", b"1", THEN)])) == ["ok"]
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert outbox(mail) == {outbox_entry("succeeded"): b"1"}


def test_an_outbox_is_read_and_emptied_by_entry(mail, keys: Keys):
    held = lease(mail)
    mail.run(leases.commit(mail.keys, [(held.id, held.token, 0, "succeeded", b"1", THEN)]))
    (word,), _ = mail.run(flows.outbox(keys, "mail", count=10))
    assert word == Ended("mail", "succeeded", THEN, b"1")
    assert mail.run(flows.forget(keys, "mail", [word])) == 1
    assert mail.run(flows.outbox(keys, "mail", count=10)) == ([], False)
    assert not mail.raw.exists(mail.keys.outbox)


def test_an_outbox_is_read_a_mib_at_a_time(mail, keys):
    """As many entries as fit, but at least one: an entry that is larger alone is read, too."""
    for n in range(12):
        mail.raw.hset(mail.keys.outbox, f"succeeded:{n}", b"x" * (300_000 if n else 3_000_000))
    found = set()
    while len(found) < 12:
        entries, has_more = mail.run(flows.outbox(keys, "mail", count=10))
        assert 1 <= len(entries) <= 3
        assert len(entries) == 1 or sum(len(one.result) for one in entries) <= 2**20
        assert has_more
        found.update(one.onward for one in entries)
    assert len(mail.run(flows.outbox(keys, "mail", count=1))[0]) == 1


def test_a_full_page_of_an_outbox_may_not_be_its_last(mail, keys):
    for n in range(10):
        mail.raw.hset(mail.keys.outbox, f"succeeded:{n}", b"1")
    for count, has_more in ((9, True), (10, True), (11, False)):
        entries, said = mail.run(flows.outbox(keys, "mail", count=count))
        assert (len(entries), said) == (min(count, 10), has_more)


def test_a_task_of_no_flow_leaves_nothing(mail):
    mail.commit(mail.lease("a"))
    mail.fail(mail.lease("b"), fate="dead")
    mail.enqueue("c")
    assert mail.run(tasks.cancel(mail.keys, "c", keep_ms=1)) == "ok"
    assert not mail.raw.exists(mail.keys.outbox)


@pytest.mark.parametrize("delay_ms", [None, 1000])
def test_tasks_that_are_deleted_with_their_queue_leave_word(mail, delay_ms):
    mail.enqueue("a", then=THEN, delay_ms=delay_ms)
    assert mail.run(queues.delete(mail.keys, force=True, states=[]))[0] == "more"
    assert outbox(mail) == {outbox_entry("cancelled"): b""}


@pytest.mark.parametrize("field", ["finished_at", "died_at"])
@pytest.mark.parametrize(
    "call", [lambda keys: queues.delete(keys, force=True, states=[]), lambda keys: queues.purge(keys, "waiting")]
)
def test_a_task_that_has_ended_leaves_no_second_word_when_it_is_deleted_with_others(mail, field, call):
    mail.enqueue("a", then=THEN)
    mail.raw.hset(mail.keys.task("a"), field, 1)
    mail.run(call(mail.keys))
    assert (mail.ids("waiting"), outbox(mail)) == ([], {})
