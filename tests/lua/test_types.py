"""Totals by type: counted by the step that ends a task, so they are exact whatever becomes of its worker."""

from jobrunner.broker.calls import leases, tasks


def reported(mail, *held, outcome="succeeded", result=b""):
    return mail.run(leases.commit(mail.keys, [(a.id, a.token, 0, outcome, result, b"", a.type) for a in held]))


def test_what_is_committed_counts_for_its_type(mail):
    mail.enqueue("a", "b", "c", type="send")
    mail.enqueue("d", type="bill")
    held = mail.reserve(4)

    reported(mail, *held[:2], held[3])
    reported(mail, held[2], outcome="cancelled")

    assert mail.by_type() == {"send succeeded": 2, "bill succeeded": 1, "send cancelled": 1}
    assert mail.totals() == {"enqueued": 4, "succeeded": 3, "cancelled": 1}


def test_reports_that_say_different_things_count_as_one_number(mail):
    mail.enqueue("a", "b", type="send")
    one, other = mail.reserve(2)

    said = [(a.id, a.token, 0, "succeeded", a.id.encode(), b"", a.type) for a in (one, other)]
    mail.run(leases.commit(mail.keys, said))

    assert mail.by_type() == {"send succeeded": 2}


def test_a_refused_report_counts_nothing(mail):
    held = mail.lease("a", type="send")
    reported(mail, held)

    assert reported(mail, held) == ["gone"]
    assert mail.by_type() == {"send succeeded": 1}


def test_what_has_no_type_is_only_in_the_totals_of_the_queue(mail):
    reported(mail, mail.lease("a"))
    mail.commit(mail.lease("b", type="send"))

    assert mail.by_type() == {}
    assert mail.totals()["succeeded"] == 2


def test_who_is_cancelled_by_others_counts_too(mail):
    mail.enqueue("a", type="send")

    mail.run(tasks.cancel(mail.keys, "a", keep_ms=1000))

    assert mail.by_type() == {"send cancelled": 1}


def test_failures_deaths_and_recoveries_count_for_the_type(mail, clock):
    mail.fail(mail.lease("a", type="send"))
    mail.fail(*mail.reserve(), fate="dead")
    mail.lease("b", type="bill", max_attempts=2)
    clock.advance(30_000)
    mail.reserve()
    clock.advance(30_000)
    mail.reserve()

    assert mail.by_type() == {"send failed": 2, "send dead": 1, "bill recovered": 2, "bill dead": 1}
    assert mail.totals() == {"enqueued": 2, "failed": 2, "dead": 2, "recovered": 2}


def test_types_without_end_count_as_one(mail):
    for n in range(0, 1100, 100):
        held = [mail.lease(f"t{n + m}", type=f"type-{n + m}") for m in range(100)]
        reported(mail, *held)

    found = mail.by_type()
    assert len(found) <= 1001
    assert sum(found.values()) == 1100
    assert found["unknown succeeded"] == 100
