"""enqueue: nothing → waiting or scheduled, all tasks of the call or none."""

import pytest

from jobrunner.broker.calls import batches, leases, new_tasks, queues, tasks
from jobrunner.errors import DuplicateTask, QueueFull, ServerFull
from jobrunner.task import Task
from tests.support.server import topology_name


def test_a_new_task_is_in_waiting_with_its_hash_and_is_counted(mail, clock):
    assert mail.enqueue("a", type="send", payload=b"\xff\x00[]") == [True]

    now = clock.ms
    assert mail.scores("waiting") == {"a": now + 0.5}
    assert mail.hash("a") == {
        "id": b"a",
        "type": b"send",
        "queue": b"mail",
        "payload": b"\xff\x00[]",
        "enqueue_time": b"%d" % now,
        "retry_count": b"0",
        "place": b"%.1f" % (now + 0.5),
    }
    assert mail.totals() == {"enqueued": 1}
    assert mail.wakes()


def test_what_a_task_says_itself_is_in_its_hash(mail):
    mail.enqueue(
        "a", priority=2, keepalive_ms=7, max_attempts=3, expires_in_ms=9, headers=b'{"x":"y"}', encoding="json"
    )

    found = mail.hash("a")
    said = ("priority", "keepalive_ms", "max_attempts", "expires_in_ms", "headers", "encoding", "more")
    assert [found[name] for name in said] == [b"2", b"7", b"3", b"9", b'{"x":"y"}', b"json", b"1"]


def test_tasks_of_one_call_need_not_be_alike(mail):
    sent = [
        Task(id="a", queue="mail", payload=b"1", type="send"),
        Task(id="b", queue="mail", payload=b"2", type="drop", max_attempts=1),
        Task(id="c", queue="mail", payload=b"3", delay_ms=10, headers=b"{}"),
        Task(id="d", queue="mail", payload=b"4", type="send"),
    ]

    assert mail.run(new_tasks.enqueue(mail.keys, sent)) == [True] * 4

    assert mail.ids("waiting") == ["a", "b", "d"]
    assert mail.ids("scheduled") == ["c"]
    assert [mail.hash(one)["payload"] for one in "abcd"] == [b"1", b"2", b"3", b"4"]
    assert [mail.hash(one)["type"] for one in "abcd"] == [b"send", b"drop", b"", b"send"]
    assert "max_attempts" not in mail.hash("d")
    assert "headers" not in mail.hash("d")


def test_a_delay_counts_from_the_clock_and_the_score_is_the_due_time(mail, clock):
    mail.enqueue("a", delay_ms=1500)

    assert mail.scores("scheduled") == {"a": clock.ms + 1500}
    assert mail.ids("waiting") == []
    assert mail.wakes(), "the coordinator has a new due time to look at"


def test_an_instant_is_taken_as_it_is_and_a_fraction_is_never_early(mail, clock):
    mail.enqueue("a", at_ms=clock.ms + 1000.25)

    assert mail.scores("scheduled") == {"a": clock.ms + 1001}


@pytest.mark.parametrize("option", [{"at_ms": 0.0}, {"at_ms": -5.0}, {"at_ms": 999_999_999.0}, {"delay_ms": 0.0}])
def test_a_due_time_in_the_past_means_now_and_jumps_no_queue(mail, option):
    mail.enqueue("first")
    mail.enqueue("late", **option)

    assert mail.ids("waiting") == ["first", "late"]
    assert mail.ids("scheduled") == []


def test_a_due_time_of_exactly_now_is_now(mail, clock):
    mail.enqueue("a", at_ms=clock.ms)

    assert mail.ids("waiting") == ["a"]


def test_an_id_that_exists_is_left_as_it_was(mail):
    mail.enqueue("a", payload=b"first")
    mail.wakes()
    before = mail.snapshot()

    assert mail.enqueue("a", payload=b"second") == [False]

    assert mail.snapshot() == before


def test_an_id_is_taken_in_whatever_state_the_task_is(mail):
    mail.enqueue("later", delay_ms=9)
    mail.lease("held")
    mail.commit(mail.lease("kept"), keep_ms=60_000)
    mail.fail(mail.lease("dead"), fate="dead")

    assert mail.enqueue("later", "held", "kept", "dead", "new") == [False, False, False, False, True]


def test_the_same_id_twice_in_one_call_is_one_task(mail):
    sent = [Task(id=one, queue="mail", payload=one.encode() + b"%d" % n) for n, one in enumerate("abab")]

    assert mail.run(new_tasks.enqueue(mail.keys, sent)) == [True, True, False, False]

    assert mail.ids("waiting") == ["a", "b"]
    assert mail.hash("a")["payload"] == b"a0"
    assert mail.totals() == {"enqueued": 2}


def test_one_call_keeps_its_order_whatever_the_ids(mail):
    ids = [f"{n:04d}" for n in range(2999, -1, -1)]

    assert mail.enqueue(*ids) == [True] * 3000

    assert mail.ids("waiting") == ids
    assert len(set(mail.scores("waiting").values())) == 3000


def test_places_within_one_instant_are_the_finest_step_apart(mail):
    mail.enqueue("a", "b")
    mail.enqueue("c")
    a, b, c = mail.scores("waiting").values()
    assert (b - a, c - b) == (1 / 1024, 1 / 1024)


def test_calls_within_one_instant_keep_their_order_whatever_the_ids(mail):
    for one in "zyxabc":
        mail.enqueue(one)

    assert mail.ids("waiting") == list("zyxabc")


def test_tasks_due_at_one_instant_keep_the_order_of_enqueueing(mail, clock):
    for one in "zmax":
        mail.enqueue(one, at_ms=clock.ms + 50)
    mail.enqueue("q", "b", at_ms=clock.ms + 50)

    assert mail.ids("scheduled") == ["z", "m", "a", "x", "q", "b"]
    assert all(clock.ms + 50 <= score < clock.ms + 50.5 for score in mail.scores("scheduled").values())


def test_more_tasks_for_one_instant_than_a_double_can_tell_apart_are_all_kept(mail, clock):
    mail.enqueue(*(f"{n:04d}" for n in range(1500)), at_ms=clock.ms + 50)

    assert len(mail.ids("scheduled")) == 1500
    assert max(mail.scores("scheduled").values()) < clock.ms + 51


def test_a_clock_that_steps_back_does_not_change_the_order(mail, clock):
    mail.enqueue("a")
    clock.advance(-5000)
    mail.enqueue("b")
    clock.advance(5000)
    mail.enqueue("c")

    assert mail.ids("waiting") == ["a", "b", "c"]


def test_a_higher_priority_goes_first_and_arrival_decides_within_one(mail):
    mail.enqueue("low", priority=0)
    mail.enqueue("none")
    mail.enqueue("mid", priority=1)
    mail.enqueue("high", priority=2)
    mail.enqueue("high2", priority=2)

    assert mail.ids("waiting") == ["high", "high2", "none", "mid", "low"]


def test_places_are_exact_for_every_priority(mail, clock):
    clock.set(1_700_000_000_000.123)
    mail.enqueue(*(f"{n}" for n in range(200, 100, -1)), priority=0)
    mail.enqueue(*(f"{n}" for n in range(400, 300, -1)), priority=2)

    assert [int(one) for one in mail.ids("waiting")] == [*range(400, 300, -1), *range(200, 100, -1)]
    assert float(mail.hash("200")["place"]) == mail.scores("waiting")["200"]


def test_a_priority_moves_a_place_by_two_to_the_power_of_42(mail, clock):
    for priority in (0, 1, 2):
        mail.enqueue(f"{priority}", priority=priority, delay_ms=1000)
    places = [float(mail.hash(f"{priority}")["place"]) for priority in (0, 1, 2)]
    assert [round(place) for place in places] == [clock.ms + 1000 + step * 2**42 for step in (1, 0, -1)]


def test_no_tasks_are_no_change(mail):
    assert mail.run(new_tasks.enqueue(mail.keys, [])) == []
    assert mail.snapshot() == {}


def test_a_key_of_another_type_under_the_task_is_an_id_that_exists(mail):
    mail.raw.set(mail.keys.task("a"), "damage")

    assert mail.enqueue("a", "b") == [False, True]
    assert mail.ids("waiting") == ["b"]


@pytest.mark.parametrize("options", [{}, {"delay_ms": 1000}])
def test_a_full_server_takes_nothing(mail, options):
    mail.enqueue("before")
    before = mail.snapshot()
    mail.raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerFull, match="maxmemory"):
            mail.enqueue("a", "b", **options)
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert mail.snapshot() == before


def test_the_servers_clock_is_used_unless_one_is_given(mail, clock):
    clock.ms = None
    mail.enqueue("a")

    seconds, microseconds = mail.raw.time()
    enqueued = float(mail.hash("a")["enqueue_time"])
    assert 0 <= seconds * 1000 + microseconds / 1000 - enqueued < 5000


@pytest.mark.parametrize("options", [{}, {"priority": 2}, {"delay_ms": 5}, {"priority": 0, "delay_ms": 0.25}])
@pytest.mark.parametrize("headers", [None, b"{}"])
def test_what_a_task_says_of_itself_is_told_apart_from_what_it_does_not_say(mail, clock, options, headers):
    plain = Task(id="plain", queue="mail", payload=b"1")
    own = Task(id="own", queue="mail", payload=b"  2", headers=headers, **options)
    last = Task(id="last", queue="mail", payload=b"")
    assert mail.run(new_tasks.enqueue(mail.keys, [plain, own, last])) == [True] * 3

    found = [mail.hash(one) for one in ("plain", "own", "last")]
    assert [one["payload"] for one in found] == [b"1", b"  2", b""]
    assert ["headers" in one for one in found] == [False, bool(headers), False]
    assert found[1].get("priority") == (b"%d" % options["priority"] if "priority" in options else None)
    assert mail.scores("scheduled").keys() == ({"own"} if "delay_ms" in options else set())


def sent(mail, *ids, clash="existing", **options):
    options = {"sending": "1"} | options
    tasks_sent = [Task(id=one, queue="mail", payload=b"", **options) for one in ids]
    return mail.run(new_tasks.enqueue(mail.keys, tasks_sent, clash=clash))


def test_a_call_that_is_sent_again_adds_nothing_and_gets_its_reply(mail):
    mail.enqueue("b")
    first = sent(mail, "a", "b", "c", "c")
    mail.run(leases.pop(mail.keys, 9))
    before = mail.snapshot()

    assert first == sent(mail, "a", "b", "c", "c") == [True, False, True, False]
    assert mail.snapshot() == before
    assert sent(mail, "a", "b", "c", "c", sending="2") == [True, True, True, False]


def test_a_note_of_a_call_lasts_for_ten_seconds(mail):
    sent(mail, "a")
    (note,) = mail.raw.keys(f"{mail.keys.base.decode()}sent:*")

    assert 9_000 < mail.raw.pttl(note) <= 10_000
    mail.raw.delete(note)
    mail.run(leases.pop(mail.keys, 9))
    assert sent(mail, "a") == [True]


MADE_ID = "0123456789abcdef0123456789ab-mail"


def end_by_hand(mail, clock, end):
    """Ends the one task of the queue otherwise than by the report of a worker."""
    if "history" in end:
        mail.configure(history_ms=1)
    if end.startswith("pop"):
        assert len(mail.run(leases.pop(mail.keys, 9))) == 1
        return
    if end.startswith("batch"):
        mail.run(batches.fill(mail.keys, "b", 1, had=0, count=1, lease_ms=1000, turn=1))
        mail.run(batches.decide(mail.keys, "b", 1, [], rest=end.removeprefix("batch, ")))
        assert mail.run(batches.advance(mail.keys, "b", count=9)).ended == 1
        return
    if end == "expiry":
        mail.configure(dead_ttl_ms=0, expires_in_ms=1)
        clock.advance(1)
        assert mail.reserve() == []
        return
    (held,) = mail.reserve()
    if end.startswith("delete"):
        mail.run(tasks.delete(mail.keys, held.id))
        return
    if end == "death":
        mail.configure(dead_ttl_ms=0)
    mail.fail(held, fate="dead")
    if end == "death and trimming":
        clock.advance(50)
        mail.configure(dead_ttl_ms=50)
        mail.run(queues.upkeep(mail.keys))


ENDS = ["pop", "pop, history", "delete", "delete, history", "batch, dropped", "batch, succeeded"]
DEATHS = ["death", "expiry", "death and trimming"]


@pytest.mark.parametrize("end", ENDS + DEATHS)
def test_a_task_without_a_note_stays_known_while_its_enqueue_may_be_sent_again(mail, keys, clock, end):
    """Whoever ends it: the enqueue of a job's task leaves no note because a worker keeps the task for so long."""
    call = new_tasks.enqueue(mail.keys, [Task(id=MADE_ID, queue="mail", type="send", payload=b"", kept_s=3600)])
    mail.run(call)
    end_by_hand(mail, clock, end)

    assert mail.ids("dead") == mail.ids("waiting") == []
    state = mail.run(tasks.show(keys, MADE_ID, queue="mail")).state
    assert state == ("dead" if end in DEATHS else "cancelled" if "dropped" in end else "succeeded")
    assert end not in DEATHS or {"finished_at", "error"} <= mail.hash(MADE_ID).keys(), "when, and of what it died"
    assert 50_000 < mail.raw.pttl(mail.keys.task(MADE_ID)) <= 60_000
    assert call.repeat_s == 59  # not the hour that a worker would keep it
    assert mail.run(call) == [False]


@pytest.mark.parametrize("of", ["an item", "an id of the caller's own"])
@pytest.mark.parametrize("end", [end for end in ENDS + DEATHS if "history" not in end])
def test_a_task_with_a_note_is_gone_at_its_end(mail, clock, end, of):
    """Its id may be used again on purpose."""
    of_item = of == "an item"
    task = Task(id=MADE_ID if of_item else "a", queue="mail", type="" if of_item else "send", payload=b"")
    mail.run(new_tasks.enqueue(mail.keys, [task]))
    end_by_hand(mail, clock, end)
    assert mail.hash(task.id) == {}


def test_a_full_shard_names_its_part_of_the_capacity(mail):
    mail.configure(max_size=9, slice_size=1)
    with pytest.raises(QueueFull) as refused:
        mail.enqueue("a", "b")
    assert refused.value.max_size == 1


def test_tasks_arrive_in_the_second_half_of_their_millisecond(mail, clock):
    """The first half is for tasks that were scheduled for it. The server's clock has microseconds."""
    began = clock.ms
    clock.advance(0.75)
    mail.enqueue("a", "b")
    assert mail.scores("waiting") == {"a": began + 0.5, "b": began + 0.5 + 1 / 1024}


@pytest.mark.parametrize("is_kept", [False, True], ids=["noted", "kept"])
@pytest.mark.parametrize("refusal", ["full", "exists"])
def test_a_call_that_was_refused_leaves_no_note(mail, refusal, is_kept):
    mail.enqueue("a")
    if refusal == "full":
        mail.configure(max_size=1)
    again = ("a", "b") if refusal == "exists" else ("b", "c")
    for _ in range(2):
        with pytest.raises(QueueFull if refusal == "full" else DuplicateTask):
            sent(mail, *again, clash="raise", kept_s=60 * is_kept)
    mail.configure(max_size=9)
    mail.run(leases.pop(mail.keys, 1))
    assert sent(mail, *again, clash="raise", kept_s=60 * is_kept) == [True, True]


def test_an_id_twice_in_one_call_is_refused_where_no_id_may_exist(mail):
    before = mail.snapshot()
    with pytest.raises(DuplicateTask, match="a"):
        sent(mail, "b", "a", "a", clash="raise")
    assert mail.snapshot() == before


def test_a_queue_takes_the_tasks_that_just_fit_and_those_it_has_count_once(mail):
    mail.configure(max_size=3)
    assert mail.enqueue("a", "b") == [True, True]
    with pytest.raises(QueueFull):
        mail.enqueue("c", "d")
    assert mail.enqueue("a", "b", "c") == [False, False, True]
    assert mail.enqueue("a", "c") == [False, False]


def test_a_payload_that_reads_as_a_field_is_no_partition(mail):
    mail.configure(fair=1)
    mail.enqueue("a", "b", key="k", payload=b"key")
    mail.enqueue("c", key="k")
    mail.enqueue("d")

    assert [one.id for one in mail.reserve(4)] == ["d", "a", "b", "c"], "k and no key take turns"


def commands(mail, *sent):
    """How many commands the server carries out for one call, without the call itself."""
    count = "total_commands_processed"
    mail.raw.info("stats")
    before = mail.raw.info("stats")[count]
    mail.run(new_tasks.enqueue(mail.keys, sent))
    return mail.raw.info("stats")[count] - before - 2


def a_task(name, **options):
    return Task(id=name, queue="mail", payload=b"1", **options)


@pytest.mark.skipif(topology_name() == "cluster", reason="counts on one server")
@pytest.mark.parametrize(
    ("settings", "most"),
    [({}, 10), ({"max_size": 100}, 12), ({"fair": 1}, 12), ({"key_inflight": 1}, 14)],
    ids=["plain", "bounded", "fair", "limited"],
)
def test_one_task_costs_few_commands(mail, settings, most):
    if settings:
        mail.configure(**settings)
    mail.run(new_tasks.enqueue(mail.keys, [a_task("first", key="k")]))  # the script is known, the queue is there

    assert commands(mail, a_task("kept", key="k", kept_s=60)) <= most - 1
    assert commands(mail, a_task("noted", key="k", sending="1")) <= most


@pytest.mark.skipif(topology_name() == "cluster", reason="counts on one server")
def test_a_thousand_tasks_of_ten_keys_cost_little_more_than_their_hashes(mail):
    mail.configure(fair=1)
    mail.run(new_tasks.enqueue(mail.keys, [a_task("first", key="k")]))

    sent = [a_task(f"t{n}", key=f"k{n % 10}", sending="1") for n in range(1000)]
    assert commands(mail, *sent) <= 1000 + 25


def test_the_time_of_an_enqueue_is_that_of_the_server(mail, clock):
    clock.ms = None
    for n in range(20):
        before = mail.raw.time()
        mail.enqueue(f"t{n}")
        after = mail.raw.time()
        at = float(mail.hash(f"t{n}")["enqueue_time"])
        assert before[0] * 1000 + before[1] / 1000 - 0.01 <= at <= after[0] * 1000 + after[1] / 1000 + 0.01
