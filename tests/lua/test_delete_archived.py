"""delete_archived: deletes a bounded slice of the tasks that are older than an instant, index and hash together."""

from jobrunner.broker.calls import archives


def test_what_ended_before_goes_and_what_ended_then_or_later_stays(mail, clock):
    mail.configure(history_ms=100_000)
    for one in "abc":
        mail.commit(mail.lease(one))
        clock.advance(0.5)
    before = mail.scores("done")["b"]

    assert mail.run(archives.delete_archived(mail.keys, "done", before_ms=before)) == 1
    assert mail.run(archives.delete_archived(mail.keys, "done", before_ms=before)) == 0

    assert mail.ids("done") == ["b", "c"]
    assert [bool(mail.hash(one)) for one in "abc"] == [False, True, True]
    assert mail.totals()["history_archived"] == 1
    assert float(mail.raw.hget(mail.keys.settings, "history_trimmed")) < before


def test_the_dead_go_in_slices_and_are_counted_as_trimmed(mail, clock):
    ids = [f"t{n:04}" for n in range(600)]
    mail.enqueue(*ids)
    mail.fail(*mail.reserve(600), fate="dead")
    clock.advance(1)

    assert mail.run(archives.delete_archived(mail.keys, "dead", before_ms=clock.ms)) == 500
    assert mail.run(archives.delete_archived(mail.keys, "dead", before_ms=clock.ms)) == 100
    assert mail.totals() == {"enqueued": 600, "failed": 600, "dead": 600, "trimmed": 600}
    assert not mail.raw.hexists(mail.keys.settings, "history_trimmed")
