"""queue_forget: deletes the totals of queues that have been unused for long. A queue in use stays."""

import pytest

from jobrunner.broker.calls import queues
from jobrunner.broker.calls.leader import leader_scan

WEEK_MS = 604_800_000


@pytest.fixture
def forget(mail, keys):
    return lambda *names, unused_ms=WEEK_MS: mail.run(queues.forget(keys, names or ["mail"], unused_ms=unused_ms))


@pytest.fixture
def drained(mail, clock, forget):
    """A queue that was used, and has been unused for a week."""
    mail.commit(mail.lease("a"), mail.lease("b"))
    forget(unused_ms=None)
    clock.advance(WEEK_MS)
    return mail


def leave_everything(mail):
    """Every key that a queue may have and that keeps no task."""
    base = mail.keys.base + b"mail:"
    noted = ("history_noted", "history_trimmed", "capacity_wanted", "recheck", "parked", "rotation_seq")
    mail.raw.hset(mail.keys.settings, mapping=dict.fromkeys(noted, 1))
    for name in (
        "bucket", "types", "arrival", "wake", "capacity", "holders", "inflight", "declared", "batch_log", "transfers",
        "balanced",
    ):  # fmt: skip
        mail.raw.delete(base + name.encode())
        mail.raw.set(base + name.encode(), "x")
    mail.raw.zadd(mail.keys.errors, {"g": 1, "h": 2})
    for group in ("g", "h"):
        mail.raw.hset(mail.keys.errors + b":" + group.encode(), "dead", 1)


def test_all_that_is_left_is_deleted(drained, keys, raw, forget):
    leave_everything(drained)
    for index in ("blocked", "unsure"):  # of limits of partitions that were taken away
        raw.zadd(drained.keys.base + b"mail:" + index.encode(), {"p": 1})

    assert forget() == ["forgotten"]
    assert not raw.keys(f"{keys.prefix}:{{mail}}:mail:*")


def test_all_that_is_left_is_deleted_with_a_queue_that_holds_nothing(drained, keys, raw):
    leave_everything(drained)
    raw.hset(drained.keys.settings, "max_inflight", 3)
    raw.zadd(drained.keys.base + b"mail:deaths", {"a": 1})

    assert drained.run(queues.delete(drained.keys, force=False, states=[])) == ["deleted"]
    assert not raw.keys(f"{keys.prefix}:{{mail}}:mail:*")


@pytest.mark.parametrize("band", [-1, 0, 1])
def test_a_queue_with_partitions_in_rotation_stays(drained, raw, forget, band):
    raw.zadd(drained.keys.base + f"mail:rotation:{band}".encode(), {"a": 1})
    assert forget() != ["forgotten"]


def test_marking_deletes_nothing(drained, forget):
    assert forget(unused_ms=None) == ["early"]
    assert drained.totals()["succeeded"] == 2


def test_a_mark_is_no_total(drained):
    assert drained.totals() == {"enqueued": 2, "succeeded": 2}


def test_a_week_must_have_passed(mail, clock, forget):
    mail.commit(mail.lease("a"))
    assert forget() == ["marked"]
    clock.advance(WEEK_MS - 1)
    assert forget() == ["early"]
    clock.advance(1)
    assert forget() == ["forgotten"]


def test_a_queue_that_was_used_since_is_marked_anew(drained, clock, forget):
    drained.commit(drained.lease("c"))

    assert forget() == ["marked"]
    clock.advance(WEEK_MS)
    assert forget() == ["forgotten"]


@pytest.mark.parametrize("state", ["waiting", "scheduled", "pending", "dead", "done", "batches", "finishing", "leases"])
def test_what_holds_anything_stays(drained, raw, forget, state):
    raw.zadd(getattr(drained.keys, state), {"x": 1})
    before = drained.snapshot()

    assert forget() == ["used"]
    assert forget(unused_ms=None) == ["used"]
    assert drained.snapshot() == before


def test_word_of_a_death_that_is_not_told_stays(drained, raw, forget):
    raw.rpush(drained.keys.deaths, "x")
    assert forget() == ["used"]


def test_a_queue_that_somebody_configured_stays(drained, clock, keys, forget):
    drained.run(queues.configure(drained.keys, {"max_inflight": 3}))

    def look_again():
        return drained.run(leader_scan(keys, ["mail"], unused_ms=WEEK_MS)[0]).unused

    assert forget() == ["used"]
    assert forget(unused_ms=None) == ["early"], "its settings do not matter for the mark"
    assert look_again() == [], "it is asked about again in a week"
    clock.advance(WEEK_MS)
    assert look_again() == ["mail"]


def test_settings_that_cannot_be_read_count_as_configured(drained, raw, forget):
    raw.delete(drained.keys.settings)
    raw.set(drained.keys.settings, "x")
    assert forget() == ["used"]


def test_many_queues_are_judged_each_for_itself(drained, line, keys, raw, forget):
    line("other").enqueue("x")
    raw.set(keys.queue("damaged").counters, "x")

    assert forget("other", "mail", "damaged", "never") == ["used", "forgotten", "used", "used"]
    assert not raw.exists(keys.queue("never").counters)


def test_a_queue_is_unused_since_the_whole_millisecond(mail, clock, forget, raw):
    clock.set(1_700_000_000_000.75)
    mail.commit(mail.lease("a"))
    assert forget() == ["marked"]
    assert raw.hget(mail.keys.counters, "unused") == b"1700000000000 2"


@pytest.mark.parametrize("index", ["rotation:-1", "rotation:0", "rotation:1", "blocked", "unsure"])
def test_what_partitions_left_goes_with_their_queue(drained, raw, index):
    base = drained.keys.base + b"mail:"
    raw.zadd(base + index.encode(), {f"p{n}": n for n in range(201)})
    left = [base + name for name in (b"partition:-1:p0", b"partition:0:p0", b"partition:1:p200")]
    for key in left:
        raw.zadd(key, {"stale": 1})
    for n in (0, 200):
        raw.hset(base + b"bucket:p%d" % n, "level", 1)

    replies = [drained.run(queues.delete(drained.keys, force=False, states=[])) for _ in range(3)]
    assert replies == [["more", 0], ["more", 0], ["deleted"]]
    assert not raw.keys(base + b"*")
