"""queue_counts: how many tasks are in each state, after upkeep."""

import pytest

from jobrunner.broker.calls import queues
from jobrunner.errors import ServerRefused
from tests.support.server import version_of


def counted(mail):
    return mail.run(queues.counts(mail.keys))


def test_each_state_is_counted(mail):
    mail.fail(mail.lease("dead"), fate="dead")
    mail.lease("held")
    mail.enqueue("later", delay_ms=100)
    mail.enqueue("a", "b")

    found = counted(mail)
    assert (found.waiting, found.scheduled, found.pending, found.dead, found.paused) == (2, 1, 1, 1, False)
    assert found.totals == {"enqueued": 5, "failed": 1, "dead": 1}


def test_what_is_due_and_what_ended_is_counted_as_what_it_is_now(mail, clock):
    mail.enqueue("later", delay_ms=100)
    mail.lease("held")
    clock.advance(30_000)

    found = counted(mail)
    assert (found.waiting, found.scheduled, found.pending) == (2, 0, 0)


def test_a_pause_is_told(mail):
    mail.run(queues.configure(mail.keys, {"paused": 1}))
    assert counted(mail).paused


def test_a_queue_that_was_never_used_is_empty_and_stays_without_keys(mail):
    found = counted(mail)

    assert (found.waiting, found.scheduled, found.pending, found.dead, found.totals) == (0, 0, 0, 0, {})
    assert mail.snapshot() == {}


def test_a_user_who_may_only_read_sees_a_queue_that_needs_no_upkeep(mail, weak_broker):
    mail.enqueue("a")
    assert weak_broker("-@write").run(queues.counts(mail.keys)).waiting == 1


def test_a_user_who_may_only_read_sees_what_is_due_and_what_ended_as_waiting(mail, clock, weak_broker):
    mail.lease("held")
    mail.enqueue("a")
    mail.enqueue("later", delay_ms=100)
    mail.enqueue("much later", delay_ms=90_000_000)
    clock.advance(30_000)
    before = mail.snapshot()

    found = weak_broker("-@write").run(queues.counts(mail.keys))
    assert (found.waiting, found.scheduled, found.pending) == (3, 1, 0)
    assert mail.snapshot() == before


def test_counting_for_a_user_who_may_only_read_leaves_nothing_in_the_access_log(mail, clock, weak_broker, raw):
    """The log of the server had a refused zrem for each queue with a task that was due."""
    if version_of(raw) < (7,):
        pytest.skip("Redis 6.2 cannot be asked whether a user may run a command")
    mail.lease("held")
    mail.enqueue("later", delay_ms=100)
    clock.advance(30_000)
    raw.acl_log_reset()

    weak_broker("-@write").run(queues.counts(mail.keys))
    assert [entry["object"] for entry in raw.acl_log() if entry["context"] == "lua"] == []


def test_what_is_due_behind_a_slice_of_maintenance_counts_as_waiting(mail, clock):
    mail.enqueue(*(str(n) for n in range(250)), delay_ms=100)
    clock.advance(200)

    found = counted(mail)
    assert (found.waiting, found.scheduled) == (250, 0)


def test_a_damaged_set_is_an_error_for_everyone(mail, raw):
    mail.enqueue("a")
    raw.set(mail.keys.scheduled, "text")
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        counted(mail)
