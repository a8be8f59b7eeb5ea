"""progress: notes how far a running task has come."""

from jobrunner.broker.calls import leases, tasks


def noted(mail, attempt, note=b"[1,2]"):
    return mail.run(leases.progress(mail.keys, attempt.id, attempt.token, note))


def test_the_holder_of_the_lease_notes_it(mail):
    attempt = mail.lease("a")
    scores = mail.scores("pending")

    assert noted(mail, attempt) == "ok"
    assert noted(mail, attempt, b"[2,2]") == "ok"

    assert mail.hash("a")["progress"] == b"[2,2]"
    assert mail.scores("pending") == scores


def test_who_was_asked_to_stop_hears_of_it(mail):
    attempt = mail.lease("a")
    mail.run(tasks.cancel(mail.keys, "a", keep_ms=1000))

    assert noted(mail, attempt) == "stop"
    assert mail.hash("a")["progress"] == b"[1,2]"


def test_nobody_else_does(mail, clock):
    old = mail.lease("a")
    clock.advance(30_000)
    (new,) = mail.reserve()
    before = mail.snapshot()

    assert noted(mail, old) == "lost"
    clock.advance(30_000)
    assert noted(mail, new) == "not_reserved"
    assert mail.snapshot() == before
    mail.commit(*mail.reserve())
    assert noted(mail, new) == "gone"


def test_a_hash_that_was_deleted_meanwhile_does_not_come_back(mail):
    attempt = mail.lease("a")
    mail.raw.delete(mail.keys.task("a"))

    assert noted(mail, attempt) == "gone"
    assert mail.hash("a") == {}
