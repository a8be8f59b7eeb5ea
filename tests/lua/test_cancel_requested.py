"""A task that is cancelled while an attempt runs ends as cancelled, however that attempt ends."""

import pytest

from jobrunner.broker.calls import batches, leases, queues, tasks


@pytest.fixture
def held(mail):
    """An attempt of a task that is to be cancelled."""
    mail.configure(keepalive_ms=1000, max_attempts=9)
    attempt = mail.lease("a", type="send")
    assert mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000)) == "reserved"
    return attempt


def releases(mail, held, clock):
    mail.release(held)


def releases_begun(mail, held, clock):
    mail.release(held, delay_ms="!")


def snoozes(mail, held, clock):
    mail.release(held, delay_ms=3_600_000)


def fails(mail, held, clock):
    mail.fail(held, delay_ms=3_600_000)


def crashes(mail, held, clock):
    mail.crash(held)


def expires(mail, held, clock):
    clock.advance(1000)


ENDS = [releases, releases_begun, snoozes, fails, crashes, expires]


def hands_out(mail):
    return mail.reserve(5)


def pops(mail):
    return mail.run(leases.pop(mail.keys, 5))


def fills(mail):
    return mail.run(batches.fill(mail.keys, "b", 1, had=0, count=5, lease_ms=1000, turn=1))[0] - 1


@pytest.mark.parametrize("hand_out", [hands_out, pops, fills])
@pytest.mark.parametrize("ends", ENDS)
def test_no_other_attempt_of_it_begins(mail, held, clock, ends, hand_out):
    mail.enqueue("good")
    ends(mail, held, clock)

    found = hand_out(mail)

    assert len(found) == 1 if isinstance(found, list) else found == 0, "the neighbour alone"
    assert mail.hash("a")["outcome"] == b"cancelled"
    assert 0 < mail.raw.pttl(mail.keys.task("a")) <= 60_000
    assert not {"a"} & {one for state in ("waiting", "scheduled", "pending", "dead") for one in mail.ids(state)}
    assert mail.by_type()["send cancelled"] == 1


def test_it_ends_with_the_attempts_that_it_had(mail, held):
    mail.fail(held)
    mail.reserve()
    assert mail.hash("a")["attempts"] == b"1"


def test_an_end_by_itself_stands(mail, held):
    assert mail.commit(held, keep_ms=60_000) == ["ok"]
    assert "outcome" not in mail.hash("a")


def test_a_dead_one_is_dead_and_begins_anew_when_it_is_requeued(mail, held):
    mail.fail(held, fate="dead")
    assert mail.ids("dead") == ["a"]
    mail.run(tasks.requeue(mail.keys, ["a"]))

    assert [one.id for one in mail.reserve()] == ["a"]


def test_who_waits_for_a_flow_is_told(mail):
    attempt = mail.lease("a", then=b"join")
    mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000))
    mail.release(attempt)
    mail.reserve()

    assert mail.raw.hkeys(mail.keys.outbox) == [b"cancelled:join"]


def test_a_dead_letter_queue_gets_it_without_the_wish(line):
    main, dlq = line("p/main"), line("p/dlq")
    main.configure(dead_letter_queue="p/dlq")
    attempt = main.lease("a")
    main.run(tasks.cancel(main.keys, "a", keep_ms=60_000))
    main.fail(attempt, fate="dead")

    (again,) = dlq.reserve()
    assert not dlq.extend(again)[0].startswith("!"), "no wish to stop it"
    assert main.run(queues.counts(main.keys)).dead == 0


def test_a_waiting_task_that_is_cancelled_takes_up_no_place_of_its_key(mail):
    mail.configure(key_inflight=1)
    mail.enqueue("a", "b", key="k")
    mail.raw.hset(mail.keys.task("a"), mapping={"cancel_requested": 1, "more": 1})
    assert [one.id for one in mail.reserve(9)] == ["b"]
    assert mail.raw.hgetall(mail.keys.waiting.replace(b"waiting", b"inflight")) == {b"k": b"1"}
