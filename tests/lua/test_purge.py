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


def test_an_empty_set_is_no_change(mail):
    assert mail.run(queues.purge(mail.keys, "waiting")) == 0
    assert mail.snapshot() == {}


def test_a_member_without_a_hash_goes_too(mail):
    mail.enqueue("a")
    mail.raw.delete(mail.keys.task("a"))

    assert mail.run(queues.purge(mail.keys, "waiting")) == 1
    assert mail.ids("waiting") == []
