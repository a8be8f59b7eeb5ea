"""Groups of failed attempts: what is in one group, and counts that stay exact whatever becomes of its tasks."""

import hashlib

import pytest

from jobrunner.broker.calls import leases, queues, tasks
from jobrunner.broker.calls.error_groups import BUCKET_MS, BUCKETS_KEPT, StoredGroup, error_groups
from jobrunner.error_groups import ErrorGroup, group_of, normalized

DECLINED = group_of("Charge", "CardDeclined: card * was declined", place="shop/jobs.py:charge", release="v7")
TIMEOUT = group_of("Charge", "TimeoutError: no answer", place="shop/bank.py:ask", release="v7")


def read(mail) -> dict[str, StoredGroup]:
    (call,) = error_groups([mail.keys])
    (found,) = mail.run(call)
    assert not found.problem
    return {one.error_type: one for one in found.groups}


def fail(mail, *groups: ErrorGroup, fate: str = "retry", ids: tuple[str, ...] = ()) -> list[str]:
    """Fails one new task for each group, in one call."""
    named = ids or tuple(f"t{n}" for n in range(len(groups)))
    mail.enqueue(*named, type="Charge")
    held = mail.reserve(len(named))
    reports = [(one.id, one.token, 60_000, fate, "E: text\ntrace") for one in held]
    return mail.run(leases.fail(mail.keys, reports, groups=groups))


def stored(mail, group: str) -> dict[bytes, bytes]:
    """The hash of a group."""
    return mail.raw.hgetall(mail.keys.errors + b":" + group.encode())


def all_stored(mail) -> set[str]:
    """The groups that have a hash."""
    return {key.rpartition(b":")[2].decode() for key in mail.raw.scan_iter(match=mail.keys.errors + b":*")}


def sums(mail) -> tuple[int, int]:
    """(failed attempts, dead tasks) of all groups."""
    found = read(mail).values()
    return sum(one.count for one in found), sum(one.dead for one in found)


def test_attempts_that_are_tried_again_are_counted_by_group(mail, clock):
    fail(mail, DECLINED, DECLINED, TIMEOUT)

    found = read(mail)
    assert {name: (one.count, one.dead) for name, one in found.items()} == {
        "CardDeclined": (2, 0), "TimeoutError": (1, 0),
    }  # fmt: skip
    one = found["CardDeclined"]
    assert (one.job, one.message, one.place) == ("Charge", "card * was declined", "shop/jobs.py:charge")
    assert (one.release, one.task, one.first_ms, one.last_ms) == ("v7", "t0", clock.ms, clock.ms)


def test_an_attempt_is_counted_in_the_half_hour_in_which_it_failed(mail, clock):
    fail(mail, DECLINED)
    (group,) = all_stored(mail)
    assert stored(mail, group)[b"%d" % (clock.ms // BUCKET_MS)] == b"1"


def test_a_group_keeps_its_first_release_and_names_the_last_task(mail, clock):
    began = clock.ms
    fail(mail, DECLINED)
    clock.advance(5000)
    later = group_of("Charge", "CardDeclined: card * was declined", place="shop/jobs.py:charge", release="v8")
    fail(mail, later, ids=("z",))

    (one,) = read(mail).values()
    assert (one.release, one.task, one.first_ms, one.last_ms, one.count) == ("v7", "z", began, began + 5000, 2)
    clock.advance(BUCKET_MS)
    fail(mail, later, ids=("y",))
    (one,) = read(mail).values()
    assert (one.release, one.first_ms, one.count) == ("v7", began, 3)


def test_a_brief_reading_leaves_out_the_counts_alone(mail, clock):
    fail(mail, DECLINED)
    clock.advance(5000)
    fail(mail, DECLINED, fate="dead", ids=("z",))

    (call,) = error_groups([mail.keys], brief=True)
    (found,) = mail.run(call)
    (one,) = found.groups
    whole = read(mail)["CardDeclined"]
    assert (one.error_type, one.first_ms, one.last_ms, one.task, one.dead) == (
        "CardDeclined", clock.ms - 5000, clock.ms, "z", 1,
    )  # fmt: skip
    assert (one.job, one.message, one.place, one.release) == (whole.job, whole.message, whole.place, whole.release)
    assert (one.count, whole.count) == (0, 2)


@pytest.mark.parametrize(
    ("field", "name"), [("task", "task"), ("first", "first_ms"), ("last", "last_ms"), ("dead", "dead")]
)
@pytest.mark.parametrize("brief", [False, True])
def test_a_field_that_a_group_lost_reads_as_nothing(mail, field, name, brief):
    fail(mail, DECLINED, fate="dead")
    hashes = [key for key in mail.raw.keys(b"*") if mail.raw.type(key) == b"hash"]
    assert sum(mail.raw.hdel(key, field) for key in hashes if mail.raw.hexists(key, "definition")) == 1

    (call,) = error_groups([mail.keys], brief=brief)
    ((one,),) = [found.groups for found in mail.run(call)]
    assert getattr(one, name) in ("", 0)
    assert one.error_type == "CardDeclined"


def test_a_refused_report_is_not_counted(mail):
    mail.enqueue("a")
    (held,) = mail.reserve()
    report = (held.id, held.token, 0, "dead", "E: x")

    assert mail.run(leases.fail(mail.keys, [report], groups=[DECLINED])) == ["dead"]
    assert mail.run(leases.fail(mail.keys, [report], groups=[DECLINED])) == ["not_reserved"]

    assert sums(mail) == (1, 1)


WAYS = ["requeue", "purge", "cancel", "cancel twice", "remove", "trim by age", "trim by number"]


@pytest.mark.parametrize("way", WAYS)
def test_the_number_of_dead_tasks_stays_exact(mail, clock, way):
    fail(mail, DECLINED, DECLINED, TIMEOUT, fate="dead", ids=("a", "b", "c"))
    assert {name: one.dead for name, one in read(mail).items()} == {"CardDeclined": 2, "TimeoutError": 1}

    if way == "requeue":
        assert mail.run(tasks.requeue(mail.keys, ["a", "a", "never"], start_ms=0, step_ms=0, fields=[])) == [
            "ok", "not_dead", "gone",
        ]  # fmt: skip
    elif way == "purge":
        assert mail.run(queues.purge(mail.keys, "dead", count=1)) == 1
    elif way in ("cancel", "cancel twice"):
        for _ in range(1 + (way == "cancel twice")):
            mail.run(tasks.cancel(mail.keys, "a", keep_ms=1000))
    elif way == "remove":
        mail.run(tasks.remove(mail.keys, ["a", "a"]))
    elif way == "trim by age":
        mail.configure(dead_ttl_ms=1000)
        clock.advance(1000)
        mail.reserve()
    elif way == "trim by number":
        mail.configure(dead_max=2)
        mail.reserve()

    dead = {name: one.dead for name, one in read(mail).items()}
    left = 0 if way == "trim by age" else 1
    assert dead == {"CardDeclined": left, "TimeoutError": left}
    assert sums(mail)[0] == 3, "failed attempts stay counted"


def test_a_task_that_dies_again_is_in_its_new_group(mail):
    fail(mail, DECLINED, fate="dead", ids=("a",))
    mail.run(tasks.requeue(mail.keys, ["a"], start_ms=0, step_ms=0, fields=[]))
    assert b"group" not in mail.hash("a")
    (held,) = mail.reserve()
    mail.run(leases.fail(mail.keys, [(held.id, held.token, 0, "dead", "E")], groups=[TIMEOUT]))

    assert {name: one.dead for name, one in read(mail).items()} == {"CardDeclined": 0, "TimeoutError": 1}


def test_an_expired_lease_and_a_crash_have_groups(mail, clock):
    mail.enqueue("a", "b", type="Charge", max_attempts=1)
    mail.enqueue("c", "d", type="Charge", max_attempts=5)
    held = mail.reserve(4)
    mail.crash(held[1], reason="its worker died (signal 9)")
    mail.crash(held[3], reason="its worker died (signal 11)")
    clock.advance(60_000)
    mail.reserve(9)

    found = read(mail)
    assert {name: (one.job, one.count, one.dead) for name, one in found.items()} == {
        "LeaseExpired": ("Charge", 2, 1), "WorkerCrashed": ("Charge", 2, 1),
    }  # fmt: skip
    assert found["WorkerCrashed"].message == "its worker died (signal #)"
    definition = "Charge\nWorkerCrashed\nits worker died (signal #)\n"
    assert found["WorkerCrashed"].id == hashlib.sha1(definition.encode()).hexdigest()[:10]


def test_a_task_that_did_not_start_in_time_has_a_group(mail, clock):
    mail.enqueue("a", type="Charge", expires_in_ms=1000)
    clock.advance(1000)
    mail.reserve()

    ((error_type, one),) = read(mail).items()
    assert (error_type, one.message) == ("", "expired before it started")
    assert (one.job, one.count, one.dead) == ("Charge", 1, 1)
    assert stored(mail, one.id)[b"dead"] == b"1"


@pytest.mark.parametrize("setting", [{"dead_ttl_ms": 0}, {"dead_letter_queue": "failed"}], ids=str)
def test_a_task_that_is_not_kept_is_counted_and_not_dead(mail, setting):
    mail.configure(**setting)
    fail(mail, DECLINED, fate="dead")

    assert sums(mail) == (1, 0)
    assert b"dead" not in stored(mail, DECLINED.id)


@pytest.mark.parametrize(
    "message",
    [
        "card 4711 was declined after 2.5 s",
        "no customer 'ab12' in \"EU\", won't retry",
        "can't open 'a b.txt'",
        "task 01a1fe85769b0000c6650a2fcc89-mail, order ord_9XaB77kQ, build deadbeef",
        "id 7f9c24e8-3b12-4f0a-9d3e-0c1b2a3d4e5f is taken at 0xDEADBEEF",
        "2026-11-25T16:02:06Z is past for 10.0.0.7:6379 and a1b2c3",
        "a row of 7 letters, x12345y, or of 8, x123456y",
        " two\twords  and " + "x y " * 100,
        "1" * 398 + " yx",
        "'",
    ],
)
def test_what_differs_is_blanked_as_by_a_worker(mail, message):
    """Else each value in a column `_error` made a group, and 200 of them hid all other errors."""
    mail.crash(mail.lease("a", type="Charge", max_attempts=1), reason=message)
    found = read(mail)["WorkerCrashed"]
    assert (found.message, found.place, found.release) == (normalized(message), "", "")


def test_counts_by_ten_minutes_are_kept_for_a_day_and_their_sum_for_ever(mail, clock):
    fail(mail, DECLINED, ids=("a",))
    clock.advance(BUCKET_MS)
    fail(mail, DECLINED, DECLINED, ids=("b", "c"))
    assert sorted(read(mail)["CardDeclined"].buckets.values()) == [1, 2]

    clock.advance(BUCKET_MS * (BUCKETS_KEPT - 1))
    fail(mail, DECLINED, ids=("d",))

    one = read(mail)["CardDeclined"]
    assert (one.count, one.before, sorted(one.buckets.values())) == (4, 1, [1, 2])


def test_there_are_at_most_so_many_groups_and_the_rest_is_counted_exactly(mail):
    groups = [group_of("Charge", f"E{'x' * (n + 1)}: boom") for n in range(150)]
    for at in (0, 1, 2):
        made = [group_of(f"job{at}", f"{one.definition.splitlines()[1]}: boom") for one in groups]
        fail(mail, *made, fate="dead", ids=tuple(f"{at}-{n}" for n in range(150)))

    (call,) = error_groups([mail.keys])
    (found,) = mail.run(call)
    others = [one for one in found.groups if one.id.startswith("other")]
    assert len(found.groups) == 200 + len(others)
    assert {one.job: one.count for one in others} == {"job1": 100, "job2": 150}
    assert sorted(stored(mail, one.id)[b"definition"] for one in others) == [b"job1\n\n\n\n", b"job2\n\n\n\n"]
    assert all_stored(mail) == {one.id for one in found.groups}, "those that did not find room leave none"
    assert (sum(one.count for one in found.groups), sum(one.dead for one in found.groups)) == (450, 450)
    mail.run(tasks.requeue(mail.keys, ["2-0", "2-149"], start_ms=0, step_ms=0, fields=[]))
    (found,) = mail.run(call)
    assert sum(one.dead for one in found.groups) == 448


def test_beyond_the_groups_of_others_all_jobs_share_one_that_names_none(mail, clock):
    mail.raw.zadd(mail.keys.errors, {f"g{n}": clock.ms for n in range(300)})
    fail(mail, DECLINED)

    (call,) = error_groups([mail.keys])
    (found,) = mail.run(call)
    ((group, job, count),) = [(one.id, one.job, one.count) for one in found.groups]
    assert (group, job, count) == ("other", "", 1)


def test_groups_without_dead_tasks_leave_after_a_week_when_others_need_their_place(mail, clock):
    kept = group_of("Charge", "Kept: boom")
    fail(mail, kept, fate="dead", ids=("k",))
    fail(mail, *[group_of("Charge", f"E{'x' * n}: boom") for n in range(199)])
    clock.advance(8 * 86_400_000)
    fail(mail, DECLINED, ids=("n",))

    found = read(mail)
    assert {"Kept", "CardDeclined"} <= found.keys()
    assert "" not in found, "nothing is counted among the others"
    assert all_stored(mail) == {one.id for one in found.values()}, "a group leaves with its hash"


def test_the_only_old_group_leaves_when_another_needs_its_place(mail, clock):
    fail(mail, group_of("Charge", "Old: boom"), ids=("o",))
    clock.advance(8 * 86_400_000)
    fail(mail, *[group_of("Charge", f"E{'x' * n}: boom") for n in range(199)])
    fail(mail, DECLINED, ids=("n",))

    assert {"Old", "", "CardDeclined"} & read(mail).keys() == {"CardDeclined"}


def test_old_groups_leave_also_when_some_are_counted_among_the_others(mail, clock):
    fail(mail, *[group_of("Charge", f"E{'x' * n}: boom") for n in range(1, 202)])
    assert "" in read(mail), "one is counted among the others"
    clock.advance(8 * 86_400_000)
    fail(mail, DECLINED, ids=("n",))

    assert "CardDeclined" in read(mail)


def test_the_group_of_all_others_keeps_the_time_of_its_first(mail, clock):
    began = clock.ms
    fail(mail, *[group_of("Charge", f"E{'x' * n}: boom") for n in range(1, 202)])
    clock.advance(BUCKET_MS)
    fail(mail, group_of("Charge", "Later: boom"), ids=("n",))

    other = read(mail)[""]
    assert (other.count, other.first_ms, other.last_ms) == (2, began, clock.ms)


def test_an_old_group_with_a_dead_task_stays(mail, clock):
    fail(mail, DECLINED, fate="dead", ids=("dead",))
    clock.advance(8 * 86_400_000)
    fail(mail, *[group_of("Charge", f"E{'x' * n}: boom") for n in range(199)])
    fail(mail, TIMEOUT, ids=("last",))  # looks for an old group to drop

    assert read(mail)["CardDeclined"].dead == 1


def test_old_groups_with_dead_tasks_are_not_in_the_way_of_those_without(mail, clock):
    dead = [group_of("Charge", f"D{'x' * n}: boom") for n in range(30)]
    fail(mail, *dead, fate="dead", ids=tuple(f"d{n}" for n in range(30)))
    clock.advance(BUCKET_MS)
    fail(mail, *[group_of("Charge", f"E{'x' * n}: boom") for n in range(170)])
    clock.advance(8 * 86_400_000)
    for n in range(30):
        clock.advance(1000)
        fail(mail, group_of("Charge", f"F{'x' * n}: boom"), ids=(f"f{n}",))

    found = read(mail)
    assert {f"D{'x' * n}" for n in range(30)} <= found.keys()
    assert f"F{'x' * 29}" in found
    others = found[""].count if "" in found else 0
    assert others <= 3, "another slice is examined in each second"


def test_damaged_groups_stop_no_report(mail):
    mail.raw.set(mail.keys.errors, "damage")
    mail.raw.set(mail.keys.errors + b":" + TIMEOUT.id.encode(), "damage")

    assert fail(mail, DECLINED, TIMEOUT) == ["scheduled"] * 2
    assert mail.ids("pending") == []


def test_a_queue_that_cannot_be_read_says_why(mail):
    mail.raw.set(mail.keys.errors, "damage")

    (call,) = error_groups([mail.keys])
    assert "WRONGTYPE" in mail.run(call)[0].problem


def test_the_time_is_noted_when_the_report_says_so(mail, clock):
    began = clock.ms
    fail(mail, DECLINED, ids=("a",))
    clock.advance(400)
    mail.enqueue("b", type="Charge")
    (held,) = mail.reserve()
    report = (held.id, held.token, 60_000, "retry", "E")
    mail.run(leases.fail(mail.keys, [report], groups=[DECLINED], is_noted=lambda _: False))

    (one,) = read(mail).values()
    assert (one.count, one.last_ms, one.task) == (2, began, "a")


def test_a_damaged_task_among_others_is_not_counted(mail):
    mail.enqueue("a", "b", type="Charge")
    held = mail.reserve(2)
    mail.raw.delete(mail.keys.task("a"))

    reports = [(one.id, one.token, 0, "dead", "E") for one in held]
    assert mail.run(leases.fail(mail.keys, reports, groups=[DECLINED] * 2)) == ["gone", "dead"]

    assert sums(mail) == (1, 1)


def test_a_task_whose_group_has_left_makes_no_new_one_when_it_is_put_back(mail):
    fail(mail, DECLINED, fate="dead", ids=("a",))
    mail.raw.delete(mail.keys.errors, mail.keys.errors + b":" + DECLINED.id.encode())
    mail.run(tasks.requeue(mail.keys, ["a"]))
    assert not mail.raw.keys(mail.keys.errors + b"*")


def test_the_message_of_a_death_that_the_server_words_has_two_hundred_characters_at_most(mail):
    mail.crash(mail.lease("a", type="Charge", max_attempts=1), reason="x" * 300)
    assert read(mail)["WorkerCrashed"].message == "x" * 200


def test_each_expired_lease_is_the_newest_example_of_its_group(mail, clock):
    mail.enqueue("a", "b")
    for name in "ab":
        (held,) = mail.reserve()
        assert held.id == name
        clock.advance(30_000)
        mail.reserve(0)
        mail.raw.zrem(mail.keys.waiting, name)

    one = read(mail)["LeaseExpired"]
    assert (one.count, one.task, one.last_ms) == (2, "b", clock.ms)
