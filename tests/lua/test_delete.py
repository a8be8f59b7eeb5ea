"""delete: acknowledges an outstanding reservation by id alone."""

import pytest

from jobrunner.broker.calls import tasks


def deleted(mail, task_id):
    return mail.run(tasks.delete(mail.keys, task_id))


def test_a_reserved_task_is_removed_for_good(mail):
    attempt = mail.lease("a")

    assert deleted(mail, "a") == "ok"

    assert mail.hash("a") == {}
    assert mail.ids("pending") == mail.ids("leases") == []
    assert mail.totals() == {"enqueued": 1, "succeeded": 1}
    assert mail.commit(attempt) == ["gone"]


@pytest.mark.parametrize("damage", [None, b"no hash"])
def test_a_task_without_a_readable_hash_frees_its_place_at_once(mail, damage):
    """It was pending until its lease ended."""
    mail.configure(max_inflight=1, key_inflight=1)
    attempt = mail.lease("a", key="k")
    mail.enqueue("next", key="k")
    mail.raw.delete(mail.keys.task("a"))
    if damage:
        mail.raw.set(mail.keys.task("a"), damage)
    mail.wakes()

    assert deleted(mail, "a") == "gone"

    assert mail.ids("pending") == mail.ids("leases") == []
    assert mail.totals() == {"enqueued": 2, "orphaned": 1}
    assert mail.wakes()
    assert [one.id for one in mail.reserve()] == ["next"]
    assert mail.commit(attempt) == ["gone"]


def test_a_task_that_does_not_exist_is_gone(mail):
    mail.lease("a")
    deleted(mail, "a")
    mail.commit(mail.lease("kept"), keep_ms=60_000)
    before = mail.snapshot()

    assert [deleted(mail, one) for one in ("a", "ghost", "kept")] == ["gone"] * 3
    assert mail.snapshot() == before


def test_a_task_that_nobody_holds_is_refused(mail, clock):
    mail.lease("ended")
    mail.enqueue("waits")
    mail.enqueue("later", delay_ms=60_000)
    clock.advance(30_000)
    before = mail.snapshot()

    assert [deleted(mail, one) for one in ("waits", "later", "ended")] == ["not_reserved"] * 3
    assert mail.snapshot() == before


def test_a_dead_task_is_refused(mail):
    mail.fail(mail.lease("a"), fate="dead")

    assert deleted(mail, "a") == "not_reserved"
    assert mail.ids("dead") == ["a"]


def test_a_task_of_another_queue_is_refused(line):
    raw, clean = line("orders/raw"), line("orders/clean")
    raw.lease("a")

    assert deleted(clean, "a") == "not_reserved"
    assert raw.ids("pending") == ["a"]
