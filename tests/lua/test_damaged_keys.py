"""A key of a wrong type: a call that needs it is refused and changes nothing, so all is well once it is repaired."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jobrunner.broker.calls import queues, tasks
from jobrunner.errors import ServerRefused


@contextmanager
def damaged(mail, name: str) -> Iterator[None]:
    """A sorted set or hash of the queue, or of its tag, holds text; afterwards it is as it was."""
    key = getattr(mail.keys, name)
    before = mail.raw.dump(key)
    mail.raw.set(key, "damage")
    yield
    mail.raw.delete(key)
    if before is not None:
        mail.raw.restore(key, 0, before)


def put(mail, state):
    if state == "dead":
        mail.fail(mail.lease("a", then="1:j:0"), fate="dead")
    else:
        mail.enqueue("a", then="1:j:0", **({"delay_ms": 9000} if state == "scheduled" else {}))


@pytest.mark.parametrize("state", ["waiting", "scheduled", "dead"])
@pytest.mark.parametrize("name", ["waiting", "scheduled", "pending", "dead", "leases", "outbox"])
def test_a_task_that_cannot_be_cancelled_now_can_be_later(mail, state, name):
    """It had left its set, and its hash stayed for ever."""
    put(mail, state)
    before = mail.snapshot()
    with damaged(mail, name), pytest.raises(ServerRefused):
        mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000))
    assert mail.snapshot() == before
    assert mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000)) == "posted"


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("options", [{}, {"priority": 2}, {"delay_ms": 9000}], ids=["plain", "priority", "later"])
@pytest.mark.parametrize("setting", [{}, {"max_size": 9}, {"fair": 1}], ids=["", "max_size", "fair"])
@pytest.mark.parametrize("ids", ["a", "ab"], ids=["alone", "two"])
def test_an_id_whose_enqueue_was_refused_is_free(mail, ids, setting, options, is_known):
    """Its hash was written, so a later enqueue of the id found it existing, and the task never ran."""
    if setting:
        mail.configure(**setting)
    if is_known:
        mail.commit(mail.lease("before"))
    name = "scheduled" if "delay_ms" in options else "waiting"
    with damaged(mail, name), pytest.raises(ServerRefused):
        mail.enqueue(*ids, **options)
    assert not mail.raw.exists(mail.keys.task("a"))
    assert mail.enqueue(*ids, **options) == [True] * len(ids)
    assert mail.ids(name) == list(ids)


@pytest.mark.parametrize("state", ["waiting", "scheduled", "dead"])
@pytest.mark.parametrize("name", ["waiting", "scheduled", "pending", "dead", "done", "leases", "outbox"])
def test_a_task_that_cannot_be_removed_now_can_be_later(mail, state, name):
    """Its hash stayed without a state, or no join learned of its end."""
    put(mail, state)
    before = mail.snapshot()
    with damaged(mail, name), pytest.raises(ServerRefused):
        mail.run(tasks.remove(mail.keys, ["a"]))
    assert mail.snapshot() == before
    assert mail.run(tasks.remove(mail.keys, ["a"])) == ["ok"]
    assert mail.hash("a") == {}


@pytest.mark.parametrize("state", ["waiting", "scheduled", "dead"])
def test_a_purge_without_an_outbox_deletes_nothing(mail, state):
    put(mail, state)
    before = mail.snapshot()
    with damaged(mail, "outbox"), pytest.raises(ServerRefused):
        mail.run(queues.purge(mail.keys, state))
    assert mail.snapshot() == before
    assert mail.run(queues.purge(mail.keys, state)) == 1


def test_a_task_ends_while_the_set_of_those_who_wait_for_ends_is_damaged(mail, clock):
    """A task that died kept its lease, so it ran again, and its id stayed in `dead` without a hash."""
    died, done = mail.lease("died"), mail.lease("done")
    mail.enqueue("cancelled")
    with damaged(mail, "waiters"):
        assert mail.fail(died, fate="dead") == ["dead"]
        assert mail.commit(done, keep_ms=60_000) == ["ok"]
        assert mail.run(tasks.cancel(mail.keys, "cancelled", keep_ms=60_000)) == "ok"
    clock.advance(100_000)
    assert mail.reserve() == []
    assert (mail.ids("dead"), mail.ids("pending")) == (["died"], [])


def test_a_task_of_no_flow_is_cancelled_while_the_outbox_is_damaged(mail):
    mail.enqueue("a", type="send")
    with damaged(mail, "outbox"):
        assert mail.run(tasks.cancel(mail.keys, "a", keep_ms=0)) == "ok"
