"""enqueue_unique: a task is added unless one like it is there; else that one stays, is replaced or rescheduled."""

import pytest

from jobrunner.broker.calls import leases, new_tasks, queues, tasks
from jobrunner.errors import QueueFull
from jobrunner.queue_settings import QueueSettings
from jobrunner.task import Lock, Task

HOUR_MS = 3_600_000


@pytest.fixture
def add(mail):
    """add("id", lasts=…, on_clash=…, …): enqueues a task under the one lock of these tests."""

    def enqueue(task_id, lasts="finished", on_clash="existing", ttl_ms=HOUR_MS, digest="d", **options):
        lock = Lock(digest=digest, lasts=lasts, ttl_ms=ttl_ms, on_clash=on_clash)
        task = Task(id=task_id, queue=mail.name, lock=lock, **{"payload": task_id.encode(), "type": "send"} | options)
        return mail.run(new_tasks.enqueue_unique(mail.keys, task))[:2]

    return enqueue


def test_a_second_one_is_not_added(mail, add, clock):
    assert add("a", priority=2) == ("new", "a")
    before = mail.snapshot()
    assert add("b") == ("clash", "a")
    assert mail.snapshot() == before
    assert add("c", digest="other") == ("new", "c")
    assert mail.ids("waiting") == ["a", "c"]
    assert (mail.hash("a")["queue"], mail.hash("a")["type"], mail.hash("a")["payload"]) == (b"mail", b"send", b"a")
    assert mail.totals() == {"enqueued": 2}
    assert mail.reserve()[0].payload == b"a"


def test_the_same_call_again_is_no_clash(mail, add):
    assert add("a", sending="1") == add("a", sending="1") == ("new", "a")
    assert add("a", sending="2") == ("exists", "a")
    assert mail.totals() == {"enqueued": 1}


@pytest.mark.parametrize("on_clash", ["existing", "raise"])
@pytest.mark.parametrize("lasts", ["started", "finished", "expired"])
def test_a_call_without_a_note_that_is_sent_again_is_no_clash_with_a_later_one(mail, add, clock, on_clash, lasts):
    assert add("a", lasts, on_clash, ttl_ms=1000, kept_s=60) == ("new", "a")
    mail.run(leases.commit(mail.keys, [(one.id, one.token, 60_000, "succeeded", b"") for one in mail.reserve()]))
    clock.advance(1000)
    assert add("b", lasts, on_clash, kept_s=60) == ("new", "b")
    before = mail.snapshot()

    assert add("a", lasts, on_clash, ttl_ms=1000, kept_s=60) == ("exists", "a")
    assert mail.snapshot() == before


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(("on_clash", "word"), [("replace", "replaced"), ("reschedule", "rescheduled")])
def test_a_change_that_is_sent_again_after_the_task_ran_changes_nothing(mail, add, clock, on_clash, word, is_kept):
    add("a", delay_ms=3_600_000)
    assert add("b", on_clash=on_clash, sending="1", kept_s=60 * is_kept) == (word, "a")
    (held,) = mail.reserve()
    mail.commit(held)
    before = mail.snapshot()

    assert add("b", on_clash=on_clash, sending="1", kept_s=60 * is_kept) == (word, "a")
    assert mail.snapshot() == before
    assert add("b", on_clash=on_clash, sending="2", kept_s=60 * is_kept) == ("new", "b")


def test_a_call_that_is_sent_again_says_again_that_the_queue_is_new(mail):
    """The client adds it to the registry then; the queue may have been deleted."""
    lock = Lock(digest="d", lasts="finished", ttl_ms=HOUR_MS, on_clash="existing")
    call = new_tasks.enqueue_unique(mail.keys, Task(id="a", queue=mail.name, payload=b"", lock=lock))
    assert [mail.run(call).is_first, mail.run(call).is_first] == [True, True]


def test_a_note_of_an_earlier_version_is_understood(mail, add):
    mail.raw.set(mail.keys.base + b"sent:a1", "")
    assert add("a", sending="1") == ("new", "a")
    assert mail.ids("waiting") == []


def test_a_call_whose_task_stays_known_leaves_no_note(mail, add):
    assert add("a", kept_s=60) == ("new", "a")
    assert not mail.raw.keys(mail.keys.base + b"sent:*")


@pytest.mark.parametrize("way", ["commit", "dead", "cancel", "delete", "purge", "expiry of its lease", "pop"])
def test_the_lock_is_free_when_the_task_has_ended_in_any_way(mail, add, clock, way):
    mail.configure(keepalive_ms=1000)
    add("a", max_attempts=1)
    if way == "cancel":
        mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000))
    elif way == "purge":
        mail.run(queues.purge(mail.keys, "waiting"))
    elif way == "pop":
        mail.raw.zrem(mail.keys.waiting, "a")
        mail.raw.delete(mail.keys.task("a"))
    else:
        (held,) = mail.reserve()
        assert add("b") == ("clash", "a")
        if way == "commit":
            mail.commit(held, keep_ms=60_000)
        elif way == "dead":
            mail.fail(held)
        elif way == "delete":
            mail.run(tasks.delete(mail.keys, "a"))
        else:
            clock.advance(1000)
            mail.reserve()
    assert add("b") == ("new", "b")


def test_until_started_frees_the_lock_at_the_first_hand_out_for_good(mail, add, clock):
    add("a", lasts="started")
    (held,) = mail.reserve()
    assert add("b", lasts="started") == ("new", "b")
    mail.fail(held, delay_ms=1000)
    assert add("c", lasts="started") == ("clash", "b")


def test_a_task_that_was_tried_has_started_also_while_it_waits_for_its_next_attempt(mail, add):
    add("a", lasts="started")
    mail.fail(*mail.reserve(), delay_ms=1000)
    assert add("b", lasts="started") == ("new", "b")


@pytest.mark.parametrize("delay_ms", ["", "!", 1000])
def test_a_task_that_was_handed_back_or_snoozes_has_not_begun(mail, add, delay_ms):
    add("a", lasts="started")
    mail.release(*mail.reserve(), delay_ms=delay_ms)
    assert add("b", lasts="started") == ("clash", "a")
    assert add("b", on_clash="replace") == ("replaced", "a")


@pytest.mark.parametrize(("lost", "answer"), [("queue", ("new", "b")), ("retry_count", ("clash", "a"))])
def test_a_holder_without_a_queue_is_none_and_one_without_attempts_was_not_tried(mail, add, lost, answer):
    add("a")
    mail.raw.hdel(mail.keys.task("a"), lost)
    assert add("b") == answer


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_a_task_that_was_tried_is_not_replaced(mail, add, on_clash):
    add("a")
    mail.fail(*mail.reserve(), delay_ms=1000)
    assert add("b", on_clash=on_clash) == ("clash", "a")


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
@pytest.mark.parametrize(("lasts", "answer"), [
    ("finished", ("clash", "a")), ("expired", ("clash", "a")), ("started", ("new", "b")),
])  # fmt: skip
def test_an_item_that_moved_to_the_next_station_has_begun(line, clock, lasts, on_clash, answer):
    """It got the payload for the first station, in the queue of the second one."""
    raw, clean = line("orders/raw"), line("orders/clean")

    def add(task_id):
        lock = Lock(digest="d", lasts=lasts, ttl_ms=HOUR_MS, on_clash=on_clash)
        task = Task(id=task_id, queue=raw.name, payload=task_id.encode(), type="send", lock=lock)
        return raw.run(new_tasks.enqueue_unique(raw.keys, task))[:2]

    add("a")
    assert add("b")[1] == "a"  # in its first queue it has not begun
    (held,) = raw.reserve()
    report = (held.id, held.token, "", 0, ("payload", b"parsed"))
    assert raw.run(leases.move(raw.keys, clean.keys, [report], max_hops=0)) == ["ok"]
    before = clean.hash("a")

    assert add("b") == answer
    assert clean.hash("a") == before


def test_a_task_that_is_tried_again_still_holds_its_lock(mail, add, clock):
    add("a")
    mail.fail(*mail.reserve(), delay_ms=5000)
    assert add("b") == ("clash", "a")


@pytest.mark.parametrize("of", ["task", "queue"])
def test_a_task_that_expired_holds_no_lock_though_no_worker_has_looked_at_it(mail, add, clock, of):
    """The task would never run, and neither would the one that was refused for it."""
    if of == "queue":
        mail.run(queues.configure(mail.keys, {"expires_in_ms": 1000}))
    add("a", expires_in_ms=1000 if of == "task" else None)
    clock.advance(999)
    assert add("b") == ("clash", "a")
    clock.advance(1)
    assert add("c") == ("new", "c")
    assert add("d") == ("clash", "c")
    assert [attempt.id for attempt in mail.reserve(9)] == ["c"]
    assert mail.ids("dead") == ["a"]


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_a_task_that_expired_is_not_taken_up_again(mail, add, clock, on_clash):
    """It died, though no worker has met it: what is sent later has parameters and an end of its own."""
    add("a", expires_in_ms=1000)
    clock.advance(999)
    assert add("b", on_clash=on_clash, expires_in_ms=1000)[1] == "a"
    clock.advance(1000)
    assert add("c", on_clash=on_clash) == ("new", "c")
    assert [attempt.payload for attempt in mail.reserve(9)] == [b"c"]
    assert mail.ids("dead") == ["a"]


@pytest.mark.parametrize("more", [{}, {"headers": b"{}"}, {"headers": b"{}", "max_attempts": 3, "keepalive_ms": 9000}])
@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_the_time_to_start_is_found_among_other_options(mail, add, clock, on_clash, more):
    add("a")
    add("b", on_clash=on_clash, expires_in_ms=1000, **more)
    clock.advance(1000)
    assert mail.reserve(9) == []
    assert mail.ids("dead") == ["a"]


def test_a_task_that_expired_is_still_that_of_a_throttle(mail, add, clock):
    add("a", lasts="expired", ttl_ms=5000, expires_in_ms=1000)
    clock.advance(2000)
    assert add("b", lasts="expired", ttl_ms=5000) == ("clash", "a")


@pytest.mark.parametrize("on_clash", ["existing", "raise", "replace", "reschedule"])
@pytest.mark.parametrize("way", ["release", "expiry of its lease"])
def test_a_task_that_was_asked_to_stop_and_handed_back_holds_no_lock(mail, add, clock, way, on_clash):
    """The next reserve cancels it, and what was merged into it with it."""
    mail.configure(keepalive_ms=1000)
    add("a")
    (held,) = mail.reserve()
    assert mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000)) == "reserved"
    assert add("b", on_clash=on_clash) == ("clash", "a")
    if way == "release":
        mail.release(held)
    else:
        clock.advance(1000)
        mail.run(queues.upkeep(mail.keys))
    assert mail.ids("waiting") == ["a"]
    assert add("c", on_clash=on_clash) == ("new", "c")
    assert [attempt.id for attempt in mail.reserve(9)] == ["c"]


@pytest.mark.parametrize("on_clash", ["existing", "raise", "replace", "reschedule"])
@pytest.mark.parametrize("of", ["max_attempts", "max_stalled", "max_attempts of the queue", "default", "cancel"])
def test_a_task_whose_last_lease_ended_holds_no_lock_though_no_reserve_has_met_it(mail, add, clock, of, on_clash):
    """The next reserve makes it dead or cancelled, and the one that was refused for it would never run."""
    mail.configure(keepalive_ms=1000)
    if of == "max_attempts of the queue":
        mail.run(queues.configure(mail.keys, {"max_attempts": 1}))
    add("a", **{of: 1} if of in ("max_attempts", "max_stalled") else {})
    if of == "default":
        mail.raw.hset(mail.keys.task("a"), "retry_count", QueueSettings().max_attempts - 1)
    mail.reserve()
    if of == "cancel":
        mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000))
    clock.advance(999)
    assert add("b", on_clash=on_clash) == ("clash", "a")
    clock.advance(1)
    assert add("c", on_clash=on_clash) == ("new", "c")
    assert add("d") == ("clash", "c")
    assert [attempt.id for attempt in mail.reserve(9)] == ["c"]
    assert mail.ids("dead") == ([] if of == "cancel" else ["a"])


@pytest.mark.parametrize(("field", "limit"), [("retry_count", "max_attempts"), ("expiries", "max_stalled")])
def test_the_attempts_before_count(mail, add, clock, field, limit):
    mail.configure(keepalive_ms=1000)
    add("a", **{limit: 3})
    mail.raw.hset(mail.keys.task("a"), field, 2)
    mail.reserve()
    clock.advance(1000)
    assert add("b") == ("new", "b")
    assert [attempt.id for attempt in mail.reserve(9)] == ["b"]


@pytest.mark.parametrize(("field", "limit"), [("retry_count", "max_attempts"), ("expiries", "max_stalled")])
def test_a_task_whose_lease_ended_keeps_its_lock_while_an_attempt_is_left(mail, add, clock, field, limit):
    mail.configure(keepalive_ms=1000)
    add("a", **{limit: 3})
    mail.raw.hset(mail.keys.task("a"), field, 1)
    mail.reserve()
    clock.advance(1000)
    assert add("b") == ("clash", "a")
    assert [attempt.id for attempt in mail.reserve(9)] == ["a"]


def test_a_task_without_counts_had_one_attempt_when_its_lease_ends(mail, add, clock):
    mail.configure(keepalive_ms=1000)
    add("a", max_attempts=2)
    mail.reserve()
    mail.raw.hdel(mail.keys.task("a"), "retry_count", "expiries")
    clock.advance(1000)
    assert add("b") == ("clash", "a")
    assert [attempt.id for attempt in mail.reserve(9)] == ["a"]


def test_a_task_without_a_bound_of_attempts_keeps_its_lock_when_a_lease_ends(mail, add, clock):
    mail.configure(keepalive_ms=1000)
    add("a", max_attempts=0)
    mail.reserve()
    clock.advance(1000)
    assert add("b") == ("clash", "a")
    assert [attempt.id for attempt in mail.reserve(9)] == ["a"]


def test_a_task_whose_last_lease_ended_is_still_that_of_a_throttle(mail, add, clock):
    mail.configure(keepalive_ms=1000)
    add("a", lasts="expired", max_attempts=1)
    mail.reserve()
    clock.advance(1000)
    assert add("b", lasts="expired") == ("clash", "a")


def test_a_task_that_was_asked_to_stop_and_handed_back_is_still_that_of_a_throttle(mail, add):
    add("a", lasts="expired")
    (held,) = mail.reserve()
    mail.run(tasks.cancel(mail.keys, "a", keep_ms=60_000))
    mail.release(held)
    assert add("b", lasts="expired") == ("clash", "a")


def test_a_task_that_was_tried_or_never_expires_keeps_its_lock(mail, add, clock):
    add("a", expires_in_ms=1000)
    mail.fail(*mail.reserve(), delay_ms=5000)
    clock.advance(2000)
    assert add("b") == ("clash", "a")
    mail.run(queues.configure(mail.keys, {"expires_in_ms": 1000}))
    add("c", digest="other")
    mail.raw.hset(mail.keys.task("c"), "expires_in_ms", "never")
    clock.advance(2000)
    assert add("d", digest="other") == ("clash", "c")


@pytest.mark.parametrize("damaged", ["expires_in_ms", "enqueue_time"])
def test_a_damaged_time_to_start_never_ends(mail, add, clock, damaged):
    add("a", expires_in_ms=1000)
    mail.raw.hset(mail.keys.task("a"), damaged, "nan")
    clock.advance(2000)
    assert add("b") == ("clash", "a")
    assert add("b", on_clash="reschedule", delay_ms=10) == ("rescheduled", "a")


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
@pytest.mark.parametrize("of", ["task", "queue"])
def test_the_time_to_start_begins_anew_with_each_call_that_changes_the_task(mail, add, clock, on_clash, of):
    """A debounce that is called again and again would be dead before it is due otherwise."""
    own = 1000 if of == "task" else None
    if of == "queue":
        mail.run(queues.configure(mail.keys, {"expires_in_ms": 1000}))
    add("a", delay_ms=600, expires_in_ms=own)
    for _ in range(3):
        clock.advance(500)
        assert add("b", on_clash=on_clash, delay_ms=600, expires_in_ms=own)[1] == "a"
    clock.advance(999)
    (attempt,) = mail.reserve()
    assert attempt.id == "a"
    mail.release(attempt)
    clock.advance(1)
    assert mail.reserve() == []
    assert mail.ids("dead") == ["a"]


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_the_time_to_start_is_that_of_the_newest_call(mail, add, clock, on_clash):
    add("a", expires_in_ms=1000)
    clock.advance(900)
    assert add("b", on_clash=on_clash, expires_in_ms=5000)[1] == "a"
    clock.advance(4999)
    assert add("b", on_clash=on_clash)[1] == "a"
    clock.advance(HOUR_MS)
    assert [attempt.id for attempt in mail.reserve(9)] == ["a"]


def test_until_expired_is_a_throttle(mail, add, clock):
    add("a", lasts="expired", ttl_ms=5000)
    mail.commit(*mail.reserve())
    clock.advance(4999)
    assert add("b", lasts="expired", ttl_ms=5000) == ("clash", "a")
    clock.advance(1)
    assert add("b", lasts="expired", ttl_ms=5000) == ("new", "b")


def test_a_lock_always_ends(mail, add, clock):
    add("a", ttl_ms=5000, delay_ms=2000)
    key = mail.keys.unique("d")
    assert 6000 < mail.raw.pttl(key) <= 7000
    clock.advance(6999)
    assert add("b") == ("clash", "a")
    clock.advance(1)
    assert add("b") == ("new", "b")


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_the_task_that_is_there_keeps_its_new_place(mail, add, on_clash):
    add("a", delay_ms=60_000)
    add("b", on_clash=on_clash)
    mail.enqueue("x")
    (held,) = mail.reserve()
    assert held.id == "a"
    mail.release(held)
    assert [attempt.id for attempt in mail.reserve(2)] == ["a", "x"]


def test_replace_gives_the_task_that_is_there_what_the_new_one_brought(mail, add, clock):
    add("a", on_clash="replace", payload=b"old")
    mail.enqueue("between")
    clock.advance(10)
    assert add("b", on_clash="replace", payload=b"new", priority=2) == ("replaced", "a")
    assert mail.ids("waiting") == ["a", "between"]
    assert mail.hash("a")["payload"] == b"new"
    assert add("c", on_clash="replace", payload=b"newest", delay_ms=500) == ("replaced", "a")
    assert (mail.ids("waiting"), mail.scores("scheduled")) == (["between"], {"a": clock.ms + 500})
    assert mail.hash("b") == mail.hash("c") == {}


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
@pytest.mark.parametrize(("before", "after"), [(None, 2), (2, None), (2, 0)])
def test_the_task_that_is_there_has_the_new_priority_also_when_it_comes_due(
    mail, add, clock, on_clash, before, after
):
    add("a", priority=before, delay_ms=9000)
    assert add("b", on_clash=on_clash, priority=after, delay_ms=1000)[1] == "a"
    for priority in (0, 1, 2):
        mail.enqueue(f"x{priority}", priority=priority, delay_ms=1000)
    due = clock.ms + 1000
    clock.advance(1000)
    held = mail.reserve(4)
    assert [one.id for one in held].index("a") == {2: 0, 1: 1, 0: 2}[1 if after is None else after]
    (first,) = (one for one in held if one.id == "a")
    assert first.due_ms == pytest.approx(due, abs=1)
    assert mail.hash("a").get("priority") == (None if after is None else str(after).encode())


def test_a_delayed_task_knows_when_it_was_due(mail, add, clock):
    due = clock.ms + 1000
    add("a", delay_ms=1000)
    clock.advance(5000)

    (held,) = mail.reserve()
    assert held.due_ms == pytest.approx(due, abs=1)


def test_a_task_that_was_not_delayed_knows_when_it_is_due_once_it_is_put_off(mail, add, clock):
    add("a")
    assert add("b", on_clash="reschedule", delay_ms=1000) == ("rescheduled", "a")
    due = clock.ms + 1000
    clock.advance(5000)
    assert mail.reserve()[0].due_ms == pytest.approx(due, abs=1)


def test_a_task_that_is_due_at_once_has_no_field_for_rarer_words(mail, add):
    add("a")
    add("b", digest="other", delay_ms=1000)
    assert ("more" in mail.hash("a"), "more" in mail.hash("b")) == (False, True)


def test_a_place_is_in_the_second_half_of_its_millisecond_whatever_the_fraction(mail, add, clock):
    clock.set(1_700_000_000_000.75)
    add("a")
    assert mail.scores("waiting") == {"a": 1_700_000_000_000.5}


def test_reschedule_is_a_debounce(mail, add, clock):
    add("a", on_clash="reschedule", payload=b"first", delay_ms=1000)
    for _ in range(5):
        clock.advance(900)
        assert add("b", on_clash="reschedule", payload=b"later", delay_ms=1000) == ("rescheduled", "a")
        assert mail.reserve() == []
    clock.advance(1000)
    assert [attempt.payload for attempt in mail.reserve(9)] == [b"first"]


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_a_task_that_is_put_elsewhere_wakes_a_worker(mail, add, on_clash):
    add("a", delay_ms=HOUR_MS)
    mail.wakes()
    add("b", on_clash=on_clash)
    assert mail.ids("waiting") == ["a"]
    assert mail.wakes()


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_what_has_begun_is_left_alone(mail, add, on_clash):
    add("a", on_clash=on_clash)
    mail.reserve()
    before = mail.snapshot()
    assert add("b", on_clash=on_clash, delay_ms=9) == ("clash", "a")
    assert mail.snapshot() == before


def test_a_full_queue_takes_no_unique_task_but_changes_one(mail, add):
    mail.run(queues.configure(mail.keys, {"max_size": 1}))
    add("a")
    with pytest.raises(QueueFull, match=r"'mail' has no room for 1 more: it may hold 1 "):
        add("b", digest="other")
    assert add("c", on_clash="replace") == ("replaced", "a")


def test_a_damaged_lock_or_holder_locks_nothing(mail, add):
    mail.raw.set(mail.keys.unique("d"), "nonsense")
    assert add("a") == ("new", "a")
    mail.raw.delete(mail.keys.task("a"))
    mail.raw.set(mail.keys.task("a"), "damage")
    assert add("b") == ("new", "b")


@pytest.mark.parametrize("on_clash", ["existing", "replace", "reschedule"])
@pytest.mark.parametrize("digest", ["other", None])
def test_a_task_with_the_id_of_an_earlier_holder_has_not_its_lock(mail, add, digest, on_clash):
    add("a")
    mail.run(leases.pop(mail.keys, 1))
    if digest:
        add("a", digest=digest)
    else:
        mail.enqueue("a")
    before = mail.hash("a")

    assert add("b", on_clash=on_clash) == ("new", "b")
    assert mail.hash("a") == before
    assert mail.ids("waiting") == ["a", "b"]
    assert add("c") == ("clash", "b")
    if digest:
        assert add("c", digest=digest) == ("clash", "a")


def test_what_is_replaced_keeps_no_options_of_the_old_one(mail, add):
    options = {"headers": b"{}", "encoding": "json", "max_attempts": 3, "max_stalled": 2, "keepalive_ms": 9, "key": "k"}
    options |= {"expires_in_ms": 99}
    add("a", **options)
    assert mail.hash("a").keys() >= options.keys()
    assert add("b", on_clash="replace") == ("replaced", "a")
    assert not mail.hash("a").keys() & options.keys()
    assert add("c", on_clash="replace", **options) == ("replaced", "a")
    assert mail.hash("a").keys() >= options.keys()
    add("d", on_clash="reschedule")
    assert options.keys() - mail.hash("a").keys() == {"expires_in_ms"}


def test_what_is_replaced_leaves_the_partition_of_the_old_one(mail, add):
    mail.configure(key_inflight=1)
    mail.lease("busy", key="k")
    add("a", key="k")
    assert mail.reserve(9) == []
    assert add("b", on_clash="replace") == ("replaced", "a")
    assert [attempt.id for attempt in mail.reserve(9)] == ["a"], "the partition has as many leases as it may have"


@pytest.mark.parametrize(
    "between", [{"on_clash": "replace", "key": "k1"}, {"on_clash": "reschedule", "delay_ms": 9, "priority": 0}]
)
@pytest.mark.parametrize("limits", [{"key_inflight": 1}, {"fair": 1}])
def test_what_is_replaced_in_the_same_millisecond_is_handed_out_once(mail, add, clock, limits, between):
    """It was handed out by both partitions, under two leases, and the first counted one of them for ever."""
    mail.configure(**limits)
    clock.set()
    add("t0", key="k0")
    add("t1", **between)
    add("t2", on_clash="replace", key="k2")
    (held,) = mail.reserve(9)
    assert held.id == "t0"
    mail.commit(held)
    add("b", key="k0")
    assert [attempt.id for attempt in mail.reserve(9)] == ["b"], "a lease of the task before is not counted any more"


def test_its_note_has_the_name_of_the_call_and_lasts_for_ten_seconds(mail, add):
    add("a", sending="1")
    assert 9_000 < mail.raw.pttl(mail.keys.base + b"sent:a1") <= 10_000


def test_its_lock_names_its_end_and_its_task(mail, add, clock):
    add("a", ttl_ms=5000, delay_ms=2000)
    assert mail.raw.get(mail.keys.unique("d")).split() == [b"%d" % (clock.ms + 7000), b"a"]


@pytest.mark.parametrize("on_clash", ["existing", "replace", "reschedule"])
def test_a_task_that_goes_to_the_dead_letter_queue_holds_its_lock_no_more(line, on_clash):
    main, dlq = line("p/main"), line("p/dlq")
    main.configure(dead_letter_queue="p/dlq")

    def add(task_id):
        lock = Lock(digest="d", lasts="finished", ttl_ms=HOUR_MS, on_clash=on_clash)
        task = Task(id=task_id, queue=main.name, lock=lock, payload=task_id.encode())
        return main.run(new_tasks.enqueue_unique(main.keys, task))[:2]

    add("a")
    main.fail(*main.reserve(), fate="dead")
    assert dlq.ids("waiting") == ["a"]

    assert add("b") == ("new", "b")
    assert (main.ids("waiting"), dlq.ids("waiting")) == (["b"], ["a"])
    main.fail(*main.reserve(), fate="dead")
    assert dlq.ids("waiting") == ["a", "b"], "and its own lock is free as well"
    assert add("c") == ("new", "c")


def test_a_lock_until_it_expires_stays_when_its_task_goes_to_the_dead_letter_queue(line, clock):
    """A throttle holds whatever the outcome of its task."""
    main, dlq = line("p/main"), line("p/dlq")
    main.configure(dead_letter_queue="p/dlq")

    def add(task_id):
        lock = Lock(digest="d", lasts="expired", ttl_ms=HOUR_MS, on_clash="existing")
        task = Task(id=task_id, queue=main.name, lock=lock, payload=task_id.encode())
        return main.run(new_tasks.enqueue_unique(main.keys, task))[:2]

    add("a")
    main.fail(*main.reserve(), fate="dead")
    assert dlq.ids("waiting") == ["a"]
    assert add("b") == ("clash", "a")
    clock.advance(HOUR_MS)
    assert add("b") == ("new", "b")


def test_the_lock_of_another_task_stays_when_an_earlier_holder_dies(line):
    main = line("p/main")
    main.configure(dead_letter_queue="p/dlq")
    lock = Lock(digest="d", lasts="started", ttl_ms=HOUR_MS, on_clash="existing")
    main.run(new_tasks.enqueue_unique(main.keys, Task(id="a", queue=main.name, lock=lock, payload=b"")))
    (held,) = main.reserve()
    main.run(new_tasks.enqueue_unique(main.keys, Task(id="b", queue=main.name, lock=lock, payload=b"")))
    main.fail(held, fate="dead")

    again = main.run(new_tasks.enqueue_unique(main.keys, Task(id="c", queue=main.name, lock=lock, payload=b"")))
    assert again[:2] == ("clash", "b")


def test_a_payload_that_is_encrypted_for_another_task_is_not_added_as_this_one(mail):
    """The task whose place it was to take ended meanwhile."""
    lock = Lock(digest="d", lasts="finished", ttl_ms=HOUR_MS, on_clash="replace")
    call = new_tasks.enqueue_unique(
        mail.keys, Task(id="a", queue=mail.name, payload=b"", lock=lock), bound_to=("gone", mail.name)
    )  # fmt: skip
    assert mail.run(call)[:2] == ("encrypt_for", "a")
    assert mail.ids("waiting") == []


@pytest.mark.parametrize(("holder", "verdict"), [("held", "replaced"), ("other", "encrypt_for")])
def test_a_payload_that_was_encrypted_for_the_task_takes_its_place(mail, holder, verdict):
    lock = Lock(digest="d", lasts="finished", ttl_ms=HOUR_MS, on_clash="replace")
    mail.run(new_tasks.enqueue_unique(mail.keys, Task(id="held", queue=mail.name, payload=b"old", lock=lock)))
    call = new_tasks.enqueue_unique(
        mail.keys, Task(id="new", queue=mail.name, payload=b"x", lock=lock), bound_to=(holder, mail.name)
    )  # fmt: skip
    assert mail.run(call)[:2] == (verdict, "held")
    assert mail.hash("held")["payload"] == (b"x" if verdict == "replaced" else b"old")


def test_a_replaced_task_goes_behind_what_arrived_in_the_same_instant(mail, clock):
    lock = Lock(digest="d", lasts="finished", ttl_ms=HOUR_MS, on_clash="replace")
    for task in (Task(id="held", queue=mail.name, payload=b"old", lock=lock), Task(id="new", queue=mail.name,
                 payload=b"new", lock=lock)):  # fmt: skip
        mail.run(new_tasks.enqueue_unique(mail.keys, task))
        assert float(mail.hash("held")["enqueue_time"]) == clock.ms
        mail.enqueue(f"behind {task.id}")
    assert mail.ids("waiting") == ["behind held", "held", "behind new"]


def test_a_task_that_lost_its_place_is_rescheduled(mail, add):
    mail.configure(fair=1)
    add("a", key="k")
    mail.raw.hdel(mail.keys.task("a"), "place")
    assert add("b", on_clash="reschedule", key="k", delay_ms=1000) == ("rescheduled", "a")
    assert (mail.ids("waiting"), mail.ids("scheduled")) == ([], ["a"])
